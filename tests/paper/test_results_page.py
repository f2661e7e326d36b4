"""The page of results: made from folders alone, with the paper's word beside ours, and one source for each number."""

import json
import re
import shutil
import sys
from functools import partial

import pytest
from msgspec.structs import replace

from paper import results_page as script
from paper import stamp
from paper.paper_words import judge
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
    folder = tmp_path_factory.mktemp("page")
    pipelines = [("mean_logits", name) for name in ("identity", "ms", "dc", "ts")]
    pipelines += [(how, "identity") for how in ("single", "mean_probs")]
    run_roads(folder, "roads", pipelines, ["offsets", "flips", "binning"], repeats=2)
    return folder


@pytest.fixture(scope="module")
def text(results):
    return "\n".join(script.page(results))


def test_every_section_that_has_results_is_there_and_no_other(text):
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == [
        "# Measured results", "## What was run", "## Table 4, with intervals", "### roads", "## Matched comparisons",
        "### In short", "### Where they agree with the paper", "## Offsets (Tables 3 and 5)", "## Flips", "## Binning",
        "## Models of regions",
    ]  # fmt: skip
    assert "| roads | RoadSeg | 2 | 2 | 7 | 3 | 1 | 3 | 2 | 500 |" in text
    assert "\n- roads, dc(mean_logits) against ms(mean_logits): " in text
    assert "roads: calibration metrics better in" in text
    assert "flips of ms(mean_logits)" in text


def test_every_section_names_the_code_that_made_it(text, results, tmp_path):
    sections = text.split("\n## ")[2:-1]  # after what was run, before regions, whose numbers lie in the repository
    assert len(sections) == 5
    assert all(section.count("*Made by a segcal that left no stamp.*\n") == 1 for section in sections)
    shutil.copytree(results / "roads", tmp_path / "roads")
    stamp.write_stamp(tmp_path / "roads")
    new = "\n".join(script.page(tmp_path))
    words = f"*Made by segcal {stamp.__version__}, code `{stamp.code_digest()}`.*"
    assert new.replace(words, "*Made by a segcal that left no stamp.*") == text != new


def test_the_paper_s_word_is_that_of_its_printed_numbers(text):
    rows = script.paper.RESULTS["RoadSeg"]
    words = [script.paper.verdict(rows, "ms(mean_logits)", "dc(mean_logits)", metric) for metric in script.TITLES]
    assert words == ["better", "better", "better", "better", "better"]
    city = script.paper.RESULTS["Cityscapes"]
    assert script.paper.verdict(city, "cdc(mean_logits)", "cms_ap(mean_logits)", "ece") == "worse"
    assert script.paper.verdict(city, "lts(mean_logits)", "lts_ti(mean_logits)", "ba_ece") == "same"
    assert "| roads | dc(mean_logits) against ms(mean_logits) | " in text
    assert "- roads: of 5 verdicts " in text


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


def test_two_runs_that_agree_make_a_page_whose_sentences_are_computed(twice):
    text = "\n".join(script.page(twice))
    rows = {row["pipeline"]: row["metrics"] for row in plain_summary(twice / "more")["results"]}
    kept = {name: rows[f"{name}(mean_logits)"] for name in ("identity", "ts")}
    for metric, title in (("nll", "NLL"), ("ece", "ECE"), ("ba_ece", "BA-ECE"), ("ace", "ACE")):
        best = min(kept, key=lambda name: kept[name][metric]["value"])
        assert f"lowest {title} `{best}` {kept[best][metric]['value']:.4f}" in text
    assert "- roads, of those that keep the mask: lowest NLL " in text


def test_two_runs_that_disagree_are_refused_and_named(twice, tmp_path, monkeypatch, capsys):
    change(twice / "more" / "summary.json", ["results", 1, "metrics", "nll", "value"], 0.125)
    row = plain_summary(twice / "more")["results"][1]
    message = f"says two things of one number (nll of {row['pipeline']} on roads: "
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        list(script.page(twice))
    assert " in roads, 0.125 in more), but a page needs one source. Run the older of the two" in str(refused.value)
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["results_page", str(twice), "-o", str(out)])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert (capsys.readouterr().err.count("\n"), out.exists()) == (1, False)


def test_a_difference_in_the_last_digits_is_none(twice):
    value = plain_summary(twice / "more")["results"][1]["metrics"]["nll"]["value"]
    change(twice / "more" / "summary.json", ["results", 1, "metrics", "nll", "value"], value * (1 + 1e-9))
    assert list(script.page(twice))


def test_tasks_that_are_divided_in_two_ways_are_refused(twice):
    change(twice / "more" / "summary.json", ["tasks", 0, "cal"], [2, 2])
    with pytest.raises(
        InputError, match=r"divides roads in two ways \(roads has .*; more has .*\), but sections of one"
    ):
        list(script.page(twice))


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
        list(script.page(tmp_path))


def test_the_table_of_bins_is_that_of_the_summary_and_not_of_an_old_file(results, tmp_path, text):
    shutil.copytree(results / "roads", tmp_path / "roads")
    (tmp_path / "roads" / "tables" / "figure6_binning.md").write_text("old", "utf-8")
    assert "\n".join(script.page(tmp_path)) == text


def test_the_analyses_of_selective_scaling_are_a_section_with_computed_sentences(tmp_path):
    pipelines = [("mean_logits", name) for name in ("identity", "ts", "selective")]
    studies = ["regions", "detection", "ensemble_size", "crop_size", "test_scales"]
    options = {"study_options": {"cases": 2}, "repeats": 1}
    run_roads(tmp_path, "selective", pipelines, studies, **options)
    text = "\n".join(script.page(tmp_path))
    assert "\n## Where the error lies, and what moves it\n" in text
    assert "- roads: 3 cases for calibration, 1 for validation, 3 for the test." in text
    found = {name: json.loads((tmp_path / "selective" / "studies" / f"{name}.json").read_text()) for name in studies}
    wrong = found["regions"]["tasks"]["roads"]["identity(mean_logits)"]["ece"]["wrong"]["mean"]
    assert f"- roads: before calibration ECE is {wrong:.3f} where the prediction is wrong and " in text
    first = found["detection"]["tasks"]["roads"]["oracle"]["ts(mean_logits)"][0]
    assert f"ts(mean_logits) {first:.3f} with none found, least " in text
    curve = found["ensemble_size"]["tasks"]["roads"]
    assert (
        f"from `1` to `2`, ECE {curve['1']['ece']['value']:.3f} → {curve['2']['ece']['value']:.3f}, mIoU in %" in text
    )
    assert text.count("(2 cases).") == 3
