"""Summaries: means and intervals by hand, shared draws, what is left out, and verdicts on data made to have one."""

import json
import shutil

import numpy as np
import pytest

from segcal.benchmark.protocol import Pipeline, parse_protocol
from segcal.benchmark.results import read_results
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.summaries import compare, compare_repeats, pairs_of, summarise, write_summary
from segcal.errors import ArtifactError, InputError
from segcal.metrics import find_metrics
from segcal.resample import Draws
from segcal.summary import read_summary

NAMES = [("mean_logits", name) for name in ("identity", "ts", "cms_ap", "cms_op", "cdc", "ms", "dc")]


@pytest.fixture(scope="module")
def results(data, tmp_path_factory):
    root, blobs, _ = data
    document = {
        "tasks": [blobs],
        "pipelines": [{"pooling": how, "calibrator": name} for how, name in NAMES],
        "repeats": 2,
        "split": {"cal": 4, "val": 2},
        "fit": {"lam": 1e-3, "mu": 1e-3},
        "bootstrap": {"replicates": 100, "seed": 3},
        "compare": [["identity", "cms_op(mean_logits)"], ["ms", "dc"]],
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
    (task,) = summary.tasks
    assert set(task.offsets) == {case_id for unit in results.units for case_id in unit.header.test}
    assert all(value > 0 for value in task.offsets.values())
    assert (task.cal, task.val, task.test, task.cases) == ((4, 4), (2, 2), (6, 6), 12)


def test_few_test_cases_are_noted_and_ece_is_also_that_of_other_libraries(results, summary):
    assert (
        "blobs is tested on 3 groups per repeat: intervals over fewer than 20 are unreliable; use at least 5 repeats"
        in summary.notes
    )
    for unit in results.repeats("blobs", "ts(mean_logits)"):
        curve = unit.total.tables.reliability[15]["all"]
        gaps = np.abs(curve.confidence - curve.right).sum() / curve.count.sum()  # 15 bins, all voxels together
        found = numbers(summary, "ts(mean_logits)")["ece_field"]
        assert found.low - 1e-12 <= gaps <= found.high + 1e-12
    assert numbers(summary, "ts(mean_logits)")["ece_field"].repeats == 2


def test_pipelines_that_keep_the_order_have_the_same_dice_interval(summary):
    kept = ("identity", "ts", "cms_ap", "cms_op")
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


def test_comparisons_are_paired_differences_of_the_pairs_that_are_there(results, summary):
    pairs = [(each.first, each.second) for each in summary.comparisons]
    assert pairs == [
        ("identity(mean_logits)", "cms_op(mean_logits)"),
        ("ms(mean_logits)", "dc(mean_logits)"),
        ("cdc(mean_logits)", "cms_ap(mean_logits)"),
        ("cdc(mean_logits)", "cms_op(mean_logits)"),
    ]
    assert [each.about for each in summary.comparisons] == ["asked for", "asked for"] + 2 * ["decision preservation"]
    assert all(each.sentence.endswith(".") for each in summary.comparisons)
    gap = summary.comparisons[0].metrics["nll"].difference
    repeats = [results.repeats("blobs", f"{name}(mean_logits)") for name in ("identity", "cms_op")]
    gaps = [np.subtract(second.numbers("nll"), first.numbers("nll")) for first, second in zip(*repeats, strict=True)]
    assert gap.value == pytest.approx(np.mean([each.mean() for each in gaps]), abs=1e-12)
    assert gap.better == sum((each < 0).sum() for each in gaps)
    assert gap.low <= gap.value <= gap.high


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
    path = folder / "units" / "blobs" / "repeat_1" / "ts-mean_logits.jsonl"
    header, rest = path.read_text("utf-8").split("\n", 1)
    changed = json.loads(header)
    changed["test"][0] = "another"
    path.write_text(f"{json.dumps(changed)}\n{rest}", encoding="utf-8")
    with pytest.raises(ArtifactError, match="was tested on other cases than"):
        summarise(read_results(folder))
    path.unlink()
    found = summarise(read_results(folder))
    assert "ts(mean_logits)" not in found.pipelines
    assert found.notes[-1] == f"1 of {len(NAMES)} pipelines are not finished"
    for path in (folder / "units" / "blobs" / "repeat_1").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="has no pipeline with all its repeats"):
        summarise(read_results(folder))


RNG = np.random.default_rng(0)
BASE = [RNG.uniform(0.2, 0.4, size=20) for _ in range(3)]
FIRST, SECOND = Pipeline("mean_logits", "ms"), Pipeline("mean_logits", "ms_c")
PAIR = [(FIRST.title, SECOND.title, "translation invariance")]


