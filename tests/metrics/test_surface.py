import numpy as np
import pytest

from segcal.errors import InputError
from segcal.metrics.surface import hausdorff_95, hausdorff_distance
from segcal.statistics.surface import Surface


def make(missing, largest):
    return Surface(np.array(largest), np.array(largest) / 2, np.array(largest) / 4, np.array(missing), 50.0)


def test_the_mean_over_classes_counts_a_missed_class_as_the_diagonal():
    surface = make([2, 0, 1, 2], [np.nan, 10.0, np.nan, np.nan])
    assert hausdorff_distance(surface) == pytest.approx(30.0)
    assert hausdorff_distance(surface, one_empty="nan") == pytest.approx(10.0)
    assert hausdorff_95(surface) == pytest.approx(27.5)
    assert hausdorff_95(surface, percentile_of="both", one_empty="nan") == pytest.approx(2.5)


def test_without_any_foreground_there_is_no_distance():
    assert np.isnan(hausdorff_distance(make([2, 2], [np.nan, np.nan])))


def test_unknown_options_are_refused():
    surface = make([2, 0], [np.nan, 1.0])
    with pytest.raises(InputError, match=r"no one_empty is named 'zero'. Choose one of: diagonal, nan"):
        hausdorff_distance(surface, one_empty="zero")
    with pytest.raises(InputError, match=r"no percentile_of is named 'all'. Choose one of: each, both"):
        hausdorff_95(surface, percentile_of="all")
