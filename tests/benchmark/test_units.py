"""Divisions and digests of units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from segcal.benchmark import units
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.benchmark.units import Unit, cases_elsewhere
from segcal.cases import ArrayCases
from segcal.errors import InputError


def cases(count, groups=None, prefix=""):
    arrays = [np.zeros((2, 3), np.float32)] * count
    labels = [np.zeros(3, np.int64)] * count
    return ArrayCases(arrays, labels, ids=[f"{prefix}{i:02d}" for i in range(count)], groups=groups)


def divide(collection, division, seed=0, repeat=0):
    task = EmbeddedTask("t", "roads", split=division)
    return units.divide(Protocol(tasks=(task,), pipelines=(), seed=seed), task, collection, repeat)


@given(seed=st.integers(0, 50), repeat=st.integers(0, 5), size=st.integers(1, 4))
def test_parts_are_disjoint_whole_groups_and_reproducible(seed, repeat, size):
    collection = cases(24, groups=[f"g{i // size}" for i in range(24)])
    split = divide(collection, Division(8, 4), seed, repeat)
    again = divide(collection, Division(8, 4), seed, repeat)
    parts = [part.ids for part in split]
    assert parts == [part.ids for part in again]
    assert sorted(sum(parts, ())) == sorted(collection.ids)
    groups = [{collection.groups[case_id] for case_id in part} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_repeats_and_seeds_divide_differently():
    found = {divide(cases(30), Division(10, 5), seed, repeat).test.ids for seed in (0, 1) for repeat in (0, 1, 2)}
    assert len(found) == 6


def test_a_test_count_takes_a_random_part_of_the_rest():
    split = divide(cases(30), Division(10, 5, 6))
    rest = divide(cases(30), Division(10, 5)).test
    assert len(split.test) == 6
    assert set(split.test.ids) < set(rest.ids)
    assert split.test.ids != rest.ids[:6]


@pytest.mark.parametrize(
    ("division", "groups", "match"),
    [
        (Division(10, 5), None, "task 't' has 12 cases, but 10 for calibration, 5 for validation"),
        (Division(6, 1), [f"g{i // 3}" for i in range(12)], "has val = 1, but no whole group of cases fits"),
    ],
)
def test_divisions_that_cannot_be_drawn_are_refused(division, groups, match):
    with pytest.raises(InputError, match=match):
        divide(cases(12, groups), division)


@given(seed=st.integers(0, 20), size=st.integers(1, 4), fitted=st.integers(4, 11))
def test_fewer_or_more_fitted_cases_leave_the_test_as_it_is(seed, size, fitted):
    collection = cases(24, groups=[f"g{i // size}" for i in range(24)])
    usual = divide(collection, Division(8, 4), seed, 0)
    other = divide(collection, Division(8, 4, fitted=fitted), seed, 0)
    assert other.test.ids == usual.test.ids
    assert {*other.cal.ids, *other.val.ids} == {*usual.cal.ids, *usual.val.ids}
    most = min(fitted, len(usual.cal) + len(usual.val) - 1)
    assert most - size < len(other.cal) <= most
    groups = [{collection.groups[case_id] for case_id in part.ids} for part in other]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_a_changed_copy_is_tested_where_the_original_was():
    collection = cases(10)
    split = divide(collection, Division(3, 2, 2))
    assert cases_elsewhere(split, collection, cases(10), None).ids == split.test.ids


def test_a_changed_copy_of_some_cases_is_tested_on_the_test_cases_it_has():
    collection = cases(10)
    split = divide(collection, Division(3, 2, 4))
    part = collection.subset([*split.test.ids[1:], *split.cal.ids])
    assert cases_elsewhere(split, collection, part, None).ids == split.test.ids[1:]


def test_cases_that_had_part_in_the_fit_are_never_tested_elsewhere():
    collection, other = cases(10), cases(6)
    split = divide(collection, Division(4, 2))
    found = cases_elsewhere(split, collection, other, None).ids
    assert set(found) == set(other.ids) - {*split.cal.ids, *split.val.ids}


def test_another_task_of_which_all_cases_were_seen_is_refused():
    collection = cases(10)
    split = divide(collection, Division(8, 1))
    with pytest.raises(InputError, match="test_on has 3 cases, but all of them had part in the fit"):
        cases_elsewhere(split, collection, collection.subset(split.cal.ids[:3]), None)


def test_another_task_is_tested_on_its_own_test_cases():
    collection, other = cases(10), cases(10, prefix="x")
    split, own = (divide(each, Division(4, 2)) for each in (collection, other))
    assert cases_elsewhere(split, collection, other, own).ids == own.test.ids


def test_a_unit_comes_back_from_plain_data_and_has_a_file_of_its_own():
    plain = {"task": "t", "repeat": 0, "pipeline": Pipeline("mean_probs", "ts")}
    units = [
        Unit(**plain),
        Unit(**plain | {"repeat": 1}),
        Unit(**plain, test_on="other"),
        Unit(**plain | {"pipeline": Pipeline("mean_logits", "ts")}),
        Unit(**plain | {"pipeline": Pipeline("mean_logits", "ms")}),
        Unit(**plain | {"pipeline": Pipeline("mean_logits", "ms", {"canonical": True})}),
    ]
    assert [convert(to_builtins(unit), Unit) for unit in units] == units
    assert list(to_builtins(units[0])) == ["task", "repeat", "test_on", "pipeline"]
    assert len({unit.path for unit in units}) == len(units)
    assert len({unit.calibrator_path for unit in units}) == len(units) - 1  # one, wherever it is tested
