import numpy as np
import pytest

from segcal.cases.spacing import usable_spacing


@pytest.mark.parametrize(
    "values",
    [(1, 0), (1.0, -1.0), (1.0, float("nan")), [1, float("inf")], [10**400, 1], (1e300, 1), ("1", 1), "12", None, 5],
)
def test_a_voxel_size_that_cannot_be_computed_with_counts_as_unknown(values):
    assert usable_spacing(values) is None


def test_a_usable_one_is_taken_in_every_form():
    assert usable_spacing((1, 0.5)) == usable_spacing([1.0, 0.5]) == usable_spacing(np.float32([1, 0.5])) == (1.0, 0.5)
    assert usable_spacing((1, 1), axes=3) is None
