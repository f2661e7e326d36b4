import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import ArrayCases
from segcal.errors import InputError
from segcal.fitting.division import HELD_VOXELS, divide, divide_folds, each_fold, thinned, thinned_cases
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels


def make(groups, grouped=True):
    count = len(groups)
    return ArrayCases(
        [np.zeros((2, 3), "float32")] * count,
        [np.zeros(3, int)] * count,
        ids=[f"c{k:02d}" for k in range(count)],
        groups=groups if grouped else None,
    )


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=12),
    val=st.floats(0.05, 0.6),
    test=st.floats(0.05, 0.35),
    seed=st.integers(0, 99),
)
def test_groups_stay_whole_every_case_has_one_part_and_none_of_the_three_is_empty(sizes, val, test, seed):
    groups = [f"g{k}" for k, size in enumerate(sizes) for _ in range(size)]
    cases = make(groups)
    parts = divide(cases, val, test, seed)
    assert sorted(case_id for part in parts for case_id in part.ids) == list(cases.ids)
    assert all(len(part) > 0 for part in parts)
    homes = [{cases.groups[case_id] for case_id in part.ids} for part in parts]
    assert sum(map(len, homes)) == len(sizes)
    assert [part.ids for part in divide(cases, val, test, seed)] == [part.ids for part in parts]


@pytest.mark.parametrize(("count", "val", "expected"), [(20, 1 / 3, 7), (2, 0.01, 1), (3, 0.9, 2), (30, 0.1, 3)])
def test_without_groups_the_share_is_met_to_the_nearest_case(count, val, expected):
    calibration, validation, rest = divide(make(["x"] * count, grouped=False), val)
    assert (len(calibration), len(validation), len(rest)) == (count - expected, expected, 0)


def test_the_validation_share_is_of_what_the_test_leaves():
    assert [len(part) for part in divide(make(["x"] * 100, grouped=False), 1 / 3, 0.4)] == [40, 20, 40]


def test_another_seed_draws_others():
    cases = make(["x"] * 30, grouped=False)
    assert divide(cases, 0.3, seed=1).val.ids != divide(cases, 0.3, seed=2).val.ids


def test_large_groups_do_not_starve_the_validation_part():
    cases = make(["a"] * 10 + ["b"] * 6 + ["c"] * 4)
    for seed in range(20):
        calibration, validation, _ = divide(cases, 1 / 3, seed=seed)
        assert len(validation) in (4, 6, 10)
        assert len(calibration) >= 10


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(InputError, match="there are 1 cases, but 2 are needed to divide them"):
        divide(make(["x"], grouped=False), 0.5)
    with pytest.raises(InputError, match="there are 1 groups, which are kept whole, but 2 are needed"):
        divide(make(["x"] * 9), 0.5)
    for val, test in ((1.0, 0.0), (0.5, 1.0), (-1, 0), (0.5, -0.1)):
        with pytest.raises(InputError, match="the shares of validation and test cases are"):
            divide(make(["x"] * 9, grouped=False), val, test)


def test_without_a_share_for_validation_all_but_the_test_cases_are_for_the_fit():
    cal, val, test = divide(make(list("abcdef")), 0.0, 1 / 3)
    assert (len(cal), len(val), len(test)) == (4, 0, 2)
    assert len(divide(make(["x"]), 0.0).cal) == 1


@pytest.mark.parametrize(("groups", "most", "sizes"), [("aabbcd", 3, [2, 2, 2]), ("aaaab", 5, [1, 4]), ("a", 5, [1])])
def test_folds_are_whole_groups_of_about_the_same_size(groups, most, sizes):
    cases = make(list(groups))
    folds = divide_folds(cases, most, seed=3)
    assert sorted(map(len, folds)) == sizes
    assert sorted(i for fold in folds for i in fold) == sorted(cases.ids)
    for fold in folds:
        inside = {cases.groups[i] for i in fold}
        assert all(cases.groups[i] not in inside for i in cases.ids if i not in fold)


def silent():
    pass


def test_every_case_is_held_out_once_and_never_learned_from_then(make_cases):
    cases = make_cases(3, 700, parts=7)
    folds = list(each_fold(cases, SampledVoxels(cases, 1000, 0, silent), None, 3, 0))
    assert sorted(i for fold in folds for i in fold.held.ids) == sorted(cases.ids)
    for fold in folds:
        assert not set(fold.held.ids) & set(fold.learn.ids)
        assert set(fold.held.ids) | set(fold.learn.ids) == set(cases.ids)
        assert fold.cases.ids == fold.learn.ids


def test_validation_cases_are_one_fold(make_cases):
    cases, other = make_cases(3, 200, parts=2), make_cases(3, 300, seed=1, parts=2)
    source, held = (SampledVoxels(c, 1000, 0, silent) for c in (cases, other))
    (fold,) = each_fold(cases, source, held, 5, 0)
    assert fold.held is held
    assert fold.learn is source


@pytest.mark.parametrize("streamed", [True, False])
def test_thinning_keeps_the_shares_of_cases_and_the_weight(make_cases, streamed):
    cases = make_cases(3, 6000, parts=3)
    source = StreamedVoxels(cases, silent) if streamed else SampledVoxels(cases, 10_000, 0, silent)
    few = thinned(source, 1500, 0)
    assert abs(few.used - 1500) < 100
    assert few.total_weight == pytest.approx(6000, rel=0.1)
    assert few.ids == source.ids
    for case_id in few.ids:
        assert abs(few.subset([case_id]).used - 500) < 60
    assert thinned(source, 6000, 0) is source


@pytest.mark.parametrize("streamed", [True, False])
def test_thinning_cases_keeps_small_ones_whole_and_the_weight(make_cases, streamed):
    cases = make_cases(3, 6000, parts=3)
    source = StreamedVoxels(cases, silent) if streamed else SampledVoxels(cases, 10_000, 0, silent)
    few = thinned_cases(source, 500, 0)
    assert few.ids == source.ids
    for case_id in few.ids:
        assert abs(few.subset([case_id]).used - 500) < 60
        assert few.subset([case_id]).total_weight == pytest.approx(2000, rel=0.15)
    assert thinned_cases(source, 2000, 0) is source


def test_of_a_held_out_case_a_bounded_number_of_voxels_is_measured(make_cases):
    cases = make_cases(3, 3 * (HELD_VOXELS + 3000), parts=3)
    for fold in each_fold(cases, SampledVoxels(cases, 20_000, 0, silent), None, 3, 0):
        assert abs(fold.held.used - HELD_VOXELS) < 0.01 * HELD_VOXELS
