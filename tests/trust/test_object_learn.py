"""What is learned of objects, on which cases, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import segcal
from segcal.fitting.object_reference import OF_OBJECT, ObjectRule
from segcal.fitting.reference import read_numbers
from segcal.trust.components import find_objects


def rows(case):
    return read_numbers(case.objects, -1, len(OF_OBJECT))


def test_folds_of_trust_judge_the_objects_of_their_cases(make_cases):
    cases = make_cases(10, seed=7, groups=[f"g{k // 2}" for k in range(10)])
    fitted = segcal.learn_trust(segcal.fit("ts", cases), cases)
    found = segcal.learn_objects(fitted, cases)
    assert (found.objects.source, found.reference) == ("out of fold", fitted.reference)
    for case in found.objects.cases:
        others = cases.subset([each for each in cases.ids if cases.groups[each] != case.group])
        without = segcal.fit("ts", others).calibrator
        own = find_objects(without, cases.with_disagreement().checked(case.id), (1, 2), ObjectRule())
        assert rows(case) == pytest.approx(own.table, rel=1e-4, nan_ok=True)
    again = segcal.learn_objects(replace(fitted, reference=None), cases)
    assert [rows(case).shape for case in again.objects.cases] == [rows(case).shape for case in found.objects.cases]


def test_an_artefact_keeps_them_and_an_older_one_has_none(make_cases, tmp_path):
    cases = make_cases(12, seed=2)
    plain = segcal.fit("ts", make_cases(4, seed=6, prefix="other"))
    found = segcal.learn_objects(plain, cases, structures=["core"], measure="overlap", at=0.5, smallest=3)
    assert found.objects.structures == (2,)
    assert min(rows(case)[:, 1].min(initial=9) for case in found.objects.cases) >= 3
    segcal.save(found, tmp_path / "cal")
    assert segcal.load(tmp_path / "cal").objects == found.objects
    segcal.save(plain, tmp_path / "plain")
    assert segcal.load(tmp_path / "plain").objects is None


def test_regions_are_judged_by_fits_to_other_groups():
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(10, 2, 9, 7)).astype("float32")
    labels = np.where(logits[:, 0] + rng.logistic(size=(10, 9, 7)) > 0, 1, 0) + (logits[:, 1] > 1)
    cases = segcal.ArrayCases(
        list(logits), list(labels), kind="logits", regions={"whole": [1, 2], "core": [2]}, pooling="single"
    )
    found = segcal.learn_objects(segcal.fit("ts", cases), cases)
    assert (found.objects.source, found.objects.structures) == ("out of fold", (0, 1))
    assert {row.structure for row in segcal.objects(found, cases).rows} == {"whole", "core"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"measure": "dice"}, "no measure is named 'dice'. Choose one of: iou, overlap."),
        ({"at": 0.0}, "at is 0 and smallest is 1, but a share above 0 and at least 1 voxel are needed."),
        ({"smallest": 0}, "at is 0.1 and smallest is 0"),
        ({"structures": ["lung"]}, "no structure is named 'lung'. Choose one of: outside, wall, core."),
    ],
)
def test_mistakes_are_one_sentence(fitted, make_cases, given, text):
    with pytest.raises(segcal.InputError) as caught:
        segcal.learn_objects(fitted, make_cases(6, seed=9, prefix="new"), **given)
    assert text in str(caught.value)


def test_cases_without_labels_or_with_too_many_objects_are_refused(fitted, make_cases, monkeypatch):
    with pytest.raises(segcal.InputError, match="it has no labels, but objects are learned from them"):
        segcal.learn_objects(fitted, make_cases(6, seed=9, prefix="new", labelled=False))
    monkeypatch.setitem(segcal.learn_objects.__wrapped__.__globals__, "MOST_OBJECTS", 3)
    with pytest.raises(segcal.InputError, match=r"but 3 can be kept. Pass a larger `smallest`, or leave cases out"):
        segcal.learn_objects(fitted, make_cases(6, seed=9, prefix="new"))
