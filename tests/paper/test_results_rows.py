"""Rows of results: made from folders alone, with the paper's word beside ours, and one source for each number."""

import json
import re
import shutil
import sys
from functools import partial

import pytest
from msgspec.structs import replace

from paper import results_rows as script
from paper import stamp
from paper.board import check, read_studies
from paper.paper_words import TITLES, judge
from segcal.benchmark.protocol import parse_protocol
from segcal.demo.embedded import open_embedded
from segcal.errors import InputError
from segcal.studies.run import run as run_protocol


def run_roads(folder, name, pipelines, studies, **more):
    facts = {"name": "roads", "embedded": "roads", "cases": 7, "members": 2, "split": {"cal": 3, "val": 1}}
    document = {
        "tasks": [facts],
        "pipelines": [{"pooling": how, "calibrator": calibrator} for how, calibrator in pipelines],
        "fit": {"lam": 1e-3, "mu": 1e-3, "voxels": 500},
        "bootstrap": {"replicates": 20},
        "studies": studies,
        **more,
    }
    opener = partial(open_embedded, cache=folder / "cache")
    run_protocol(replace(parse_protocol(document), embedded=opener), folder / name)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    pipelines = [("mean_logits", name) for name in ("identity", "ms", "dc", "ts")]
    pipelines += [(how, "identity") for how in ("single", "mean_probs")]
    run_roads(folder, "roads", pipelines, ["offsets", "flips", "binning"], repeats=2)
    return folder


@pytest.fixture(scope="module")
def rows(results):
    """The rows of every study, by task, method and metric."""
    return {name: keyed(own) for name, (_, own) in script.studies(results).items()}


def keyed(rows):
    rows = list(rows)
    found = {(row.task, row.method, row.metric): row for row in rows}
    assert len(found) == len(rows)  # nothing is said twice
    return found


def test_every_study_that_has_results_has_rows_and_no_other(rows):
    own = {"table4", "matched", "agreement", "offsets", "flips", "binning"}
    assert {name for name, found in rows.items() if found} == own
    assert set(rows) <= {study.name for study in read_studies()}


def test_rows_are_the_numbers_of_the_summary(rows, results):
    for row in plain_summary(results / "roads")["results"]:
        for metric, title in (("nll", "NLL"), ("ace", "ACE")):
            found = row["metrics"][metric]
            own = rows["table4"]["roads", row["pipeline"], title]
            for end in ("value", "low", "high"):
                assert float(getattr(own, end)) == pytest.approx(found[end], abs=5.1e-5)
    assert ("roads", "ts(mean_logits)", "Flip, %") not in rows["table4"]
    assert ("roads", "ms(mean_logits)", "Flip, %") in rows["table4"]
    kinds = [
        rows["flips"]["roads", "ms(mean_logits)", f"{kind}, %"].value for kind in ("right to wrong", "wrong to right")
    ]
    assert 0 < sum(kinds) <= 100


def test_comparisons_have_our_verdict_and_the_paper_s(rows, results):
    (each,) = [one for one in plain_summary(results / "roads")["comparisons"] if one["second"] == "dc(mean_logits)"]
    own = rows["matched"]["roads", "dc(mean_logits) against ms(mean_logits)", "NLL"]
    assert float(own.value) == pytest.approx(each["metrics"]["nll"]["difference"]["value"], abs=5.1e-5)
    assert own.note.startswith(each["metrics"]["nll"]["verdict"])
    assert own.note.endswith("; the paper: better")
    words = ("agree", "differences of the paper that are none here", "differences only here", "opposite")
    counts = [rows["agreement"]["roads", "agreement with the paper", word].value for word in words]
    assert sum(counts) == rows["agreement"]["roads", "agreement with the paper", "verdicts"].value == 5


def test_the_command_writes_rows_and_the_code_that_made_them(results, tmp_path, monkeypatch):
    shutil.copytree(results / "roads", tmp_path / "results" / "roads")
    stamp.write_stamp(tmp_path / "results" / "roads")
    board = tmp_path / "board"
    monkeypatch.setattr(sys, "argv", ["results_rows", str(tmp_path / "results"), "-o", str(board)])
    script.main()
    assert sorted(path.stem for path in board.glob("*.csv")) == [
        "agreement", "binning", "flips", "matched", "offsets", "table4"
    ]  # fmt: skip
    assert set(check(board)) == {study.name for study in read_studies(board)}
    assert {study.code for study in read_studies(board)} == {f"segcal {stamp.__version__}, code {stamp.code_digest()}"}


