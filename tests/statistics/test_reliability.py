import numpy as np

from segcal.statistics.reliability import REGIONS, curves_by_band, curves_by_region


def test_regions_and_bands_are_sums_of_cells():
    rng = np.random.default_rng(0)
    count, confidence = rng.integers(0, 9, size=(3, 3, 2, 5)), rng.random((3, 3, 2, 5))
    count[:, 0, 0] = 0
    curves = curves_by_region(count, confidence)
    assert tuple(curves) == REGIONS
    for b in range(5):
        cells = [(k, z, r) for k in range(3) for z in range(3) for r in range(2)]
        chosen = {
            "all": cells,
            "right": [cell for cell in cells if cell[2]],
            "wrong": [cell for cell in cells if not cell[2]],
            "foreground": [cell for cell in cells if cell[1] == 2],
            "union": [cell for cell in cells if cell[1] > 0],
        }
        for region, some in chosen.items():
            assert curves[region].count[b] == sum(count[(*cell, b)] for cell in some), region
            assert curves[region].right[b] == sum(count[(*cell, b)] for cell in some if cell[2]), region
            np.testing.assert_allclose(curves[region].confidence[b], sum(confidence[(*cell, b)] for cell in some))
    bands = curves_by_band(count, confidence)
    assert bands[1].count.tolist() == count[1].sum((0, 1)).tolist()
    assert bands[1].right.tolist() == count[1, :, 1].sum(0).tolist()
