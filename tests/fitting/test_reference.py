"""The form of what a calibrator remembers."""

import hashlib
import json
import math

import numpy as np
import pytest

import segcal
from segcal import make_calibrator
from segcal.errors import ArtifactError
from segcal.fitting.object_reference import OF_OBJECT, OF_STRUCTURE
from segcal.fitting.reference import calibrator_digest, read_numbers, written_numbers


def test_numbers_come_back_with_six_digits():
    assert read_numbers(written_numbers([[1 / 3, 2e9], [-1e-7, 0]]), 2, 2).tolist() == [[0.333333, 2e9], [-1e-7, 0]]
    assert math.isnan(read_numbers("nan", 1)[0])


@pytest.mark.parametrize("text", ["1 2", "1 2 x", ""])
def test_other_numbers_than_needed_are_refused(text):
    with pytest.raises(ArtifactError, match=r"but 3 numbers are needed. Fit again."):
        read_numbers(text, 3)


def test_a_digest_tells_calibrators_apart():
    one, other, third = (make_calibrator(name, classes) for name, classes in (("ts", 3), ("ts", 4), ("ets", 3)))
    assert len({calibrator_digest(each) for each in (one, other, third)}) == 3
    assert calibrator_digest(one) == calibrator_digest(make_calibrator("ts", 3))


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(6, 2, 5, 7)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    fitted = segcal.learn_objects(segcal.fit("ts", logits, labels), logits, labels, held_out=True)
    segcal.save(fitted, tmp_path / "cal")
    return fitted, tmp_path / "cal"


def test_every_case_has_whole_rows_and_comes_back(saved):
    fitted, folder = saved
    assert segcal.load(folder).objects == fitted.objects
    for case in fitted.objects.cases:
        assert len(case.objects.split()) % len(OF_OBJECT) == 0
        assert len(case.structures.split()) == len(OF_STRUCTURE)


def test_a_newer_version_is_refused_by_name(saved):
    path = saved[1] / "calibrator.json"
    content = json.loads(path.read_text("utf-8"))
    content["objects"]["version"] = 9
    del content["digest"]
    content["digest"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(
        segcal.SegcalError, match=r"has objects of version 9, but this segcal reads up to 1. Update segcal"
    ):
        segcal.load(saved[1])
