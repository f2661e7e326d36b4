import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.statistics.additive import total_of
from segcal.statistics.reliability import (
    REGIONS,
    Curve,
    CurveSpread,
    accuracy_error,
    accuracy_interval,
    curves_by_band,
    curves_by_region,
)


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


def curves(seed, cases, bins=3):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 40, (cases, bins))
    return [Curve(n, rng.binomial(n, 0.7), n * 0.6) for n in count]


def summed(listed):
    spread = total_of({f"{i:03d}": CurveSpread.of(curve) for i, curve in enumerate(listed)})
    return total_of({f"{i:03d}": curve for i, curve in enumerate(listed)}), spread


@given(seed=st.integers(0, 1000), cases=st.integers(2, 9))
def test_the_error_is_that_of_a_ratio_over_cases(seed, cases):
    listed = curves(seed, cases)
    found = accuracy_error(*summed(listed))
    for place in range(3):
        n = np.array([curve.count[place] for curve in listed], float)
        r = np.array([curve.right[place] for curve in listed], float)
        expected = np.sqrt(cases / (cases - 1) * ((r - r.sum() / n.sum() * n) ** 2).sum()) / n.sum()
        # Sums of squares cancel where all cases agree, and a root makes 1e-16 of it 1e-8.
        assert found[place] == pytest.approx(expected, abs=1e-7)


def test_a_bin_of_one_case_or_none_has_no_error():
    one = Curve(np.array([5, 0]), np.array([3, 0]), np.array([3.0, 0.0]))
    assert np.isnan(accuracy_error(one, CurveSpread.of(one))).all()
    two = curves(2, 1, bins=2)[0]
    grown = CurveSpread.of(one) + CurveSpread.of(one + two, one)  # a second case of the same group
    assert all(np.array_equal(getattr(grown, name), value) for name, value in vars(CurveSpread.of(one + two)).items())


def test_an_interval_stays_between_0_and_1_and_widens_with_its_level():
    listed = [
        Curve(np.array([4]), np.array([4]), np.array([3.0])),
        Curve(np.array([4]), np.array([1]), np.array([3.0])),
    ]
    total, spread = summed(listed)
    error = accuracy_error(total, spread)
    assert accuracy_interval(total, error, 0.95) == (pytest.approx(0), pytest.approx(1))
    low, high = accuracy_interval(total, np.array([0.1]), 0.95)
    assert (low[0], high[0]) == (pytest.approx(0.625 - 0.1959964), pytest.approx(0.625 + 0.1959964))
