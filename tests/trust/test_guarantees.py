"""Inner and outer masks and label sets: against counting, nested, and within their bounds on average."""

import msgspec
import numpy as np
import pytest

import segcal
from segcal.fitting.reference import LossCurves, written_numbers
from segcal.trust.guarantees import INNER, MASK, OUTER, MaskWriter, bounds_of, label_sets, masks_folder, nested_masks
from segcal.trust.sums import THRESHOLDS


def probs_of(fitted, case):
    return fitted.calibrator(case.logits[None])[0].exp().numpy()


def test_thresholds_are_the_widest_that_keep_the_bound(fitted):
    bounds = bounds_of(fitted.reference, 0.1)
    for number, curves in enumerate(fitted.reference.curves):
        missed, outranked, wrong = (
            np.array([float(word) for word in text.split()]) for text in (curves.missed, curves.outranked, curves.wrong)
        )
        n = curves.present
        outer = [t for t, loss in zip(THRESHOLDS, missed, strict=True) if (n * loss + 1) / (n + 1) <= 0.1 and t <= 0.5]
        inner = [t for t, loss in zip(THRESHOLDS, wrong, strict=True) if (30 * loss + 1) / 31 <= 0.1 and t >= 0.5]
        rank = [t for t, loss in zip(THRESHOLDS, outranked, strict=True) if (n * loss + 1) / (n + 1) <= 0.1]
        assert bounds[number].outer == pytest.approx(max(outer))
        assert bounds[number].inner == (pytest.approx(min(inner)) if inner else None)
        assert bounds[number].rank == (pytest.approx(min(rank)) if rank else None)


def test_masks_are_nested_and_cut_at_the_thresholds(fitted, make_cases):
    case = make_cases(1, seed=20).checked("case00")
    bounds = bounds_of(fitted.reference, 0.1)
    levels, p = nested_masks(fitted.calibrator, case, bounds), probs_of(fitted, case)
    decided = case.logits.numpy().argmax(0)
    for number, own in enumerate(bounds):
        assert ((levels[number] >= MASK) == (decided == number)).all()
        np.testing.assert_array_equal(levels[number] >= OUTER, (p[number] >= own.outer) | (decided == number))
        np.testing.assert_array_equal(levels[number] == INNER, p[number] >= own.inner)


@pytest.mark.parametrize("rule", ["prob", "rank"])
def test_label_sets_hold_the_decided_class_and_what_is_likely_enough(fitted, make_cases, rule):
    case = make_cases(1, seed=21).checked("case00")
    bounds = bounds_of(fitted.reference, 0.05)
    sets, p = label_sets(fitted.calibrator, case, bounds, rule), probs_of(fitted, case)
    decided = case.logits.numpy().argmax(0)
    for number, own in enumerate(bounds):
        if rule == "prob":
            inside = p[number] >= own.outer
        else:
            inside = np.where(p > p[number], p, 0).sum(0) + p[number] <= (2 if own.rank is None else own.rank)
        np.testing.assert_array_equal(sets[number], inside | (decided == number))


def test_all_at_once_takes_a_smaller_share_of_each_and_too_small_ones_are_refused(fitted):
    several, single = bounds_of(fitted.reference, 0.2, [1, 2], at_once=True), bounds_of(fitted.reference, 0.1, [1, 2])
    assert several == single
    assert single[0].outer is None
    text = "a share of 0.02 is asked for, but 30 reference groups .* cannot support it: 49 are needed. Allow"
    with pytest.raises(segcal.InputError, match=text):
        bounds_of(fitted.reference, 0.02)


def test_a_structure_that_no_labelled_case_has_gets_no_outer_mask(fitted, make_cases):
    flat = written_numbers(np.zeros(65))
    curves = (*fitted.reference.curves[:2], LossCurves(0, "", "", flat))
    reference = msgspec.structs.replace(fitted.reference, curves=curves)
    own = bounds_of(reference, 0.1)[2]
    assert (own.outer, own.rank, own.present) == (None, None, 0)
    assert own.inner == pytest.approx(0.5)
    case = make_cases(1, seed=23).checked("case00")
    assert label_sets(fitted.calibrator, case, bounds_of(reference, 0.1))[2].all()
    assert not (nested_masks(fitted.calibrator, case, bounds_of(reference, 0.1))[2] == OUTER).any()


def test_masks_are_written_of_the_structures(fitted, make_cases, tmp_path):
    cases = make_cases(2, seed=24, labelled=False)
    with masks_folder(tmp_path / "masks", again=False, whole=True) as folder:
        MaskWriter(fitted, cases, [1, 2], 0.1, folder)("case01")
        assert not (tmp_path / "masks").exists()
    path = tmp_path / "masks" / "case01.npy"
    whole = nested_masks(fitted.calibrator, cases.checked("case01"), bounds_of(fitted.reference, 0.1))
    np.testing.assert_array_equal(np.load(path), whole[1:])
    with pytest.raises(segcal.InputError, match=r"masks holds case01.npy, but results would be mixed with it"):
        masks_folder(tmp_path / "masks", again=False, whole=True).__enter__()
    with masks_folder(tmp_path / "masks", again=True, whole=True) as folder:
        assert folder == tmp_path / "masks"