def compared(metrics, values, pooled=()):
    """Compare two pipelines whose values are pairs, by metric."""
    single, together = (
        {title: {name: pair[number] for name, pair in given.items()} for number, title in enumerate(PAIR[0][:2])}
        for given in (values, dict(pooled))
    )
    draws = Draws([len(column) for column in values["nll"][0]], 200)
    (found,) = compare("roads", "", PAIR, single, together, find_metrics(metrics), draws, 0.95)
    return found


def shifted(nll, dice, ace):
    values = {"nll": (BASE, [b + nll for b in BASE]), "dice": (BASE, [b + dice for b in BASE])}
    return compared(("nll", "dice", "ace"), values, {"ace": ([0.1, 0.2, 0.3, 0.4, 0.5][: len(ace)], ace)})


@pytest.mark.parametrize(
    ("gaps", "verdicts", "sentence"),
    [
        (
            (-0.05, 0.02, [0.05, 0.15, 0.2, 0.35, 0.45]),
            ["better", "better", "better"],
            "better on NLL (-0.0500 [-0.0500, -0.0500], better in 60 and worse in 0 of 60 tests), ACE (-0.0600, "
            "range [-0.1000, -0.0500], better in 5 and worse in 0 of 5 repeats) and DSC (+2.00 points [+2.00, "
            "+2.00], better in 60 and worse in 0 of 60 tests).",
        ),
        (
            (0.05, 0.02, [0.2, 0.3, 0.4]),
            ["worse", "better", "worse"],
            "better on DSC (+2.00 points [+2.00, +2.00], better in 60 and worse in 0 of 60 tests); worse on NLL "
            "(+0.0500 [+0.0500, +0.0500], better in 0 and worse in 60 of 60 tests); fewer than 5 repeats, so without a "
            "verdict: ACE (+0.1000, range [+0.1000, +0.1000], better in 0 and worse in 3 of 3 repeats).",
        ),
        (
            (0.0, 0.0, [0.1, 0.2, 0.3]),
            ["no difference"] * 3,
            "equal in every test.",
        ),
        (
            (-0.05, np.nan, [None, None, None]),
            ["better", "not defined", "not defined"],
            "better on NLL (-0.0500 [-0.0500, -0.0500], better in 60 and worse in 0 of 60 tests); not defined: ACE and "
            "DSC.",
        ),
    ],
)
def test_the_verdict_on_a_made_difference_is_said_in_a_sentence(gaps, verdicts, sentence):
    found = shifted(*gaps)
    assert [found.metrics[name].verdict for name in ("nll", "dice", "ace")] == verdicts
    assert found.sentence == f"roads, ms_c(mean_logits) against ms(mean_logits): {sentence}"


def test_noise_around_zero_repeats_that_disagree_and_two_cases_make_no_difference():
    found = shifted(nll=0.0, dice=-0.01, ace=[0.05, 0.25, 0.3])
    assert (found.metrics["ace"].verdict, found.metrics["dice"].verdict) == ("no difference", "worse")
    noise = [RNG.normal(0, 0.05, size=20) for _ in range(3)]
    noisy = [b + n - n.mean() for b, n in zip(BASE, noise, strict=True)]
    found = compared(("nll",), {"nll": (BASE, noisy)})
    assert found.metrics["nll"].verdict == "no difference"
    assert ": no measurable difference on any metric: NLL (" in found.sentence
    found = compared(("nll", "dice"), {"nll": (BASE, noisy), "dice": (BASE, BASE)})
    assert "DSC" not in found.sentence  # equal in every test
    assert compare_repeats([None, 0.1], [0.2, None], "lower").verdict == "not defined"
    found = compared(("nll",), {"nll": ([np.array([0.1, 0.2])], [np.array([0.3, 0.4])])})
    assert found.metrics["nll"].difference.value == pytest.approx(0.2)
    assert found.metrics["nll"].verdict == "not defined"
    assert found.sentence.endswith(": too few for an interval: NLL.")


def test_pairs_are_of_pipelines_that_are_there_and_what_was_asked_for_comes_first_and_once():
    assert pairs_of([FIRST], []) == []
    assert pairs_of([FIRST, SECOND], []) == PAIR
    assert pairs_of([FIRST], [(FIRST.title, "gone(mean_logits)")]) == []
    asked = [(SECOND.title, FIRST.title), (FIRST.title, SECOND.title)]
    assert pairs_of([FIRST, SECOND], asked) == [(*pair, "asked for") for pair in asked]
