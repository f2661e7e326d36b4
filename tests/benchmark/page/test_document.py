"""From a folder to a document; folders that are partial, old or broken."""

import json
import shutil

import pytest

from segcal.benchmark.page.document import choose, make_document, read_studies
from segcal.errors import SegcalError


@pytest.fixture(scope="module")
def document(page_folder):
    return make_document(page_folder)


@pytest.fixture
def copy(page_folder, tmp_path):
    return shutil.copytree(page_folder, tmp_path / "copy")


def test_the_document_is_json_and_has_every_place(document):
    json.dumps(document, allow_nan=False)
    assert [place["id"] for place in document["places"]] == ["heart", "heart→heart_strong"]
    assert document["examples"]["heart"]["cases"]
    assert set(document["metrics"]) >= {"ece", "nll", "dice", "ba_ece", "ace", "flip_rate"}
    assert document["calibrators"]["ts"]["about"] == "Divide all logits by one temperature."


def test_the_chosen_pipeline_is_that_of_the_study(document, page_folder):
    study = json.loads((page_folder / "studies" / "worst_cases.json").read_text())
    assert document["places"][0]["chosen"] == study["tasks"]["heart"]["chosen"]["title"]


def test_without_the_study_the_lowest_validation_loss_is_taken(page_setting):
    pipeline, why = choose(page_setting.results, page_setting.summary, {}, "heart")
    units = [page_setting.results.repeats("heart", f"{name}(mean_logits)")[0] for name in ("ts", "cms_ap")]
    losses = {unit.unit.pipeline: unit.header["certificate"]["validation_nll"] for unit in units}
    assert losses[pipeline] == min(losses.values())
    assert "lowest loss" in why


def test_a_partial_folder_has_a_page_that_says_so(copy):
    next(copy.glob("units/heart/repeat_1/ms-mean_logits.jsonl")).unlink()
    document = make_document(copy)
    assert any("1 of 10 pipelines are not finished" in note for note in document["notes"])
    assert "ms(mean_logits)" not in [row["pipeline"] for row in document["places"][0]["rows"]]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda place: shutil.rmtree(place / "units"), "has no pipeline with all its repeats"),
        (lambda place: (place / "protocol.json").unlink(), "has no protocol.json"),
        (lambda place: (place / "protocol.json").write_text("{"), "is not readable"),
        (lambda place: (place / "protocol.json").write_text('{"units": []}'), "has no pipeline with all its repeats"),
        (lambda place: next(place.rglob("ts-mean_logits.jsonl")).write_text("{}"), "is not readable as results"),
        (lambda place: (place / "studies" / "flips.json").write_text("[]"), "is not readable"),
    ],
)
def test_a_folder_that_cannot_be_used_gives_one_sentence(copy, harm, words):
    harm(copy)
    with pytest.raises(SegcalError, match=words) as caught:
        make_document(copy)
    assert "\n" not in str(caught.value)


def test_results_of_another_version_are_refused(copy):
    path = next(copy.rglob("ts-mean_logits.jsonl"))
    path.write_text(path.read_text().replace('"schema":1', '"schema":99', 1))
    with pytest.raises(SegcalError, match="schema 99, but this segcal reads"):
        make_document(copy)


def test_results_that_lack_something_are_refused(copy):
    protocol = json.loads((copy / "protocol.json").read_text())
    del protocol["bootstrap"]
    (copy / "protocol.json").write_text(json.dumps(protocol))
    with pytest.raises(SegcalError, match=r"cannot read \(KeyError: 'bootstrap'\), but they must be as it writes them"):
        make_document(copy)


def test_a_demonstration_says_what_was_reduced(copy):
    (copy / "verdict.json").write_text(json.dumps({"reduced": ["one", "two"]}))
    assert any("reduced to take minutes: one; two" in note for note in make_document(copy)["notes"])
    (copy / "verdict.json").write_text("{")
    assert not any("reduced" in note for note in make_document(copy)["notes"])


def test_studies_are_read_by_name(page_folder):
    assert {"worst_cases", "flips", "offsets", "binning", "reliability"} <= set(read_studies(page_folder))
