"""What is learned, on which cases, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.fitting.reference import read_numbers
from segcal.trust.learn import Summer, losses_of
from segcal.trust.sums import THRESHOLDS, sum_case
from segcal.trust.table import SumTable


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
    assert SumTable.read(found).prob[4] == pytest.approx(Summer(fitted.calibrator, others)("case04").prob, rel=1e-5)
    assert segcal.learn_trust(fitted, others).reference.source == "out of fold"


def test_numbers_are_those_of_the_calibrator(make_cases):
    cases = make_cases(6, seed=5)
    fitted = segcal.fit("ts", make_cases(4, seed=6, prefix="other"))
    reference = segcal.learn_trust(fitted, cases).reference
    table = SumTable.read(reference)
    one = sum_case(fitted.calibrator, cases.checked("case03"))
    assert table.prob[3] == pytest.approx(one.prob, rel=1e-5)
    assert table.truth[3] == pytest.approx(one.truth.truth)


def test_cases_of_the_fit_are_judged_by_fits_without_them(make_cases):
    cases = make_cases(10, seed=7, groups=[f"g{k // 2}" for k in range(10)])
    fitted = segcal.fit("ts", cases)
    reference = segcal.learn_trust(fitted, cases).reference
    assert reference.source == "out of fold"
    table = SumTable.read(reference)
    for place, case_id in enumerate(cases.ids):
        own = cases.groups[case_id]
        others = cases.subset([each for each in cases.ids if cases.groups[each] != own])
        without = segcal.fit("ts", others).calibrator  # five groups are five folds
        assert table.prob[place] == pytest.approx(Summer(without, cases)(case_id).prob, rel=1e-4)


def test_validation_cases_are_named_as_such(make_cases):
    cases = make_cases(9, seed=8)
    fitted = segcal.fit("ts", cases.subset(cases.ids[:4]), validation=cases.subset(cases.ids[4:]))
    reference = segcal.learn_trust(fitted, cases).reference
    assert reference.source == "validation"
    assert [each.id for each in reference.cases] == list(cases.ids[4:])


def test_losses_at_each_threshold_are_those_of_plain_loops(make_cases, fitted):
    case = make_cases(1, seed=9).checked("case00")
    sums = sum_case(fitted.calibrator, case)
    p = fitted.calibrator(case.logits[None])[0].exp().numpy()
    y = case.labels.numpy()
    for number in range(3):
        missed, outranked, wrong = losses_of(sums, number)
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
    curves = segcal.learn_trust(segcal.fit("ts", make_cases(3, seed=1, prefix="fit")), other).reference.curves
    assert [each.present for each in curves] == [3, 3, 2]
    sums = [Summer(segcal.fit("ts", make_cases(3, seed=1, prefix="fit")).calibrator, other)(i) for i in other.ids]
    missed = [losses_of(each, 2)[0] for each in sums[:3]]
    mean = ((missed[0] + missed[1]) / 2 + missed[2]) / 2
    assert read_numbers(curves[2].missed, 65) == pytest.approx(mean, abs=1e-5)


def test_the_artefact_keeps_it_in_a_few_kilobytes(fitted, tmp_path):
    segcal.save(fitted, tmp_path / "cal")
    assert segcal.load(tmp_path / "cal").reference == fitted.reference
    assert (tmp_path / "cal" / "calibrator.json").stat().st_size < 30_000
    segcal.save(replace(fitted, reference=None), tmp_path / "plain")
    assert segcal.load(tmp_path / "plain").reference is None


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


def test_an_older_artefact_loads_and_a_newer_reference_is_refused(fitted, tmp_path):
    segcal.save(replace(fitted, reference=msgspec.structs.replace(fitted.reference, version=7)), tmp_path / "new")
    with pytest.raises(segcal.ArtifactError, match="a reference of version 7, but this segcal reads up to 2"):
        segcal.load(tmp_path / "new")
