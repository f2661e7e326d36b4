import pytest

from segcal import FitConfig
from segcal.errors import InputError
from segcal.fitting.sources import check_cases, read_data


def test_more_cases_share_the_memory_that_is_allowed(make_cases):
    config = FitConfig(voxels=100_000, memory=1 << 20)
    room = (1 << 20) // (4 * (3 + 2))
    data = read_data(make_cases(3, 120_000, parts=3), None, config)
    assert data.source.available == 120_000
    assert (
        room - 30 <= data.source.used <= room + 3
    )  # systematic drawing is exact to one voxel a case, clamping loses few


def test_progress_counts_cases(make_cases):
    messages = []
    read_data(make_cases(2, 40, parts=2), make_cases(2, 30, seed=1), FitConfig(), messages.append)
    assert messages == ["read 1 of 2 cases", "read 2 of 2 cases", "read 1 of 1 cases"]


def test_collections_that_nothing_can_be_fitted_to_are_refused(make_cases):
    cases = make_cases(3, 20)
    with pytest.raises(InputError, match="cases is empty, but at least one case is needed"):
        check_cases(cases.subset([]), None)
    with pytest.raises(InputError, match="validation is empty, but at least one case is needed"):
        check_cases(cases, cases.subset([]))
    with pytest.raises(InputError, match="validation has 4 classes, but the calibration cases have 3"):
        check_cases(cases, make_cases(4, 20))
