"""The small report of an evaluation, with and without a calibrator."""

import json

import numpy as np
import pytest
import torch

import segcal
from segcal.benchmark.page.evaluated import BEFORE, PLACE, evaluated_document
from segcal.cases import ArrayCases
from segcal.errors import InputError
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
    return evaluated_document(segcal.evaluate(held_out, fitted.calibrator, replicates=50), held_out, fitted)


def test_it_is_json_and_becomes_a_page(document):
    json.dumps(document, allow_nan=False)
    assert "<!doctype html>" in render_page(document)


def test_both_stages_have_rows_curves_and_cases(document, held_out, fitted):
    (place,) = document["places"]
    assert [row["pipeline"] for row in place["rows"]] == [BEFORE, "calibrated with ts"]
    confidence = np.concatenate([torch.softmax(case.logits.double(), 0).amax(0).reshape(-1) for case in held_out])
    assert sum(place["curves"][BEFORE]["all"]["count"]) == len(confidence)
    assert place["curves"][BEFORE]["all"]["low"][-1] < place["curves"][BEFORE]["all"]["accuracy"][-1]
    assert place["cases"]["names"] == [f"c{k}" for k in range(2, 7)]
    assert "The mask did not change: 0 of" in place["verdict"]["mask"]
    assert place["verdict"]["done"].count("2 cases") == 1


def test_the_worst_cases_come_first_with_their_maps(document):
    found = document["examples"][PLACE]
    losses = [each["nll"][1] for each in found["cases"]]
    assert losses == sorted(losses, reverse=True)
    assert {"truth", "prediction", "before", "after"} <= set(found["cases"][0]["slices"][0])


def test_promises_and_certificate_are_part_of_it(document):
    own = document["provenance"]["calibrators"][PLACE]
    assert own["audit"]["passed"]
    assert own["certificate"]["converged"] is True


def test_flips_are_counted(held_out):
    matrix = segcal.make_calibrator("vs", 3)
    with torch.no_grad():
        matrix.bias[1] = 1.5
    fitted = segcal.fit("vs", held_out)
    biased = type(fitted)(**{**fitted.__dict__, "calibrator": matrix})
    result = segcal.evaluate(held_out, matrix, replicates=50)
    mask = evaluated_document(result, held_out, biased)["places"][0]["verdict"]["mask"]
    flips = sum(int((matrix(case.logits[None])[0].argmax(0) != case.logits.argmax(0)).sum()) for case in held_out)
    assert flips > 0
    assert f"The mask changed in {flips:,} of" in mask


def test_without_a_calibrator_it_is_measured_only(held_out):
    document = evaluated_document(segcal.evaluate(held_out, replicates=50), held_out, None)
    (place,) = document["places"]
    assert place["verdict"]["tone"] == "measured"
    assert len(place["rows"]) == 1
    assert document["examples"][PLACE]["cases"]


def test_without_tables_of_reliability_there_is_no_verdict(held_out):
    document = evaluated_document(segcal.evaluate(held_out, metrics=["nll"], replicates=50), held_out, None)
    assert document["places"][0]["verdict"] is None
    assert document["places"][0]["curves"] == {}


def test_cases_of_the_fit_give_no_verdict(cases, fitted):
    found = evaluated_document(segcal.evaluate(cases, fitted.calibrator, replicates=50), cases, fitted)["places"][0]
    assert found["division"]["seen"] == 2
    assert found["verdict"]["tone"] == "measured"
    assert found["verdict"]["headline"].startswith("Measured on cases that the calibrator was fitted to")
    assert "7 cases, of which 2 had a part in the fit" in found["verdict"]["done"]


def test_cases_that_are_ignored_as_a_whole_give_no_page(fitted):
    void = ArrayCases([np.zeros((3, 4, 5), np.float32)], [np.full((4, 5), 255)], ignore=255)
    with pytest.raises(InputError, match="the cases have no voxel that counts"):
        evaluated_document(segcal.evaluate(void, fitted.calibrator, replicates=50), void, fitted)
