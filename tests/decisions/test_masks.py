"""Masks and rows against plain numpy, for classes and regions, in slabs, in two and three dimensions."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import segcal
from segcal.cases.base import Case
from segcal.decisions import make_rule
from segcal.decisions import masks as module
from segcal.decisions.masks import Decider

ALL = ("argmax", "dice", "volume", "recall=0.8", "precision=0.8")


def softmax(scores):
    shifted = np.exp(scores - scores.max(0))
    return shifted / shifted.sum(0)


def plain(fitted, case):
    """Probabilities of the structures by the calibrator itself, and the preserved masks."""
    log_probs = fitted.calibrator(case.logits[None])[0].numpy().astype(float)
    if fitted.calibrator.regions is not None:
        return np.exp(log_probs), case.logits.numpy() > 0
    best = case.logits.numpy().argmax(0)
    return softmax(log_probs)[1:], np.stack([best == 1, best == 2])


def stack(found, overlapping):
    return found.astype(bool) if overlapping else np.stack([found == 1, found == 2])


@pytest.mark.parametrize("regions", [False, True])
@pytest.mark.parametrize("space", [(9, 11), (5, 6, 7)])
@pytest.mark.parametrize("rule", ALL)
def test_rows_are_what_numpy_says_of_the_masks(rule, space, regions, fitted, fitted_regions, make_cases):
    own = fitted_regions if regions else fitted
    case = make_cases(1, seed=5, space=space, regions=regions).checked("case00")
    decider = Decider(own, make_rule(rule))
    found, rows = decider(case)
    assert decider.overlapping == (regions or "=" in rule)
    masks, (probs, kept) = stack(found, decider.overlapping), plain(own, case)
    for number, row in enumerate(rows):
        p, mask, before = probs[number], masks[number], kept[number]
        assert row["voxels"] == mask.sum()
        assert row["changed_voxels"] == (mask != before).sum()
        assert row["preserved_voxels"] == before.sum()
        assert row["expected_dice"] == pytest.approx(2 * p[mask].sum() / (mask.sum() + p.sum()), rel=1e-5)
        assert row["preserved_dice"] == pytest.approx(2 * p[before].sum() / (before.sum() + p.sum()), rel=1e-5)
        assert row["expected_recall"] == pytest.approx(p[mask].sum() / p.sum(), rel=1e-5)
        assert row["expected_precision"] == pytest.approx(p[mask].mean(), rel=1e-5)
        assert row["expected_volume"] == pytest.approx(p.sum(), rel=1e-5)
        bound = 2 * (p * (1 - p)).sum() / (mask.sum() + p.sum()) ** 2
        assert row["dice_bound"] == pytest.approx(min(bound, 1), rel=1e-4)
        if row["threshold"] is None:
            assert (mask == before).all()
        elif not row["overlap_voxels"]:
            assert (mask == (p >= row["threshold"] - 1e-6)).all()


@pytest.mark.parametrize("rule", ["dice", "recall=0.8"])
def test_slabs_and_voxels_that_were_not_predicted_change_nothing(rule, fitted, make_cases, monkeypatch):
    case = make_cases(1, seed=6, space=(12, 5, 4)).checked("case00")
    masked = Case(case.id, case.logits, mask=torch.arange(12)[:, None, None].expand(12, 5, 4) < 9)
    inner = Case(case.id, case.logits[:, :9])
    decider = Decider(fitted, make_rule(rule))
    whole, rows = decider(inner)
    monkeypatch.setattr(module, "STEP_VALUES", 3 * 5 * 4 * 2)  # two planes a slab
    found, again = decider(masked)
    assert (found[..., :9, :, :] == whole).all()
    assert not found[..., 9:, :, :].any()
    for one, other in zip(rows, again, strict=True):
        for key, value in one.items():
            assert other[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key


def test_a_voxel_of_two_masks_goes_where_it_exceeds_its_threshold_most(fitted):
    """Both structures reach their thresholds in the middle; the rarer one, whose threshold is lower, gets it."""
    probs = np.array([[0.02, 0.15, 0.5], [0.97, 0.6, 0.05], [0.01, 0.25, 0.45]])
    case = Case("a", torch.from_numpy(np.log(probs)))
    plain = segcal.Fitted(segcal.make_calibrator("identity", 3), fitted.certificate, fitted.config)

    fixed = replace(make_rule("volume"), of_case=lambda ranked: 0.5 if ranked.probs[0] > 0.9 else 0.1)
    found, rows = Decider(plain, fixed)(case)
    assert found.tolist() == [1, 2, 2]
    assert [row["overlap_voxels"] for row in rows] == [1, 0]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["recall", "precision"]))
def test_masks_of_one_rule_are_nested(fitted, make_cases, seed, name):
    case = make_cases(1, seed=seed).checked("case00")
    found = [Decider(fitted, make_rule(f"{name}={level}"))(case).masks for level in (0.6, 0.75, 0.9)]
    for smaller, larger in pairwise(found if name == "recall" else found[::-1]):
        assert (smaller <= larger).all()


def test_the_preserved_mask_is_that_of_the_predictions_whatever_the_calibrator_does(fitted, make_cases):
    """A calibrator that moves decisions does not move the preserved mask."""
    moving = segcal.fit("vs", make_cases(8, seed=1))
    assert moving.calibrator.preserves is None
    case = make_cases(1, seed=8).checked("case00")
    assert (Decider(moving, make_rule("argmax"))(case).masks == case.logits.numpy().argmax(0)).all()


def test_many_classes_have_room_in_a_label_map(fitted):
    logits = torch.full((300, 2, 3), -9.0)
    logits[299] = 9.0
    whole = segcal.Fitted(segcal.make_calibrator("identity", 300), fitted.certificate, fitted.config)
    found = Decider(whole, make_rule("argmax"))(Case("a", logits)).masks
    assert (found.dtype, found.max()) == (np.uint16, 299)


@pytest.mark.parametrize("threshold", [0.2, 0.9])
def test_without_background_every_predicted_voxel_has_a_structure(threshold, fitted, make_cases):
    """With one threshold for all, the largest multiple of it is the largest probability."""
    rule = replace(make_rule("volume"), of_case=lambda ranked: threshold)
    case = make_cases(1, seed=7, space=(12, 5, 4)).checked("case00")
    masked = Case(case.id, case.logits, mask=torch.arange(12)[:, None, None].expand(12, 5, 4) < 9)
    found, rows = Decider(fitted, rule, background=False)(masked)
    assert (found[:9] == case.logits[:, :9].argmax(0).numpy()).all()
    assert [row["voxels"] for row in rows] == np.bincount(found[:9].ravel(), minlength=3).tolist()
