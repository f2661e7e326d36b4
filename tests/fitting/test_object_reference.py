"""The section of the artefact that holds objects: what is written comes back, and a newer one is refused."""

import hashlib
import json

import numpy as np
import pytest

import segcal
from segcal.fitting.object_reference import OF_OBJECT, OF_STRUCTURE


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
