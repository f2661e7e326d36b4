"""What is learned of structures and objects, on which cases, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.fitting.object_reference import OF_OBJECT, ObjectRule
from segcal.fitting.reference import read_numbers
from segcal.trust.components import find_objects
from segcal.trust.estimates import SumTable
from segcal.trust.learn import Summer, losses_of
from segcal.trust.sums import THRESHOLDS, sum_case


def objects_of(case):
    return read_numbers(case.objects, -1, len(OF_OBJECT))


def probs_of(calibrator, cases, case_id):
    return SumTable.of(Summer(cases, [calibrator])(case_id)).prob[0]


def test_cases_that_the_fit_has_not_seen_are_taken_alone(make_cases):
    cases = make_cases(14, seed=4, groups=[f"g{k // 2}" for k in range(14)])
    fitted = segcal.fit("ts", cases.subset(cases.ids[:5]))  # three groups, of which one has a case outside
    found = segcal.learn_trust(fitted, cases)
    assert found.reference.source == "held out"
    assert [each.id for each in found.reference.cases] == list(cases.ids[6:])
    assert found.reference.members == 3
    assert found.reference.unit == "voxels"
    assert fitted.reference is None


def test_arrays_that_were_held_out_are_said_to_be(make_cases):
    cases, others = make_cases(12, seed=13), make_cases(12, seed=14)  # of the same names
    fitted = segcal.fit("ts", cases)
    found = segcal.learn_trust(fitted, others, held_out=True).reference
    assert (found.source, len(found.cases)) == ("held out", 12)
    assert SumTable.read(found).prob[4] == pytest.approx(probs_of(fitted.calibrator, others, "case04"), rel=1e-5)
    assert segcal.learn_trust(fitted, others).reference.source == "out of fold"


def test_cases_of_the_fit_are_judged_by_fits_without_them(make_cases):
    cases = make_cases(10, seed=7, groups=[f"g{k // 2}" for k in range(10)])
    fitted = segcal.learn_trust(segcal.fit("ts", cases), cases)
    found = segcal.learn_objects(fitted, cases)
    assert found.reference.source == found.objects.source == "out of fold"
    table = SumTable.read(found.reference)
    for place, case in enumerate(found.objects.cases):
        others = cases.subset([each for each in cases.ids if cases.groups[each] != case.group])
        without = segcal.fit("ts", others).calibrator  # five groups are five folds
        assert table.prob[place] == pytest.approx(probs_of(without, cases, case.id), rel=1e-4)
        own = find_objects(without, cases.with_disagreement().checked(case.id), (1, 2), ObjectRule())
        assert objects_of(case) == pytest.approx(own.table, rel=1e-4, nan_ok=True)
    again = segcal.learn_objects(replace(fitted, reference=None), cases)
    shapes = ([objects_of(case).shape for case in each.objects.cases] for each in (again, found))
    assert next(shapes) == next(shapes)


def test_validation_cases_are_named_as_such(make_cases):
    cases = make_cases(9, seed=8)
    fitted = segcal.fit("ts", cases.subset(cases.ids[:4]), validation=cases.subset(cases.ids[4:]))
    reference = segcal.learn_trust(fitted, cases).reference
    assert reference.source == "validation"
    assert [each.id for each in reference.cases] == list(cases.ids[4:])


def test_losses_at_each_threshold_are_those_of_plain_loops(make_cases, fitted):
    case = make_cases(1, seed=9).checked("case00")
    losses = losses_of(sum_case(fitted.calibrator, case).histograms)
    p = fitted.calibrator(case.logits[None])[0].exp().numpy()
    y = case.labels.numpy()
    for number in range(3):
        missed, outranked, wrong = losses[number]
        plain = []
        for k, t in enumerate(THRESHOLDS.astype(p.dtype)):
            own = p[number] >= t
            assert missed[k] == pytest.approx((~own)[y == number].mean())
            rank = np.where(p > p[number], p, 0).sum(0) + p[number]
            assert outranked[k] == pytest.approx((rank > t)[y == number].mean())
            plain.append((y != number)[own].mean() if own.any() else 0.0)
        assert wrong == pytest.approx([max(plain[k:]) for k in range(len(plain))])


def test_curves_are_means_over_groups_that_have_the_structure(make_cases, fitted):
    cases = make_cases(4, seed=10, groups=["a", "a", "b", "c"])
    labels = [cases.checked(case_id).labels.numpy().copy() for case_id in cases.ids]
    labels[3][labels[3] == 2] = 1
    raw = [[np.asarray(m) for m in cases.member_logits(case_id)] for case_id in cases.ids]
    other = segcal.ArrayCases(raw, labels, groups=["a", "a", "b", "c"], pooling="mean_logits", kind="logits")
    curves = segcal.learn_trust(fitted, other).reference.curves
    assert [each.present for each in curves] == [3, 3, 2]
    missed = [losses_of(sum_case(fitted.calibrator, other.checked(i)).histograms)[2, 0] for i in other.ids[:3]]
    mean = ((missed[0] + missed[1]) / 2 + missed[2]) / 2
    assert read_numbers(curves[2].missed, 65) == pytest.approx(mean, abs=1e-5)


def test_an_artefact_keeps_it_in_a_few_kilobytes_and_a_newer_reference_is_refused(fitted, make_cases, tmp_path):
    segcal.save(fitted, tmp_path / "cal")
    assert segcal.load(tmp_path / "cal").reference == fitted.reference
    assert (tmp_path / "cal" / "calibrator.json").stat().st_size < 30_000
    known = make_cases(12, seed=2, prefix="other")
    found = segcal.learn_objects(fitted, known, structures=["core"], measure="overlap", at=0.5, smallest=3)
    assert found.objects.structures == (2,)
    assert min(objects_of(case)[:, 1].min(initial=9) for case in found.objects.cases) >= 3
    loaded = segcal.load(segcal.save(replace(found, reference=None), tmp_path / "objects"))
    assert (loaded.reference, loaded.objects) == (None, found.objects)
    segcal.save(replace(fitted, reference=msgspec.structs.replace(fitted.reference, version=7)), tmp_path / "new")
    with pytest.raises(segcal.ArtifactError, match="a reference of version 7, but this segcal reads up to 2"):
        segcal.load(tmp_path / "new")


def test_what_cannot_be_learned_from_is_refused(make_cases):
    one_group = make_cases(3, seed=11, groups=["a", "a", "a"])
    fitted = segcal.fit("ts", one_group)
    with pytest.raises(
        segcal.InputError, match="labels of case 'new00' is missing, but trust is learned from labelled"
    ):
        segcal.learn_trust(fitted, make_cases(2, labelled=False, prefix="new"))
    with pytest.raises(segcal.InputError, match="the 3 cases had a part in the fit and are one group, but none can"):
        segcal.learn_trust(fitted, one_group)
    with pytest.raises(segcal.InputError, match="cases is empty, but labelled cases are needed to learn from"):
        segcal.learn_trust(fitted, one_group.subset([]))


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
