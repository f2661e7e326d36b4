import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import ArrayCases
from segcal.errors import InputError
from segcal.fitting.config import FitConfig
from segcal.fitting.division import (
    composition,
    divide,
    divide_folds,
    each_fold,
    find_sites,
    thinned,
    thinned_cases,
)
from segcal.fitting.request import read_data
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels


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


def predicting(shares, groups=None, sites=None, seed=0, voxels=400):
    """Cases of two classes in which a share of the voxels is predicted to be the second."""
    rng = np.random.default_rng(seed)
    logits = []
    for share in shares:
        second = rng.random(voxels) < share
        logits.append(np.stack([np.where(second, 0.0, 6.0), np.where(second, 6.0, 0.0)]).astype("float32"))
    labels = [z.argmax(0) for z in logits]
    cases = ArrayCases(logits, labels, ids=[f"c{k:02d}" for k in range(len(shares))], groups=groups, sites=sites)
    return read_data(cases, None, FitConfig(voxels=200))


def test_clusters_are_thirds_along_what_is_predicted():
    shares = [0.9, 0.1, 0.5, 0.12, 0.52, 0.88, 0.11, 0.48, 0.91]
    found = find_sites(predicting(shares))
    assert not found.declared
    parts = [{round(shares[int(i[1:])], 1) for i in part} for part in found.parts.values()]
    assert sorted(map(sorted, parts)) == [[0.1], [0.5], [0.9]]


def test_a_composition_is_the_weighted_mean_of_the_softmax():
    data = predicting([0.3])
    (voxels,) = data.source
    by_hand = np.average(torch.softmax(voxels.logits.double(), 0).numpy(), axis=1, weights=voxels.weight.numpy())
    np.testing.assert_allclose(composition("", iter(data.source)), by_hand, rtol=1e-12)


@pytest.mark.parametrize(("count", "parts"), [(5, None), (6, 2), (8, 2), (9, 3), (30, 3)])
def test_a_part_has_at_least_three_groups(count, parts):
    found = find_sites(predicting(np.linspace(0.1, 0.9, count)))
    assert (found if parts is None else len(found.parts)) == parts


def test_groups_stay_whole_in_clusters_and_folds():
    groups = [f"g{k // 2}" for k in range(18)]
    data = predicting(np.linspace(0.1, 0.9, 18)[::-1], groups=groups)
    found = find_sites(data)
    for part in found.parts.values():
        assert len({groups[int(i[1:])] for i in part}) * 2 == len(part)
    assert sum(found.groups(data.cases).values()) == 9
    folds = found.folds(data, 0)
    assert len(folds) == 3
    for fold in folds:
        held, learned = ({groups[int(i[1:])] for i in source.ids} for source in (fold.held, fold.learn))
        assert not held & learned


def test_declared_sites_come_first_and_of_many_five_are_made():
    found = find_sites(predicting([0.5] * 6, sites=list("aabbcc")))
    assert found.declared
    assert found.parts == {"a": ("c00", "c01"), "b": ("c02", "c03"), "c": ("c04", "c05")}
    many = find_sites(predicting([0.5] * 9, sites=list("aabcdefgh")))
    assert len(many.parts) == 5
    assert sorted(i for part in many.parts.values() for i in part) == [f"c{k:02d}" for k in range(9)]
    assert sorted(map(len, many.parts.values())) == [1, 2, 2, 2, 2]


def test_one_declared_site_is_none():
    assert not find_sites(predicting(np.linspace(0.1, 0.9, 9), sites=["a"] * 9)).declared


def test_a_group_in_two_sites_is_refused():
    with pytest.raises(
        InputError, match=r"group 'p' has cases of the sites 'a' and 'b', but a group lies in one site\."
    ):
        predicting([0.5] * 2, groups=["p", "p"], sites=["a", "b"])
