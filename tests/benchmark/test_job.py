"""Jobs: divisions, digests, the numbers of fit and evaluate, and what is kept of a case as it is counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from segcal import evaluate, fit
from segcal.benchmark.job import CaseCounter, benchmark_metrics, cases_elsewhere, plan, run_job
from segcal.benchmark.protocol import Pipeline, Protocol, parse_protocol
from segcal.benchmark.results import Unit, read_unit
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.kernels.loops import one_thread

METRICS = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate"]


def test_a_unit_has_the_numbers_of_fit_and_evaluate(data, tmp_path):
    root, blobs, _ = data
    document = {"tasks": [blobs], "repeats": 1, "split": {"cal": 4, "val": 2}, "metrics": METRICS}
    document["pipelines"] = [{"pooling": "mean_logits", "calibrator": "dc"}]
    protocol = parse_protocol(document | {"fit": {"lam": 1e-3, "mu": 1e-3}}, root)
    (job,) = plan(protocol, {"blobs": protocol.pipelines}, {("blobs", "mean_logits"): "fingerprint"})
    assert run_job(job, protocol, tmp_path) == 1
    ((unit, digest),) = job.units.items()
    found = read_unit(tmp_path / unit.path)
    assert found.header.digest == digest
    split = protocol.divide(job.task, protocol.open(job.task, "mean_logits").cases, 0)
    with one_thread():
        fitted = fit("dc", split.cal, split.val, protocol.fit)
    result = evaluate(split.test, fitted.calibrator, metrics=METRICS, replicates=1)
    assert found.header.certificate["objective"] == fitted.certificate.objective
    for name in METRICS:
        wanted = [row[name] for row in sorted(result.rows, key=lambda row: row["case"]) if row["stage"] == "after"]
        assert found.numbers(name) == wanted
    pooled = result.after["ace"].value
    curve = found.total.tables.reliability[15]["all"]
    full = curve.count > 0
    gaps = np.abs(curve.right - curve.confidence)[full] / curve.count[full]
    assert np.isclose(gaps.mean(), pooled, rtol=1e-12)


def swapped():
    """Return a calibrator that prefers class 1 wherever it is not far behind."""
    calibrator = make_calibrator("vs", 2)
    calibrator.bias.data[1] = 1.0
    return calibrator


def counted(metrics=("nll", "dice", "ace", "flip_rate", "free_energy_std"), background=True):
    # One row of pixels: the first four are class 0, the others class 1; the last is ignored.
    labels = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 1, 9]])
    z1 = np.array([-3, -0.5, -3, -0.5, -0.5, 2, -3, 2, 2, -0.5])
    logits = np.stack([np.zeros((1, 10)), z1[None]]).astype(np.float32)
    cases = ArrayCases([logits], [labels], ignore=9, ids=["a"])
    calibrators = {"swapped": swapped(), "same": make_calibrator("identity", 2)}
    counter = CaseCounter(benchmark_metrics(metrics, background), calibrators)
    counter.add(cases.read("a"))
    return counter


def test_flips_are_counted_in_the_band_and_kind_where_they_lie():
    row = counted().rows["swapped"][0]
    # Pixels 1, 3, 4 flip to class 1 (z1 = -0.5 + 1 > 0): 1 and 3 harmfully, 4 rightly; the ignored one does not count.
    # The boundary is pixels 3 | 4; bands begin at distance 0 and 3.
    flips = np.zeros((5, 3), int)
    flips[0] = [2, 1, 0]
    cells, values = row.flip_bands["flips"]["cells"], row.flip_bands["flips"]["values"]
    assert dict(zip(cells, values, strict=True)) == {i: n for i, n in enumerate(flips.reshape(-1)) if n}
    assert row.flip_bands["voxels"]["values"] == [6, 3]  # distances 3 2 1 0 | 0 1 2 3 4
    assert row.metrics["flip_rate"] == 3 / 9
    assert (row.voxels, row.ignored) == (9, 1)


def test_free_energy_is_that_of_the_input_and_dice_counts_class_0_where_it_is_no_background():
    kept = counted()
    same = kept.rows["same"][0].metrics
    assert same["flip_rate"] == 0
    energy = np.log(1 + np.exp(np.array([-3, -0.5, -3, -0.5, -0.5, 2, -3, 2, 2])))
    assert np.isclose(same["free_energy_std"], energy.std())
    assert same["free_energy_std"] == kept.rows["swapped"][0].metrics["free_energy_std"]
    # Truth 0 x 4, 1 x 5; predicted as class 1: pixels 5, 7, 8.
    assert np.isclose(same["dice"], 2 * 3 / (5 + 3))
    both = counted(background=False).rows["same"][0].metrics["dice"]
    assert np.isclose(both, (2 * 4 / (4 + 6) + 2 * 3 / (5 + 3)) / 2)


def test_totals_have_the_tables_and_spreads_of_figures_whatever_was_asked_for():
    kept = counted(metrics=("nll",)).totals["same"]
    total = kept.tables
    assert {15, 20, 30, 40, 50} == set(total.reliability)
    assert set(total.reliability[15]) == {"all", "foreground"}
    assert set(total.reliability[50]) == {"all"}
    assert total.classwise is not None
    assert total.bands is not None
    assert total.flips is not None
    assert set(kept.spread) == {"all", "foreground", "classes", "bands"}
    assert (kept.spread["all"].counts == total.reliability[15]["all"].count ** 2).all()
    assert kept.spread["classes"].cases.shape == (2, 15)


LOGITS, LABELS = np.zeros((2, 3), np.float32), np.zeros(3, np.int64)


def cases(count, groups=None, prefix=""):
    names = [f"{prefix}{i:02d}" for i in range(count)]
    return ArrayCases([LOGITS] * count, [LABELS] * count, ids=names, groups=groups)


def divide(collection, division, seed=0, repeat=0):
    task = EmbeddedTask("t", "roads", split=division)
    return Protocol(tasks=(task,), pipelines=(), seed=seed).divide(task, collection, repeat)


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


def test_repeats_and_seeds_divide_differently_and_a_test_count_takes_a_random_part_of_the_rest():
    found = {divide(cases(30), Division(10, 5), seed, repeat).test.ids for seed in (0, 1) for repeat in (0, 1, 2)}
    assert len(found) == 6
    some, rest = (divide(cases(30), Division(10, 5, test)).test.ids for test in (6, None))
    assert len(some) == 6
    assert set(some) < set(rest)
    assert some != rest[:6]


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


def test_a_copy_is_tested_where_the_original_was_and_others_on_their_own_cases_that_had_no_part():
    collection = cases(10)
    split = divide(collection, Division(3, 2, 4))
    assert cases_elsewhere(split, collection, cases(10), None).ids == split.test.ids
    part = collection.subset([*split.test.ids[1:], *split.cal.ids])  # a copy of some cases
    assert cases_elsewhere(split, collection, part, None).ids == split.test.ids[1:]
    shared = ArrayCases([LOGITS] * 8, [LABELS] * 8, ids=[*collection.ids[:6], "x", "y"])
    expected = [each for each in shared.ids if each not in {*split.cal.ids, *split.val.ids}]
    assert list(cases_elsewhere(split, collection, shared, None).ids) == expected
    other = cases(10, prefix="x")
    own = divide(other, Division(4, 2))
    assert cases_elsewhere(split, collection, other, own).ids == own.test.ids
    with pytest.raises(InputError, match="test_on has 3 cases, but all of them had part in the fit"):
        cases_elsewhere(split, collection, collection.subset(split.cal.ids[:3]), None)


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
