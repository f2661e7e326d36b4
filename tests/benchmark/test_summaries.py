"""Summaries: means and intervals by hand, shared draws, what is left out, and verdicts on data made to have one."""

import json
import shutil

import numpy as np
import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.results import read_results
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.summaries import compare, compare_repeats, summarise, verdict_of, write_summary
from segcal.errors import ArtifactError, InputError
from segcal.metrics import find_metrics
from segcal.summary import Difference, Draws, read_summary

NAMES = [("mean_logits", name) for name in ("identity", "ts", "ets", "cms_ap", "cms_op", "cdc", "ms", "dc")]


@pytest.fixture(scope="module")
def results(data, tmp_path_factory):
    root, blobs, _ = data
    document = {
        "tasks": [blobs],
        "pipelines": [{"pooling": how, "calibrator": name} for how, name in NAMES],
        "repeats": 2,
        "split": {"cal": 4, "val": 2},
        "fit": {"lam": 1e-3, "mu": 1e-3},
        "bootstrap": {"replicates": 300, "seed": 3},
    }
    folder = tmp_path_factory.mktemp("summaries")
    return run_benchmark(parse_protocol(document, root), folder)


@pytest.fixture(scope="module")
def summary(results):
    return summarise(results)


def numbers(summary, pipeline):
    return summary.numbers("blobs", pipeline)


def test_the_estimate_is_the_mean_over_repeats_of_the_mean_over_cases(results, summary):
    values = [[row.metrics["nll"] for row in unit.rows] for unit in results.repeats("blobs", "ts(mean_logits)")]
    found = numbers(summary, "ts(mean_logits)")["nll"]
    assert np.isclose(found.value, np.mean([np.mean(each) for each in values]))
    assert found.low < found.value < found.high
    assert found.cases == sum(map(len, values))


def test_pipelines_that_keep_the_order_have_the_same_dice_interval(summary):
    kept = ("identity", "ts", "ets", "cms_ap", "cms_op")
    found = [numbers(summary, f"{name}(mean_logits)")["dice"] for name in kept]
    assert all(each == found[0] for each in found)
    assert numbers(summary, "ms(mean_logits)")["dice"] != found[0]


def test_ace_is_pooled_in_a_repeat_and_shown_with_its_range(results, summary):
    values = []
    for unit in results.repeats("blobs", "dc(mean_logits)"):
        curve = sum(np.array([_dense(row.parts["ace"][key]) for key in KEYS]) for row in unit.rows)
        full = curve[0] > 0
        values.append(np.mean(np.abs(curve[1] - curve[2])[full] / curve[0][full]))
    found = numbers(summary, "dc(mean_logits)")["ace"]
    assert np.allclose([found.value, found.low, found.high], [np.mean(values), min(values), max(values)])


KEYS = ("count", "right", "confidence")


def _dense(plain):
    values = np.zeros(plain["shape"])
    values[plain["cells"]] = plain["values"]
    return values


def test_offsets_are_those_of_all_cases_that_were_tested(results, summary):
    (task,) = summary.tasks
    tested = {case_id for unit in results.units for case_id in unit.header.test}
    assert set(task.offsets) == tested
    assert all(value > 0 for value in task.offsets.values())
    assert (task.cal, task.val, task.test, task.cases) == ((4, 4), (2, 2), (6, 6), 12)


def test_comparisons_are_made_of_the_pairs_that_are_there(summary):
    pairs = [(each.first, each.second) for each in summary.comparisons]
    assert pairs == [
        ("ms(mean_logits)", "dc(mean_logits)"),
        ("cdc(mean_logits)", "cms_ap(mean_logits)"),
        ("cdc(mean_logits)", "cms_op(mean_logits)"),
    ]
    assert all(each.sentence.endswith(".") for each in summary.comparisons)


def test_the_summary_is_written_and_read_back(results, summary):
    assert write_summary(results) == summary
    assert read_summary(results.folder) == summary
    row = json.loads((results.folder / "summary.json").read_text("utf-8"))["results"][0]
    assert list(row) == ["task", "test_on", "pipeline", "metrics", "converged"]
    assert list(row["metrics"]["nll"]) == ["value", "low", "high", "cases", "undefined"]
    assert list(row["metrics"]["ace"]) == ["value", "low", "high", "repeats"]


def test_a_pipeline_without_all_its_repeats_is_left_out_with_a_note(results, tmp_path):
    folder = tmp_path / "part"
    shutil.copytree(results.folder, folder)
    (folder / "units" / "blobs" / "repeat_1" / "ts-mean_logits.jsonl").unlink()
    found = summarise(read_results(folder))
    assert "ts(mean_logits)" not in found.pipelines
    assert found.notes[-1] == f"1 of {len(NAMES)} pipelines are not finished"
    for path in (folder / "units" / "blobs" / "repeat_1").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="has no pipeline with all its repeats"):
        summarise(read_results(folder))


