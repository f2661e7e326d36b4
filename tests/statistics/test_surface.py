import numpy as np
import pytest
from scipy import ndimage

from segcal.statistics.surface import _find_surface, surface_distances


def make_masks(shape, seed):
    rng = np.random.default_rng(seed)
    fields = ndimage.gaussian_filter(rng.normal(size=(2, *shape)), (0, *[1.5] * len(shape)))
    mixed = np.stack([fields[0], fields[0] + 0.4 * fields[1]])
    return [np.digitize(f, np.quantile(f, [0.6, 0.85])) for f in mixed]


@pytest.mark.filterwarnings("ignore")  # MONAI announces changes of its own
@pytest.mark.parametrize(("shape", "spacing"), [((19, 23), (1.0, 1.0)), ((9, 14, 12), (3.0, 0.5, 0.7))])
def test_distances_are_those_of_monai(shape, spacing):
    import torch
    from monai.metrics import compute_hausdorff_distance

    prediction, labels = make_masks(shape, 1)
    found = surface_distances(prediction, labels, 3, spacing)
    hot = [torch.from_numpy(np.stack([m == c for c in range(3)])[None].astype("float32")) for m in (prediction, labels)]
    for percentile, mine in ((None, found.largest), (95, found.each_95)):
        theirs = compute_hausdorff_distance(*hot, percentile=percentile, spacing=spacing)[0].numpy()
        np.testing.assert_allclose(mine[1:], theirs, rtol=1e-5)  # MONAI computes in float32


def distances_one_by_one(source, target, spacing):
    return [min(np.sqrt((((p - q) * spacing) ** 2).sum()) for q in np.argwhere(target)) for p in np.argwhere(source)]


def test_both_directions_together_against_loops():
    prediction, labels = make_masks((8, 11), 2)
    spacing = np.array([2.0, 0.3])
    found = surface_distances(prediction, labels, 3, spacing)
    for c in (1, 2):
        a, b = _find_surface(labels == c), _find_surface(prediction == c)
        every = distances_one_by_one(a, b, spacing) + distances_one_by_one(b, a, spacing)
        assert found.both_95[c] == pytest.approx(np.percentile(every, 95))
        assert found.largest[c] == pytest.approx(max(every))


def test_empty_masks_are_marked_and_the_diagonal_is_known():
    labels, prediction = np.array([[0, 1, 1], [0, 0, 0]]), np.array([[0, 0, 0], [2, 0, 0]])
    found = surface_distances(prediction, labels, 4, (3.0, 2.0))
    assert found.missing.tolist() == [2, 1, 1, 2]
    assert np.isnan(found.largest).all()
    assert found.diagonal == pytest.approx(5.0)


def test_ignored_voxels_are_in_no_mask():
    labels = np.array([0, 1, 1, 0, -1, -1])
    prediction = np.array([0, 1, 1, 0, 0, 1])
    assert surface_distances(prediction, labels, 2).largest[1] == 0
