"""The plans, and the story from nothing to its end on a plan as small as can be."""

import io
import json
from dataclasses import replace

import pytest
from msgspec import convert, structs
from rich.console import Console

from segcal.benchmark.protocol import Pipeline, Protocol, StudyOptions, paper_pipelines
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.demo.story import (
    QUICK_STUDIES,
    Plan,
    default_sentence,
    full_plan,
    padding_sentence,
    predict_all,
    quick_plan,
    shift_sentence,
    short_verdict,
    tell_story,
)
from segcal.demo.tasks import TASKS
from segcal.fitting import FitConfig
from segcal.report.verdict import Change, Facts, FlipCount, MeanCalibration
from segcal.studies import STUDIES
from segcal.studies.padding import PaddingData
from segcal.summary import Bootstrap, Difference

# Some of the studies of the quick plan: each has tests of its own.
TOLD = ("offsets", "flips", "covariate_shift", "padding")


@pytest.mark.parametrize("make", [quick_plan, full_plan])
def test_all_embedded_tasks_are_fitted_and_corrupted_copies_have_their_cases(make):
    protocol = make().protocol
    tasks = {task.name: task for task in protocol.tasks}
    assert {task.name for task in protocol.tasks if not task.test_only} == set(TASKS)
    for name in TASKS:
        division = protocol.division(tasks[name])
        assert division.cal + division.val + division.test == tasks[name].cases
    targets = [(task, tasks[target]) for task in protocol.tasks for target in task.test_on]
    assert targets
    for task, copy in targets:
        assert copy.test_only
        assert copy.corruption in ("mild", "strong")
        assert (copy.embedded, copy.cases, copy.first) == (task.embedded, task.cases, task.first)
    assert not tasks["tumour"].test_on


def test_the_quick_plan_says_what_it_reduced_and_the_full_one_reduces_nothing():
    quick, full = quick_plan(2), full_plan(2)
    assert {*TOLD} < {*quick.protocol.studies} == {*QUICK_STUDIES}
    text = " ".join(quick.reduced)
    assert quick.protocol.repeats == 1
    assert "one split" in text
    assert f"{quick.protocol.fit.voxels:,} voxels" in text
    assert all(name in text for name in STUDIES if name not in quick.protocol.studies)
    assert full.reduced == ()
    assert full.protocol.study_options == StudyOptions()
    assert full.protocol.studies == tuple(STUDIES)
    assert (full.protocol.repeats, full.protocol.pipelines) == (3, paper_pipelines())
    assert quick.protocol.workers == full.protocol.workers == 2


@pytest.fixture(scope="module")
def plan():
    """One task, a corrupted copy of it, two networks."""
    facts = {"cases": 7, "members": 2}
    protocol = Protocol(
        tasks=(
            EmbeddedTask("roads", "roads", split=Division(3, 2, 2), test_on=("roads_mild",), **facts),
            EmbeddedTask("roads_mild", "roads", corruption="mild", test_only=True, **facts),
        ),
        pipelines=(
            Pipeline("single", "identity"),
            *(Pipeline("mean_logits", name) for name in ("identity", "ts", "ms", "conic")),
        ),
        repeats=1,
        fit=FitConfig(voxels=400, lam=1e-3, mu=1e-3),
        bootstrap=Bootstrap(replicates=60),
        studies=TOLD,
        study_options=StudyOptions(cases=1, sizes=(1,)),
    )
    return Plan(protocol, ("one task instead of three",))


@pytest.fixture(scope="module")
def told(plan, tmp_path_factory):
    """The small demonstration: its folder, its story and the steps it reported."""
    folder, steps = tmp_path_factory.mktemp("demo"), []
    return folder, tell_story(plan, folder, steps.append), steps


def test_everything_is_written_and_predictions_are_cleared_away(told):
    folder, story, steps = told
    assert all(path.exists() for path in story.written)
    assert not list(folder.glob(".segcal*"))
    stems = {path.stem for path in (folder / "tables").glob("*.md")}
    assert {"demo", "table4_results", "table8_roads", "table5_offsets", "figure4_flips", "shift_roads"} <= stems
    studies = {path.stem for path in (folder / "studies").glob("*.json")}
    assert studies == set(TOLD) - {"padding"}
    assert story.left_out == {"padding": "no task has logits with their offset, a mask and one label per voxel"}
    document = json.loads((folder / "verdict.json").read_text())
    assert document["verdict"] == list(story.verdict)
    assert document["chosen"] == story.chosen
    assert document["reduced"] == ["one task instead of three"]
    assert steps[0].message == "predicting roads"
    assert (steps[-1].done, steps[-1].total) == (len(TOLD), len(TOLD))
    predicted = [step for step in steps if step.message.startswith("predicting")]
    assert predicted[-1].done == predicted[-1].total == 14