def test_pipelines_that_were_tested_on_other_cases_are_refused(results, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(results.folder, folder)
    path = folder / "units" / "blobs" / "repeat_0" / "ts-mean_logits.jsonl"
    header, *rest = path.read_text("utf-8").splitlines()
    changed = json.loads(header)
    changed["test"][0] = "another"
    path.write_text("\n".join([json.dumps(changed), *rest]) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="was tested on other cases than"):
        summarise(read_results(folder))


RNG = np.random.default_rng(0)
BASE = [RNG.uniform(0.2, 0.4, size=20) for _ in range(3)]
FIRST, SECOND = Pipeline("mean_logits", "ms"), Pipeline("mean_logits", "ms_c")


def sentence(nll, dice, ace):
    values = {
        FIRST.title: {"nll": BASE, "dice": BASE},
        SECOND.title: {"nll": [b + nll for b in BASE], "dice": [b + dice for b in BASE]},
    }
    pooled = {FIRST.title: {"ace": [0.1, 0.2, 0.3]}, SECOND.title: {"ace": ace}}
    metrics = find_metrics(("nll", "dice", "ace"))
    (found,) = compare("roads", "", [FIRST, SECOND], values, pooled, metrics, Draws([20, 20, 20], 200), 0.95)
    return found


def test_a_clear_gain_is_better_in_all_cases():
    found = sentence(nll=-0.05, dice=0.02, ace=[0.05, 0.15, 0.2])
    assert {name: each.verdict for name, each in found.metrics.items()} == dict.fromkeys(
        ("nll", "ace", "dice"), "better"
    )
    assert found.sentence == (
        "roads, ms_c(mean_logits) against ms(mean_logits): better on NLL (-0.0500 [-0.0500, -0.0500], better in 60 and "
        "worse in 0 of 60 cases), ACE (-0.0667 [-0.1000, -0.0500], better in 3 and worse in 0 of 3 repeats) and DSC "
        "(+2.00 points [+2.00, +2.00], better in 60 and worse in 0 of 60 cases)."
    )


def test_a_clear_loss_is_worse_and_a_gain_beside_it_is_said_too():
    found = sentence(nll=0.05, dice=0.02, ace=[0.2, 0.3, 0.4])
    text = found.sentence
    assert ": better on DSC (+2.00 points" in text
    assert "; worse on NLL (+0.0500 [+0.0500, +0.0500], better in 0 and worse in 60 of 60 cases) and ACE (" in text
    assert "no difference" not in text


def test_equal_numbers_are_no_difference():
    found = sentence(nll=0.0, dice=0.0, ace=[0.1, 0.2, 0.3])
    assert found.sentence.startswith(
        "roads, ms_c(mean_logits) against ms(mean_logits): no difference on any metric: NLL (+0.0000 [+0.0000, +0.0000]"
    )


def test_noise_around_zero_is_no_difference():
    noise = [RNG.normal(0, 0.05, size=20) for _ in range(3)]
    found = sentence(nll=0.0, dice=-0.01, ace=[0.05, 0.25, 0.3])
    assert found.metrics["ace"].verdict == "no difference"
    assert found.metrics["dice"].verdict == "worse"
    values = {
        FIRST.title: {"nll": BASE},
        SECOND.title: {"nll": [b + n - n.mean() for b, n in zip(BASE, noise, strict=True)]},
    }
    (found,) = compare("t", "", [FIRST, SECOND], values, {}, find_metrics(("nll",)), Draws([20] * 3, 200), 0.95)
    assert found.metrics["nll"].verdict == "no difference"


def test_a_number_that_is_nowhere_defined_is_said_to_be_so():
    found = compare_repeats([None, 0.1], [0.2, None], "lower")
    assert found.verdict == "not defined"
    comparison = sentence(nll=-0.05, dice=np.nan, ace=[None, None, None])
    assert comparison.sentence.endswith("; not defined: ACE and DSC.")


def test_pairs_of_which_one_is_missing_are_left_out():
    assert compare("t", "", [FIRST], {}, {}, {}, Draws([3]), 0.95) == []


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (-2, -1, "lower", "better"),
        (-2, -1, "higher", "worse"),
        (1, 2, "lower", "worse"),
        (1, 2, "higher", "better"),
        (-1, 0, "lower", "no difference"),
        (0, 0, "higher", "no difference"),
    ],
)
def test_an_interval_must_leave_out_zero(low, high, better, verdict):
    assert verdict_of(Difference((low + high) / 2, low, high, 5, 0, 0, 0, 0), better) == verdict
