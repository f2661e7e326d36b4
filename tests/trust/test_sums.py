"""Sums of a case, against plain loops over its voxels."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal import make_calibrator
from segcal.cases.base import Case
from segcal.evaluation import slabs
from segcal.trust.sums import BINS, THRESHOLDS, agreement_of, sum_case, touching, voxel_size


def softmax(z):
    e = np.exp(z - z.max(0))
    return e / e.sum(0)


def made(seed=0, classes=4, space=(3, 5, 7), temperature=2.0):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(classes, *space))
    labels = rng.integers(-1, classes, size=space)
    mask = rng.random(space) < 0.8
    labels[~mask] = -1
    calibrator = make_calibrator("ts", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(1 / temperature)
    return calibrator, logits, labels, mask


def test_sums_are_those_of_plain_loops():
    calibrator, logits, labels, mask = made()
    case = Case("a", torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(mask), (2.0, 3.0, 5.0))
    found = sum_case(calibrator, case)
    p, m = softmax(logits / 2)[:, mask], logits.argmax(0)[mask]
    y = labels[mask]
    edge = np.zeros(labels.shape, bool)
    whole = logits.argmax(0)
    for place in np.ndindex(whole.shape):
        for axis in range(3):
            for step in (-1, 1):
                near = list(place)
                near[axis] += step
                inside = 0 <= near[axis] < whole.shape[axis]
                edge[place] |= inside and whole[tuple(near)] != whole[place]
    e = edge[mask]
    for c in range(4):
        assert found.mask[c] == (m == c).sum()
        assert found.prob[c] == pytest.approx(p[c].sum())
        assert found.hit[c] == pytest.approx(p[c, m == c].sum())
        assert found.spread[c] == pytest.approx((p[c] * (1 - p[c])).sum())
        assert found.edge[c] == (e & (m == c)).sum()
        assert found.edge_prob[c] == pytest.approx(p[c, e & (m == c)].sum())
        assert found.truth.truth[c] == (y == c).sum()
        assert found.truth.found[c] == ((y == c) & (m == c)).sum()
        assert found.truth.counted[c] == ((m == c) & (y >= 0)).sum()
        for k, t in enumerate(THRESHOLDS):
            assert found.truth.by_prob[c, k + 1 :].sum() == (p[c, y == c] >= t).sum()
            assert found.truth.all_by_prob[c, k + 1 :].sum() == (p[c, y >= 0] >= t).sum()
            ranks = [(q[q > q[c]].sum() + q[c]) for q in p[:, y == c].T]
            assert found.truth.by_rank[c, : k + 1].sum() == sum(rank <= t for rank in ranks)
    assert found.voxels == mask.sum()
    assert found.entropy == pytest.approx(-(p * np.log(p)).sum())
    assert (found.size, found.unit) == (pytest.approx(0.03), "ml")
    assert found.truth.by_prob.shape == (4, BINS)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 99), values=st.integers(1, 300))
def test_they_do_not_depend_on_the_slabs(seed, values):
    calibrator, logits, labels, mask = made(seed)
    case = Case("a", torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(mask))
    whole, before = sum_case(calibrator, case), slabs.STEP_VALUES
    try:
        slabs.STEP_VALUES = values
        cut = sum_case(calibrator, case)
    finally:
        slabs.STEP_VALUES = before
    for name in ("mask", "prob", "hit", "spread", "edge", "edge_prob", "entropy"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-12)
    np.testing.assert_array_equal(cut.truth.by_rank.sum(1), whole.truth.by_rank.sum(1))
    np.testing.assert_array_equal(cut.truth.by_prob, whole.truth.by_prob)


def test_the_mask_is_the_decision_that_stays_in_a_tie():
    logits = torch.tensor([[1.0, 1.0, 2.0], [1.0, 3.0, 2.0]])
    found = sum_case(make_calibrator("ts", 2), Case("a", logits))
    assert found.mask.tolist() == [2, 1]
    assert found.truth is None


def test_members_agree_as_their_pairs_do():
    maps = [torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])]
    pairs = [(2 * 1 / 3, 2 * 2 / 5), (2 * 1 / 3, 2 * 2 / 5), (2 * 1 / 4, 2 * 1 / 4)]
    found = agreement_of(maps, 3)
    assert found[:2] == pytest.approx(np.mean(pairs, 0))
    assert np.isnan(found[2])
    assert agreement_of(maps[:1], 3) is None


def test_edges_of_a_line_and_of_nothing():
    assert touching(torch.zeros(0, dtype=torch.long)).numel() == 0
    assert not touching(torch.tensor(3)).any()
    assert touching(torch.tensor([[0, 0], [0, 1]])).tolist() == [[False, True], [True, True]]


def test_a_spacing_that_is_not_of_two_or_three_axes_is_in_voxels():
    assert voxel_size((2.0,)) == (1.0, "voxels")