def test_the_paper_s_word_is_that_of_its_printed_numbers():
    rows = script.paper.RESULTS["RoadSeg"]
    words = [script.paper.verdict(rows, "ms(mean_logits)", "dc(mean_logits)", metric) for metric in TITLES]
    assert words == ["better", "better", "better", "better", "better"]
    city = script.paper.RESULTS["Cityscapes"]
    assert script.paper.verdict(city, "cdc(mean_logits)", "cms_ap(mean_logits)", "ece") == "worse"
    assert script.paper.verdict(city, "lts(mean_logits)", "lts_ti(mean_logits)", "ba_ece") == "same"


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("better", "better", "agrees"),
        ("same", "no difference", "agrees"),
        ("better", "no difference", "not confirmed"),
        ("same", "worse", "only here"),
        ("better", "worse", "opposite"),
    ],
)
def test_agreement_is_judged_strictly(theirs, ours, outcome):
    assert judge(theirs, ours) == outcome


@pytest.fixture
def twice(results, tmp_path):
    """Return a folder in which two runs say the same of the same pipelines."""
    for name in ("roads", "more"):
        shutil.copytree(results / "roads", tmp_path / name)
    return tmp_path


def plain_summary(folder):
    return json.loads((folder / "summary.json").read_text("utf-8"))


def change(path, keys, value):
    document = json.loads(path.read_text("utf-8"))
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(document), "utf-8")


def test_two_runs_that_disagree_are_refused_and_named(twice, tmp_path, monkeypatch, capsys):
    change(twice / "more" / "summary.json", ["results", 1, "metrics", "nll", "value"], 0.125)
    row = plain_summary(twice / "more")["results"][1]
    message = f"says two things of one number (nll of {row['pipeline']} on roads: "
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        script.studies(twice)
    assert " in roads, 0.125 in more), but a row needs one source. Run the older of the two" in str(refused.value)
    monkeypatch.setattr(sys, "argv", ["results_rows", str(twice), "-o", str(tmp_path / "board")])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert (capsys.readouterr().err.count("\n"), (tmp_path / "board").exists()) == (1, False)


def test_a_difference_in_the_last_digits_is_none(twice):
    value = plain_summary(twice / "more")["results"][1]["metrics"]["nll"]["value"]
    change(twice / "more" / "summary.json", ["results", 1, "metrics", "nll", "value"], value * (1 + 1e-9))
    assert script.studies(twice)


def test_tasks_that_are_divided_in_two_ways_are_refused(twice):
    change(twice / "more" / "summary.json", ["tasks", 0, "cal"], [2, 2])
    with pytest.raises(InputError, match=r"divides roads in two ways \(roads has .*; more has .*\), but studies share"):
        script.studies(twice)


@pytest.mark.parametrize(
    ("study", "data"),
    [
        (
            "calibration_size",
            {"reference": 3, "pipelines": {"ts(mean_logits)": {"nll": [{"n": 3, "value": {"value": 9.5}}]}}},
        ),
        ("covariate_shift", {"pipelines": {"ts(mean_logits)": {"": {"metrics": {"nll": {"value": 9.5}}}}}}),
    ],
)
def test_a_study_that_is_older_than_its_units_is_refused(results, tmp_path, study, data):
    shutil.copytree(results / "roads", tmp_path / "roads")
    (tmp_path / "roads" / "studies" / f"{study}.json").write_text(json.dumps({"tasks": {"roads": data}}), "utf-8")
    message = rf"nll of ts\(mean_logits\) on roads: .* in roads, 9.5 in roads/studies/{study}.json"
    with pytest.raises(InputError, match=message):
        script.studies(tmp_path)


def test_the_analyses_of_selective_scaling_are_rows(tmp_path):
    pipelines = [("mean_logits", name) for name in ("identity", "ts", "selective")]
    studies = ["regions", "detection", "ensemble_size", "crop_size", "test_scales"]
    options = {"study_options": {"cases": 2}, "repeats": 1}
    run_roads(tmp_path, "selective", pipelines, studies, **options)
    rows = keyed(script.where_error(tmp_path))
    assert [rows["roads", "division", f"{part} cases"].value for part in ("calibration", "validation", "test")] == [
        3,
        1,
        3,
    ]
    found = {name: json.loads((tmp_path / "selective" / "studies" / f"{name}.json").read_text()) for name in studies}
    wrong = found["regions"]["tasks"]["roads"]["identity(mean_logits)"]["ece"]["wrong"]["mean"]
    assert float(rows["roads", "identity(mean_logits)", "ECE wrong"].value) == pytest.approx(wrong, abs=5.1e-4)
    first = found["detection"]["tasks"]["roads"]["oracle"]["ts(mean_logits)"][0]
    title = "ECE with mispredictions found 0 %"
    assert float(rows["roads", "ts(mean_logits)", title].value) == pytest.approx(first, abs=5.1e-4)
    one = found["ensemble_size"]["tasks"]["roads"]["1"]["ece"]["value"]
    assert float(rows["roads", "members: 1", "ECE"].value) == pytest.approx(one, abs=5.1e-4)
    assert any(method.startswith("crop: ") for _, method, _ in rows)
    assert any(method.startswith("scales: ") for _, method, _ in rows)