def test_the_verdict_speaks_of_confidence_default_changes_mask_and_shift(told):
    _, story, _ = told
    heads = [sentence.split(":")[0] for sentence in story.verdict]
    default = story.chosen["roads"]
    assert heads == ["roads"] * (3 if default == "identity" else 4) + ["roads_mild"]
    assert "before calibration the ensemble was overconfident" in story.verdict[0]
    assert "chosen on 2 validation cases: NLL" in story.verdict[1]
    assert "roads: the mask did not change: 0 of 86,016 voxels. Matrix scaling changes" in story.verdict[-2]


def test_the_short_table_sets_temperature_conic_and_matrix_scaling_beside_nothing(told):
    folder, story, _ = told
    default = story.chosen["roads"]
    rows = {
        "No calibration": "identity", "Temperature scaling": "ts", "Conic scaling": "conic", "Matrix scaling": "ms"
    }  # fmt: skip
    marked = [f"{title} (default)" if name == default else title for title, name in rows.items()]
    assert [row.title for row in story.table.rows] == marked
    assert [column.title for column in story.table.columns] == ["NLL", "DSC", "ECE", "BA-ECE", "ACE", "Flip"]
    flips = [row.cells[-1].value for row in story.table.rows]
    assert flips[:3] == [None] * 3
    assert flips[3] > 0
    # A terminal of 80 columns has it in one piece.
    with io.StringIO() as text:
        Console(file=text, width=80).print(story.table)
        assert text.getvalue().count("No calibration") == 1
    assert "Conic scaling" in (folder / "tables" / "demo.csv").read_text("utf-8")


def test_told_again_it_computes_no_unit_and_no_study_anew_and_leaves_what_is_the_user_s(told, plan):
    folder, story, _ = told
    (folder / "predictions").mkdir()
    (folder / "predictions" / "a.npy").write_bytes(b"precious")
    before = {path: path.stat().st_mtime_ns for path in (folder / "units").rglob("*.jsonl")}
    studies = {path: path.stat().st_mtime_ns for path in (folder / "studies").glob("*.json")}
    again = tell_story(plan, folder)
    assert again.verdict == story.verdict
    assert (folder / "predictions" / "a.npy").read_bytes() == b"precious"
    assert {path: path.stat().st_mtime_ns for path in (folder / "units").rglob("*.jsonl")} == before
    assert {path: path.stat().st_mtime_ns for path in (folder / "studies").glob("*.json")} == studies


def test_predictions_of_processes_are_those_of_one(tmp_path, plan):
    task = EmbeddedTask("roads", "roads", cases=2, members=1)
    folders = {workers: tmp_path / str(workers) for workers in (1, 2)}
    for workers, folder in folders.items():
        steps = []
        protocol = structs.replace(plan.protocol, tasks=(task,), workers=workers)
        predict_all(replace(plan, protocol=protocol), folder, steps.append)
        assert [(step.done, step.total) for step in steps] == [(1, 2), (2, 2)]
    kept = list(folders[1].rglob("*.safetensors"))
    assert len(kept) == 2
    for path in kept:
        assert path.read_bytes() == (folders[2] / path.relative_to(folders[1])).read_bytes()


def test_padding_is_told_with_what_the_check_says():
    ways = {
        way: {"ece": {"value": ece, "low": None, "high": None}} for way, ece in (("masked", 0.01), ("unmasked", 0.3))
    }
    plain = {
        "padded_voxel": {"confidence": 1, "gap": 1, "nll": 1},
        "calibrators": {"identity": ways},
        "check": {"cases": 4, "caught": 4, "mean_share": 0.57, "caught_inside_the_mask": 0},
        "temperature": {"masked": 1.5, "unmasked": 0.17},
    }
    text = padding_sentence(convert(plain, PaddingData))
    assert "(57 % of the voxels)" in text
    assert "ECE goes from 0.0100 to 0.3000 and the temperature from 1.50 to 0.17" in text
    assert text.endswith("segcal check reports it in 4 of 4 cases.")
    assert "temperature" not in padding_sentence(convert(plain | {"temperature": {}}, PaddingData))


def change(before, after, low, high, better=25, cases=30):
    gap = Difference(after - before, low, high, cases, 0, better, 1, cases - better - 1)
    return Change(before, after, gap)


