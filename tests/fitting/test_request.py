import pytest

from segcal import ArrayCases, FitConfig
from segcal.errors import InputError, SuspicionWarning
from segcal.fitting.request import check_cases, read_data


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


def test_what_is_seldom_meant_is_said_where_it_is_asked_for(scenes):
    drawn = scenes(6)
    logits, labels = [z for z, _ in drawn], [y[::-1].copy() for _, y in drawn]
    cases = ArrayCases([[z, z] for z in logits], labels, pooling="mean_logits")
    read_data(cases, None, FitConfig())
    with pytest.warns(SuspicionWarning) as said:
        read_data(cases.subset("0123"), cases.subset("45"), FitConfig(), suspect=True)
    texts = [str(one.message) for one in said]
    assert [text.split(" (")[0] for text in texts] == [
        "0, 1, 2, 3, 4 and 1 more: labels fit clearly better as numpy.flip(labels, 0)",
        "members hold the same scores",
    ]


@pytest.mark.parametrize("voxels", [500, "all"])
def test_copies_in_calibration_and_validation_are_known_by_content(scenes, voxels):
    drawn = scenes(4)
    cal, val = (ArrayCases([drawn[i][0] for i in part], [drawn[i][1] for i in part]) for part in ((0, 1, 2), (3, 1)))
    match = r"the same scores are in calibration and in validation \(1 = 1\)"
    with pytest.warns(SuspicionWarning, match=match) as said:
        read_data(cal, val, FitConfig(voxels=voxels), suspect=True)
    assert len(said) == 1
    read_data(cal, cal, FitConfig(voxels=voxels), suspect=True)
