"""The story from nothing to its end, on a plan as small as can be."""

import json
from dataclasses import replace

from msgspec import convert, structs

from segcal.benchmark.tasks import EmbeddedTask
from segcal.demo.plan import QUICK_STUDIES
from segcal.demo.story import padding_sentence, predict_all, tell_story
from segcal.studies.padding import PaddingData


def test_everything_is_written_and_predictions_are_cleared_away(told):
    folder, story, _ = told
    assert all(path.exists() for path in story.written)
    assert not list(folder.glob(".segcal*"))
    stems = {path.stem for path in (folder / "tables").glob("*.md")}
    assert {"demo", "table4_results", "table8_roads", "table5_offsets", "figure4_flips", "shift_roads"} <= stems
    studies = {path.stem for path in (folder / "studies").glob("*.json")}
    assert studies == set(QUICK_STUDIES) - {"padding"}
    assert story.left_out == {"padding": "no task has logits with their offset and a mask"}


def test_the_verdict_is_kept_as_it_was_told(told):
    folder, story, _ = told
    document = json.loads((folder / "verdict.json").read_text())
    assert document["verdict"] == list(story.verdict)
    assert document["chosen"] == story.chosen
    assert document["reduced"] == ["one task instead of three"]


def test_the_verdict_speaks_of_confidence_default_mask_flips_and_shift(told):
    _, story, _ = told
    heads = [sentence.split(":")[0] for sentence in story.verdict]
    assert heads == ["roads"] * 4 + ["roads_mild"]
    assert "before calibration the ensemble was overconfident" in story.verdict[0]
    assert story.verdict[2].startswith("roads: the mask did not change: 0 of 86,016 voxels")
    assert "matrix scaling would have flipped" in story.verdict[3]


def test_the_short_table_sets_the_default_beside_nothing_and_matrix_scaling(told):
    _, story, _ = told
    rows = [row.title for row in story.table.rows]
    assert rows == ["uncalibrated", f"default: {story.chosen['roads']}", "matrix scaling: ms"]
    assert [column.title for column in story.table.columns] == ["NLL", "DSC", "ECE", "BA-ECE", "ACE", "Flip"]
    flips = [row.cells[-1].value for row in story.table.rows]
    assert flips[:2] == [None, None]
    assert flips[2] > 0


def test_progress_goes_from_predicting_to_the_studies(told):
    _, _, steps = told
    assert steps[0].message == "predicting roads"
    assert (steps[-1].done, steps[-1].total) == (len(QUICK_STUDIES), len(QUICK_STUDIES))
    predicted = [step for step in steps if step.message.startswith("predicting")]
    assert predicted[-1].done == predicted[-1].total == 14


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
    assert "ECE of 0.0100 into 0.3000 and the fitted temperature from 1.50 to 0.17" in text
    assert text.endswith("segcal check reports it in 4 of 4 cases.")
    assert "temperature" not in padding_sentence(convert(plain | {"temperature": {}}, PaddingData))
