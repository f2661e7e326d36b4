"""The contract of a study, the registry, the setting, and a benchmark from its protocol to its studies."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import Struct

from segcal.benchmark.protocol import Pipeline, parse_protocol
from segcal.benchmark.tasks import OpenTask
from segcal.cases import ArrayCases
from segcal.errors import ArtifactError, InputError
from segcal.fitting.comparison import compare, read_poolings
from segcal.kernels.loops import one_thread
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.studies import STUDIES, USUAL, choose_studies
from segcal.studies.run import read_outcomes, run, run_studies
from segcal.studies.study import NothingToStudyError, Study, choose_default

TASK = {"name": "x", "embedded": "roads"}


class Toy(Struct):
    numbers: list[float | None]


TABLE = Table("A", "B", (Column("C"),), (Group("", (Row("d", (Cell(0.5),)),)),))
STUDY = Study("a toy", "", "nothing", True, lambda setting: Toy([]), Toy, lambda data: {"stem": TABLE})


def test_data_and_tables_are_written_and_nothing_else_is_left(tmp_path):
    paths = STUDY.write(tmp_path, "toy", Toy([1, None]), "abc")
    header = {"schema": 1, "study": "toy", "digest": "abc", "tables": ["stem.md", "stem.csv", "stem.tex"]}
    assert json.loads(paths[0].read_text()) == header | {"numbers": [1, None]}
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["studies/toy.json", "tables/stem.csv", "tables/stem.md", "tables/stem.tex"]
    assert "0.500" in (tmp_path / "tables" / "stem.md").read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        STUDY.write(tmp_path, "toy", Toy([float("nan")]))


def test_it_is_read_back_only_whole_and_with_its_digest(tmp_path):
    assert STUDY.read(tmp_path, "toy", "abc") is None
    paths = STUDY.write(tmp_path, "toy", Toy([1, None]), "abc")
    assert STUDY.read(tmp_path, "toy", "abc") == Toy([1, None])
    assert STUDY.read(tmp_path, "toy", "abd") is None
    paths[1].unlink()
    assert STUDY.read(tmp_path, "toy", "abc") is None
    for damaged in ("{}", "["):
        paths[0].write_text(damaged)
        assert STUDY.read(tmp_path, "toy", "abc") is None


def test_a_protocol_has_the_usual_studies_unless_it_names_others():
    def chosen(**keys):
        return choose_studies(parse_protocol({"tasks": [TASK], **keys}).studies)

    assert chosen() == USUAL
    assert not {"calibration_size", "padding"} & set(USUAL)  # which fit again
    assert chosen(studies=[]) == ()
    assert chosen(studies="all") == tuple(STUDIES)
    assert chosen(studies=["padding", "flips", "padding"]) == ("padding", "flips")
    for wrong in (["weather"], [3], ["flips", "all"]):
        with pytest.raises(InputError, match=r"no study is named .*\. Choose one of: offsets, flips"):
            chosen(studies=wrong)
    assert all(study.shows and study.costs for study in STUDIES.values())


def test_all_studies_write_their_files_from_which_they_are_read(setting, studied):
    assert {path.stem for path in (setting.results.folder / "studies").glob("*.json")} == set(STUDIES)
    stems = {path.stem for path in (setting.results.folder / "tables").glob("*.md")}
    assert {"table5_offsets", "figure4_flips", "figure5_size_toy", "figure6_binning", "padding"} <= stems
    found = read_outcomes(setting.results.folder)
    assert {name: study.tables(found[name]) for name, study in STUDIES.items()} == {
        name: study.tables(studied[name]) for name, study in STUDIES.items()
    }
    path = setting.results.folder / "studies" / "binning.json"
    before = path.read_bytes()
    try:
        path.write_text("{}")
        with pytest.raises(ArtifactError, match=r"binning\.json is not readable .* Delete it and run the"):
            read_outcomes(setting.results.folder)
    finally:
        path.write_bytes(before)


def test_a_finished_study_is_read_back_and_one_with_other_options_or_units_is_done_anew(setting, changed, monkeypatch):
    first, _ = run_studies(setting, ["binning"])
    folder = setting.results.folder
    before = (folder / "studies" / "binning.json").read_bytes()
    real = STUDIES["binning"]
    monkeypatch.setitem(STUDIES, "binning", real._replace(run=lambda setting: pytest.fail("done anew")))
    assert run_studies(setting, ["binning"]) == (first, {})
    assert (folder / "studies" / "binning.json").read_bytes() == before
    with pytest.raises(pytest.fail.Exception, match="done anew"):
        run_studies(changed({"cases": 1}), ["binning"])
    unit = folder / setting.results.units[0].unit.path  # other numbers, and the same digest
    header, row, rest = (text := unit.read_text("utf-8")).split("\n", 2)
    other = json.loads(row)
    other["metrics"]["ece"] += 0.25
    try:
        unit.write_text("\n".join([header, json.dumps(other), rest]), "utf-8")
        with pytest.raises(pytest.fail.Exception, match="done anew"):
            run_studies(setting, ["binning"])
    finally:
        unit.write_text(text, "utf-8")
    (folder / "tables" / "figure6_binning.md").unlink()
    with pytest.raises(pytest.fail.Exception, match="done anew"):
        run_studies(setting, ["binning"])
    monkeypatch.setitem(STUDIES, "binning", real)
    assert list(run_studies(changed(studies=("binning",)))[0]) == ["binning"]
    with pytest.raises(InputError, match=r"no study is named 'weather'\. Choose one of: offsets, flips"):
        run_studies(setting, ["weather"])


def open_plain(setting, has_model=False):
    """Open tasks without their models, or as probabilities."""

    def probabilities(*_, once=False):
        return OpenTask(ArrayCases([np.full((2, 3, 4), 0.5)], [np.zeros((3, 4), int)], kind="probs"), True)

    return probabilities if has_model else lambda *key, once=False: setting.protocol.embedded(*key)._replace(model=None)


def calibrator_is(*names):
    return lambda each: each.unit.pipeline.calibrator in names


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("offsets", lambda s: {"embedded": open_plain(s, True)}, "no task has logits with their offset"),
        ("flips", lambda s: {"units": calibrator_is("ts")}, "no pipeline may flip a label"),
        ("calibration_size", lambda s: {"options": {"size_tasks": ("absent",)}}, "two cases beside the test"),
        ("binning", lambda s: {"rows": lambda row: False}, "the benchmark has no ece and ace among its metrics"),
        ("domain_shift", lambda s: {"rows": lambda row: not row.test_on}, "no task names another one in test_on"),
        ("covariate_shift", lambda s: {"tasks": s.protocol.tasks[1:2]}, "no task has a corrupted copy of its cases"),
        ("reliability", lambda s: {"units": calibrator_is("identity")}, "no calibrated pipeline has an ACE"),
        (
            "padding",
            lambda s: {"tasks": s.protocol.tasks[1:2]},
            "no task has logits with their offset, a mask and one label per voxel",
        ),
        ("worst_cases", lambda s: {"tasks": s.protocol.tasks[2:]}, "no task was fitted"),
        ("regions", lambda s: {"units": calibrator_is("ts", "ms")}, "no task has uncalibrated mean logits"),
        ("detection", lambda s: {"units": calibrator_is("ms")}, "one of identity, ts, cms_ap of the mean logits"),
        (
            "failure_detection",
            lambda s: {"units": lambda each: each.unit.pipeline.pooling == "single"},
            "no task has mean logits and 2 labelled test cases",
        ),
        ("crop_size", lambda s: {"embedded": open_plain(s)}, "no task has a model that can be run"),
        ("model_size", lambda s: {"options": {"model_sizes": {"toy": 5}}}, "model_sizes names fewer than two tasks"),
    ],
)
def test_a_benchmark_that_a_study_has_nothing_to_do_with_is_told_why(setting, changed, name, change, reason):
    with pytest.raises(NothingToStudyError, match=reason):
        STUDIES[name].run(changed(**change(setting)))


def test_divisions_and_calibrators_are_those_of_the_results(setting):
    assert [task.name for task in setting.tasks] == ["toy", "plain"]  # that were fitted on
    task, pipeline = setting.tasks[0], Pipeline("mean_logits", "ms")
    for repeat, unit in enumerate(setting.results.repeats("toy", pipeline.title)):
        split = setting.split(task, "mean_logits", repeat)
        parts = [getattr(unit.header, part) for part in ("cal", "val", "test")]
        assert [sorted(part.ids) for part in split] == list(map(list, parts))
    calibrator = setting.calibrator(task, pipeline, repeat=1)
    for row in unit.rows[:2]:
        case = setting.protocol.open(task, "mean_logits").cases.read(row.case)
        with torch.no_grad():
            log_probs = calibrator(case.logits[None])[0].numpy()
        labels = case.labels.numpy()
        own = [-log_probs[labels[i, j], i, j] for i, j in zip(*np.nonzero(labels >= 0), strict=True)]
        assert row.metrics["nll"] == pytest.approx(np.mean(own), rel=1e-5)
    assert setting.calibrator(task, Pipeline("mean_logits", "identity")).num_parameters() == 0


def test_the_choice_is_the_one_that_a_fit_would_make(setting):
    # The choice is the one of `segcal fit` with the validation cases of the benchmark.
    task = setting.tasks[0]
    chosen, validation = choose_default(setting, task)
    split = setting.split(task, "mean_logits")
    config = replace(setting.protocol.fit, voxels="all")  # a benchmark measures on all of them
    with one_thread():
        names = ["identity", "ts", "cms_ap"]
        expected = compare(names, read_poolings(split.cal, split.val, config), config).decision
    assert chosen.calibrator == expected.chosen.name
    for row in expected.candidates:
        assert validation[f"{row.name}(mean_logits)"] == pytest.approx(row.nll, rel=1e-3)
    assert "ms(mean_logits)" not in validation


@pytest.fixture
def blobs(tmp_path):
    """Return a folder with a task of one member, and its table."""
    rng = np.random.default_rng(0)
    for name in ("labels", "member"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for number in range(12):
        rough = rng.normal(size=(3, 13, 11)).cumsum(1).cumsum(2)
        np.save(tmp_path / "data" / "labels" / f"{number}.npy", rough.argmax(0).astype(np.uint8))
        noisy = 0.7 * rough + 2 * rng.normal(size=rough.shape)
        np.save(tmp_path / "data" / "member" / f"{number}.npy", noisy.astype(np.float32))
    return tmp_path / "data", {"name": "blobs", "members": ["member"], "labels": "labels", "kind": "logits"}


def test_results_tables_and_studies_are_there_and_a_second_run_does_nothing(blobs, tmp_path):
    root, table = blobs
    document = {
        "tasks": [table],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in ("identity", "ts")],
        "split": {"cal": 4, "val": 2},
        "repeats": 2,
        "metrics": ["nll", "ece", "ace"],
        "bootstrap": {"replicates": 20},
        "studies": ["binning", "padding"],
    }
    protocol = parse_protocol(document, root)
    folder = tmp_path / "results"
    steps, failures = [], []
    whole = run(protocol, folder, progress=steps.append, failed=failures.append)
    assert list(whole.studies) == ["binning"]
    assert whole.left_out == {"padding": "no task has logits with their offset, a mask and one label per voxel"}
    assert failures == []
    assert steps[0].message == "reading cases of blobs"
    assert [step.message for step in steps][-3:] == ["study: binning", "study: padding", "studies finished"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")}
    assert len(before) == 4
    files = {path.name for path in (folder / "tables").iterdir()}
    assert {"table4_results.tex", "figure6_binning.csv"} <= files
    again = run(protocol, folder)
    assert again.setting.summary == whole.setting.summary
    assert whole.setting.results.protocol.studies == ("binning", "padding")
    assert again.studies == whole.studies
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")} == before


def test_a_study_that_does_not_exist_is_refused_before_anything_is_written(blobs, tmp_path):
    root, table = blobs
    protocol = parse_protocol({"tasks": [table], "studies": ["weather"]}, root)
    with pytest.raises(InputError, match="no study is named 'weather'"):
        run(protocol, tmp_path / "results")
    assert not (tmp_path / "results").exists()
