"""Sums of regions against plain numpy, and what is learned of them."""

import numpy as np
import pytest
import torch

import segcal
from segcal.cases.base import Case
from segcal.fitting.reference import read_numbers
from segcal.trust.learn import Summer
from segcal.trust.region_sums import sum_regions
from segcal.trust.sums import THRESHOLDS
from segcal.types import IGNORED


@pytest.fixture(scope="module")
def regions():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(12, 2, 5, 6)).astype("float32")
    logits[:, 1] = np.minimum(logits[:, 0], logits[:, 1])
    labels = (logits[:, 0] > rng.logistic(size=(12, 5, 6))).astype(int) * (1 + (logits[:, 1] > 0))
    return segcal.ArrayCases(
        list(logits), list(labels), kind="logits", regions={"whole": [1, 2], "core": [2]},
        groups=[f"g{number // 2}" for number in range(12)],
    )  # fmt: skip


def test_sums_are_those_of_the_probabilities_after_nesting(regions):
    fitted = segcal.fit("ts", regions)
    case = regions.checked(regions.ids[3])
    labels, mask = case.labels.clone(), torch.ones(5, 6, dtype=torch.bool)
    labels[0], mask[:, 0] = IGNORED, False
    labels[~mask] = IGNORED
    sums = sum_regions(fitted.calibrator, Case("a", case.logits, labels, mask, group="g"))
    p = fitted.calibrator(case.logits[None])[0].exp().double().numpy()[:, mask]
    y = np.stack([np.isin(labels, own) for own in ([1, 2], [2])])[:, mask]
    known = (labels != IGNORED).numpy()[mask]
    on = (case.logits > 0).numpy()[:, mask]
    assert sums.voxels == 25
    assert sums.prob == pytest.approx(p.sum(1), rel=1e-5)
    assert sums.hit == pytest.approx((p * on).sum(1), rel=1e-5)
    assert sums.spread == pytest.approx((p * (1 - p)).sum(1), rel=1e-5)
    assert (sums.mask == on.sum(1)).all()
    assert (sums.truth.truth == y.sum(1)).all()
    assert (sums.truth.found == (y & on).sum(1)).all()
    assert (sums.truth.counted == (on & known).sum(1)).all()
    for number in range(2):
        reached = (p[number][:, None] >= THRESHOLDS).sum(1)
        assert (sums.truth.by_prob[number] == np.bincount(reached[y[number]], minlength=66)).all()
        assert (sums.truth.all_by_prob[number] == np.bincount(reached[known], minlength=66)).all()


def test_each_fold_of_regions_is_judged_by_fits_to_the_others(regions):
    reference = segcal.learn_trust(segcal.fit("ts", regions), regions).reference
    assert (reference.source, len(reference.folds), len(reference.curves)) == ("out of fold", 6, 2)
    assert not reference.chosen
    own = regions.subset([each for each in regions.ids if regions.groups[each] != "g2"])
    other = segcal.fit("ts", own).calibrator
    found = read_numbers(next(each for each in reference.cases if each.group == "g2").numbers, 4 + 2 * 11)
    first = next(each for each in regions.ids if regions.groups[each] == "g2")
    assert found[5] == pytest.approx(Summer(other, regions)(first).prob[0], rel=1e-4)
    assert (read_numbers(reference.curves[0].missed, 65) >= 0).all()


def test_a_choice_on_the_same_cases_is_remembered(regions, tmp_path):
    chosen = segcal.choose(regions)
    learned = segcal.learn_trust(chosen, regions)
    assert learned.reference.chosen
    segcal.save(learned, tmp_path / "cal")
    again = segcal.load(tmp_path / "cal")
    assert again.reference == learned.reference
    assert segcal.learn_trust(again, regions).reference.curves == learned.reference.curves
