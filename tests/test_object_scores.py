"""Scores of `paper/object_scores.py`: by hand, and as picai_eval and panoptica have them."""

import numpy as np
import pytest
from scipy import ndimage

from paper.object_scores import (
    average_precision,
    calibration_error,
    free_response,
    panoptic_quality,
    sensitivity_at,
)
from segcal.fitting.object_reference import ObjectRule
from segcal.trust.components import overlaps


def made_up(seed, count=8, space=(5, 14, 17)):
    """Return label maps of both sides, numbered, and a score of each object."""
    rng = np.random.default_rng(seed)
    cases = []
    for _ in range(count):
        smooth = ndimage.gaussian_filter(rng.normal(size=space), (0.8, 1.5, 1.5))
        other = smooth + 0.25 * ndimage.gaussian_filter(rng.normal(size=space), (0.8, 1.5, 1.5))
        masks = [each > np.quantile(each, 0.93) for each in (smooth, other)]
        theirs, ours = (ndimage.label(mask, np.ones((3, 3, 3)))[0].astype(np.int64) for mask in masks)
        cases.append((ours, theirs, rng.integers(1, 99, ours.max()) / 100))
    return cases


def rows_of(cases, rule):
    found = [(overlaps(ours, theirs, rule), scores, theirs.max()) for ours, theirs, scores in cases]
    table = np.concatenate([said for (said, _), _, _ in found])
    scores, truths = np.concatenate([each for _, each, _ in found]), int(sum(count for _, _, count in found))
    return table, scores, truths


def test_a_small_list_by_hand():
    scores, matched = np.array([0.9, 0.8, 0.7, 0.6, 0.6]), np.array([1, 0, 1, 0, 0])
    real = np.array([1, 0, 1, 1, 0])  # the fourth is a further piece
    false, sensitivity, precision = free_response(scores, matched, real, truths=4, cases=2)
    assert false.tolist() == [0, 0.5, 0.5, 1]
    assert sensitivity.tolist() == [0.25, 0.25, 0.5, 0.5]
    assert precision == pytest.approx([1, 0.5, 2 / 3, 0.5])
    assert average_precision(scores, matched, real, 4) == pytest.approx(0.25 + 0.25 * 2 / 3)
    assert sensitivity_at(false, sensitivity, (0.4, 0.5, 3)) == [0.25, 0.5, 0.5]
    assert panoptic_quality(np.array([1.0, 0.8, 0.5]), 3) == pytest.approx((1 + 0.8 / 1.2) / (2 + 1))
    assert np.isnan(panoptic_quality(np.zeros(0), 0))
    assert calibration_error(np.array([0.05, 0.95, 0.95]), np.array([0, 1, 0])) == pytest.approx((0.05 + 0.9) / 3)


@pytest.mark.parametrize("seed", range(3))
def test_detection_is_that_of_picai_eval(seed):
    picai = pytest.importorskip("picai_eval")
    cases = made_up(seed)
    table, scores, truths = rows_of(cases, ObjectRule("iou", 0.1))
    maps = [np.concatenate([[0], own])[ours] for ours, _, own in cases]
    found = picai.evaluate(maps, [(theirs > 0).astype(int) for _, theirs, _ in cases], num_parallel_calls=1)
    false, sensitivity, _ = free_response(scores, table[:, 3], table[:, 0], truths, len(cases))
    assert average_precision(scores, table[:, 3], table[:, 0], truths) == pytest.approx(found.AP)
    for rate in (0.25, 0.5, 1, 2):
        assert sensitivity_at(false, sensitivity, [rate])[0] == pytest.approx(
            max(found.lesion_TPR[found.lesion_FPR <= rate], default=0.0)
        )


@pytest.mark.parametrize("seed", range(3))
def test_panoptic_quality_is_that_of_panoptica(seed):
    panoptica = pytest.importorskip("panoptica")
    for ours, theirs, _ in made_up(seed, count=4):
        evaluator = panoptica.Panoptica_Evaluator(
            expected_input=panoptica.InputType.UNMATCHED_INSTANCE,
            instance_matcher=panoptica.NaiveThresholdMatching(matching_threshold=0.5 + 1e-9),  # it takes equal ones
        )
        peer = next(iter(evaluator.evaluate(ours.astype(np.uint16), theirs.astype(np.uint16)).values()))
        said, _ = overlaps(ours, theirs, ObjectRule("iou", 0.5))
        assert panoptic_quality(said[:, 1], int(theirs.max())) == pytest.approx(peer.pq)
