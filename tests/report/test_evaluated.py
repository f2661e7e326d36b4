"""The small report of an evaluation, with and without a calibrator."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import to_builtins

import segcal
from segcal.calibrators.per_region import PerRegion
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.report.confidence_curves import page_figures
from segcal.report.evaluated import BEFORE, TASK, evaluation_document
from segcal.report.page import render_page


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(3)
    labels = [np.kron(rng.integers(3, size=(3, 2)), np.ones((4, 7), int)) for _ in range(7)]
    logits = [3 * (np.eye(3)[y].transpose(2, 0, 1) + 0.8 * rng.normal(size=(3, *y.shape))) for y in labels]
    return ArrayCases([z.astype(np.float32) for z in logits], labels, ids=[f"c{k}" for k in range(7)])


@pytest.fixture(scope="module")
def fitted(cases):
    return segcal.fit("ts", cases.subset(["c0", "c1"]))


@pytest.fixture(scope="module")
def held_out(cases):
    return cases.subset([f"c{k}" for k in range(2, 7)])


@pytest.fixture(scope="module")
def document(held_out, fitted):
    return evaluation_document(segcal.evaluate(held_out, fitted.calibrator, replicates=50), held_out, fitted)


def test_it_is_json_and_becomes_a_page(document):
    json.dumps(to_builtins(document), allow_nan=False)
    assert "<!doctype html>" in render_page(document)


def test_both_stages_have_rows_curves_and_cases(document, held_out, fitted):
    (section,) = document.sections
    assert [row.pipeline for row in section.rows] == [BEFORE, "calibrated with ts"]
    confidence = np.concatenate([torch.softmax(case.logits.double(), 0).amax(0).reshape(-1) for case in held_out])
    assert sum(section.curves[BEFORE].all.count) == len(confidence)
    assert section.curves[BEFORE].all.low[-1] < section.curves[BEFORE].all.accuracy[-1]
    assert section.cases.names == [f"c{k}" for k in range(2, 7)]
    assert "The mask did not change: 0 of" in section.verdict.mask
    assert section.verdict.done.count("2 cases") == 1


def test_the_page_of_another_command_is_not_replaced(held_out, fitted, tmp_path):
    page = tmp_path / "report.html"
    segcal.report(fitted, held_out, page, replicates=10)
    own = page.read_text()
    segcal.report(fitted, held_out, page, replicates=10)
    page.write_text(own.replace("<title>segcal report: evaluation of 5 cases", "<title>segcal report: roads"))
    with pytest.raises(InputError, match=r"report\.html exists and was not written by this command"):
        segcal.report(fitted, held_out, page, replicates=10)


def test_the_worst_cases_come_first_with_their_maps(document):
    found = document.examples[TASK]
    losses = [each.nll[1] for each in found.cases]
    assert losses == sorted(losses, reverse=True)
    assert {"truth", "prediction", "before", "after"} <= set(to_builtins(found.cases[0].slices[0]))


def test_promises_and_certificate_are_part_of_it(document):
    own = document.provenance.calibrators[TASK]
    assert own.audit.passed
    assert own.certificate["converged"] is True
    assert own.certificate["active_bounds"] == []


def test_parameters_at_a_bound_are_named(held_out, fitted, cases):
    bound = replace(fitted, certificate=replace(fitted.certificate, active_bounds=("slope of car",)))
    page = evaluation_document(segcal.evaluate(held_out, bound, replicates=10), held_out, bound)
    assert page.provenance.calibrators[TASK].certificate["active_bounds"] == ["slope of car"]


def test_the_evidence_per_class_of_the_fit_is_part_of_it(document, cases, held_out, fitted):
    own = to_builtins(document.provenance.calibrators[TASK])
    labels = [np.asarray(case.labels) for case in cases.subset(["c0", "c1"])]
    expected = [
        {"name": str(c), "groups": sum((y == c).any() for y in labels), "voxels": sum((y == c).sum() for y in labels)}
        for c in range(3)
    ]
    assert (list(own["evidence"]), own["groups"]) == (expected, 2)
    older = replace(fitted, certificate=replace(fitted.certificate, evidence=None))
    page = evaluation_document(segcal.evaluate(held_out, older.calibrator, replicates=50), held_out, older)
    assert "evidence" not in to_builtins(page.provenance.calibrators[TASK])


def test_flips_are_counted(held_out):
    matrix = segcal.make_calibrator("vs", 3)
    with torch.no_grad():
        matrix.bias[1] = 1.5
    fitted = segcal.fit("vs", held_out)
    biased = type(fitted)(**{**fitted.__dict__, "calibrator": matrix})
    result = segcal.evaluate(held_out, matrix, replicates=50)
    mask = evaluation_document(result, held_out, biased).sections[0].verdict.mask
    flips = sum(int((matrix(case.logits[None])[0].argmax(0) != case.logits.argmax(0)).sum()) for case in held_out)
    assert flips > 0
    assert f"The mask changed in {flips:,} of" in mask


def test_without_a_calibrator_it_is_measured_only(held_out):
    document = evaluation_document(segcal.evaluate(held_out, replicates=50), held_out, None)
    (section,) = document.sections
    assert section.verdict.tone == "measured"
    assert len(section.rows) == 1
    assert document.examples[TASK].cases


def test_without_tables_of_reliability_there_is_no_verdict(held_out):
    document = evaluation_document(segcal.evaluate(held_out, metrics=["nll"], replicates=50), held_out, None)
    assert document.sections[0].verdict is None
    assert document.sections[0].curves == {}


def test_cases_of_the_fit_give_no_verdict(cases, fitted):
    found = evaluation_document(segcal.evaluate(cases, fitted.calibrator, replicates=50), cases, fitted).sections[0]
    assert found.division.seen == 2
    assert found.verdict.tone == "measured"
    assert found.verdict.headline.startswith("Measured on cases that the calibrator was fitted to")
    assert "7 cases, of which 2 had a part in the fit" in found.verdict.done


def test_cases_that_are_ignored_as_a_whole_give_no_page(fitted):
    void = ArrayCases([np.zeros((3, 4, 5), np.float32)], [np.full((4, 5), 255)], ignore=255)
    with pytest.raises(InputError, match="the cases have no voxel that counts"):
        evaluation_document(segcal.evaluate(void, fitted.calibrator, replicates=50), void, fitted)


def test_one_call_measures_the_cases_that_were_held_out_and_writes_the_page(cases, held_out, fitted, tmp_path):
    segcal.save(fitted, tmp_path / "ts")
    result = segcal.report(tmp_path / "ts", cases, tmp_path / "page.html", replicates=50)
    assert [row["case"] for row in result.rows if row["stage"] == "after"] == list(held_out.ids)
    assert result.change["nll"] == segcal.evaluate(held_out, fitted.calibrator, replicates=50).change["nll"]
    text = (tmp_path / "page.html").read_text("utf-8")
    segcal.report(fitted, cases, tmp_path / "again.html", replicates=50)
    assert (tmp_path / "again.html").read_text("utf-8") == text


def test_without_held_out_cases_the_page_says_so(cases, fitted, tmp_path):
    segcal.report(fitted, cases.subset(["c0", "c1"]), tmp_path / "page.html", replicates=50)
    assert "No case was held out" in (tmp_path / "page.html").read_text("utf-8")


def test_a_file_of_something_else_is_not_replaced(cases, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(InputError, match=r"page\.html"):
        segcal.report(None, cases, tmp_path / "page.html", replicates=50)
    assert (tmp_path / "page.html").read_text() == "mine"
    segcal.report(None, cases, tmp_path / "page.html", replicates=50, overwrite=True)
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_calibrator_that_is_not_in_the_registry_has_its_own_name(held_out):
    class Mine(segcal.Calibrator):
        """Mine."""

        translation_invariant, preserves, fitted_by = True, "order", "nothing"

        def scores(self, logits, image=None):
            return logits

        def num_identifiable(self):
            return 0

    fitted = segcal.fit("ts", held_out)
    mine = type(fitted)(**{**fitted.__dict__, "calibrator": Mine(3)})
    document = evaluation_document(segcal.evaluate(held_out, mine.calibrator, replicates=50), held_out, mine)
    assert document.sections[0].verdict.done.startswith("A calibrator, Mine (Mine), was fitted on")


def test_a_report_of_arrays_and_what_is_no_fit(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 2, 6, 5)).astype("float32")
    labels = logits.argmax(1)
    fitted = segcal.fit("ts", logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))
    result = segcal.report(fitted, logits, tmp_path / "page.html", labels=labels, kind="logits", replicates=50)
    assert result.before["nll"].cases == 3
    assert (tmp_path / "page.html").is_file()
    with pytest.raises(
        InputError, match=r"fitted is TemperatureScaling, but the result of segcal.fit or text or a path"
    ):
        segcal.report(fitted.calibrator, logits, tmp_path / "other.html", labels=labels)


def test_regions_are_called_by_their_names(tmp_path, randomise):
    rng = np.random.default_rng(3)
    regions = {"whole": [1, 2], "core": [2]}
    scores, labels = rng.normal(size=(6, 2, 12, 9)) * 2, rng.integers(0, 3, size=(6, 12, 9))
    held = ArrayCases(list(scores), list(labels), kind="logits", regions=regions, ids=[f"c{n}" for n in range(6)])
    found = segcal.fit("ts", ArrayCases(list(scores), list(labels), kind="logits", regions=regions))
    segcal.report(found, held, tmp_path / "page.html")
    result = segcal.evaluate(held, found)
    document = evaluation_document(result, held, found)
    (section,) = document.sections
    assert section.classes == ["no region", "whole", "core"]
    assert document.metrics["dice (core)"].title == "Dice: core"
    assert section.rows[1].metrics["nll (core)"].value == result.after["nll (core)"].value
    assert section.rows[1].calibrator == "ts"
    assert document.calibrators["ts"].title == "Temperature scaling, per region"
    assert section.verdict is not None
    seen = document.examples[TASK].cases[0]
    assert seen.shape == [12, 9]
    assert seen.slices[0].prediction_after is None  # the masks are those of before
    assert "whole: keeps where it is on" in document.provenance.calibrators[TASK].audit.text
    plain = evaluation_document(segcal.evaluate(held), held, None)
    assert [row.calibrator for row in plain.sections[0].rows] == ["identity"]
    inner = [randomise(segcal.make_calibrator("conic", 2), seed=number) for number in range(2)]
    figures = page_figures(PerRegion(held.regions, inner))
    assert [figure.title for figure in figures] == ["What was learned: whole", "What was learned: core"]