@pytest.fixture
def short():
    better = change(0.20, 0.15, -0.08, -0.02, 5, 6)
    return Facts(
        task="roads",
        calibrator="cms_ap",
        title="Mask-keeping scaling",
        keeps=True,
        everywhere=MeanCalibration(0.97, 0.94),
        boundary=MeanCalibration(0.80, 0.85),
        change={"nll": better, "ece": better, "ba_ece": better, "dice": change(0.7, 0.7, 0, 0, 5, 6)},
        flips=FlipCount(5000, (0, 0, 0)),
        matrix_flips=FlipCount(5000, (30, 15, 5)),
        matrix_change={"dice": change(0.70, 0.68, -0.03, -0.01)},
    )


def test_what_was_wrong_and_the_mask_are_said(short):
    text = short_verdict(short)[0]
    assert "overconfident by 3.0 points (mean confidence 97.0 %, accuracy 94.0 %)" in text
    assert "less than 3 voxels from a boundary it was underconfident by 5.0 points" in text
    even = replace(short, everywhere=MeanCalibration(0.94, 0.9395), boundary=None)
    assert short_verdict(even)[0] == (
        "roads: before calibration the ensemble was calibrated on average (mean confidence 94.0 %, accuracy 94.0 %)."
    )
    plain = replace(short, matrix_flips=None)
    assert short_verdict(plain)[2] == "roads: the mask did not change: 0 of 5,000 voxels."
    changed = replace(plain, flips=FlipCount(5000, (1, 0, 1)))
    assert short_verdict(changed)[2] == "roads: the mask changed in 2 of 5,000 voxels."


def test_better_worse_no_difference_and_no_calibrator_are_said(short):
    text = short_verdict(short)[1]
    assert text.startswith("roads: on 6 test cases cms_ap improves NLL (-0.0500 [-0.0800, -0.0200]), ECE (")
    mixed = {"ece": change(0.1, 0.12, 0.01, 0.03), "ba_ece": change(0.1, 0.11, -0.01, 0.03)}
    text = short_verdict(replace(short, change=short.change | mixed))[1]
    assert "improves NLL" in text
    assert "; worsens ECE (+0.0200 [" in text
    assert "; does not measurably change BA-ECE" in text
    few = change(0.1, 0.12, None, None)
    assert "ECE (undefined" in short_verdict(replace(short, change={"ece": few}))[1]
    assert not any("improves NLL" in each for each in short_verdict(replace(short, calibrator="identity")))


def test_the_default_is_said_with_what_it_was_compared_to():
    nll = {"identity(mean_logits)": 0.2, "ts(mean_logits)": 0.15, "conic(mean_logits)": 0.1}
    pipelines = {name: Pipeline("mean_logits", name) for name in ("identity", "ts", "conic")}
    assert default_sentence("roads", pipelines["conic"], nll, 15, 1.84) == (
        "roads: the default is conic, chosen on 15 validation cases: NLL 0.1000, beside "
        "0.1500 with temperature 1.84 (overconfident before) and 0.2000 uncalibrated."
    )
    assert default_sentence("roads", pipelines["ts"], nll, 15, 0.8) == (
        "roads: the default is temperature 0.80 (underconfident before), chosen on 15 validation cases: NLL 0.1500, "
        "beside 0.2000 uncalibrated."
    )
    assert "the default is no calibration" in default_sentence("roads", pipelines["identity"], nll, 15, 0.8)
    alone = {"identity(mean_logits)": 0.2}
    assert default_sentence("roads", pipelines["identity"], alone, 15, None).endswith("validation cases: NLL 0.2000.")


def test_what_matrix_scaling_flips_is_said_with_its_effect_on_dice(short):
    assert short_verdict(short)[2] == (
        "roads: the mask did not change: 0 of 5,000 voxels. Matrix scaling changes 50 labels (1.00 %): "
        "60 % right to wrong, 30 % wrong to right, 10 % wrong to wrong. It worsens Dice (-2.00 points [-3.00, -1.00])."
    )
    gain = replace(short, matrix_change={"dice": change(0.7, 0.71, 0.005, 0.02)})
    assert "It improves Dice (+1.00 points [+0.50, +2.00])" in short_verdict(gain)[2]
    none = replace(short, matrix_flips=FlipCount(5000, (0, 0, 0)))
    assert short_verdict(none)[2].endswith("Matrix scaling changes no label either.")


def test_a_shift_is_set_beside_the_clean_cases(short):
    worse = change(0.40, 0.45, 0.01, 0.09)
    shifted = replace(short, task="roads_strong", change=short.change | {"ece": worse})
    assert shift_sentence(short, shifted) == (
        "roads_strong: ECE 0.4000 without and 0.4500 with cms_ap, fitted on clean cases (clean: 0.2000 without and "
        "0.1500 with cms_ap). Under this shift cms_ap worsens ECE and improves NLL."
    )
