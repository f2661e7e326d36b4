"""Adaptation to another place: estimates against an independent optimum, simulated places, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import scipy
import torch

import segcal
from segcal.errors import InputError
from segcal.trust.adapt import _bbse, _em

HOME = np.array([0.7, 0.2, 0.1])
ELSEWHERE = np.array([0.3, 0.2, 0.5])
SHAPE = (9, 40)


def place(seed, cases, prior, network=HOME, scale=1.0):
    """Return logits and labels of a place; the network was trained where classes have the frequencies `network`."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.choice(3, size=SHAPE, p=rng.dirichlet(80 * prior)) for _ in range(cases)])
    shown = np.stack([labels == number for number in range(3)], 1)
    logits = 2 * (rng.normal(size=shown.shape) + 2 * shown) + np.log(network)[:, None, None]
    return (scale * logits).astype(np.float32), labels


@pytest.fixture(scope="module")
def known():
    logits, labels = place(0, 24, HOME)
    return segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels)


def test_both_estimates_are_the_optimum_that_another_solver_finds():
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.ones(27)).reshape(3, 9)
    seen = rng.dirichlet(np.ones(9))
    before = joint.sum(1)

    def best(loss):
        bound = {"type": "eq", "fun": lambda ratio: ratio @ before - 1}
        return scipy.optimize.minimize(loss, np.ones(3), bounds=[(1e-9, None)] * 3, constraints=bound, tol=1e-12).x

    likely = best(lambda ratio: -seen @ np.log(ratio @ joint))
    np.testing.assert_allclose(_em(joint, seen), likely, atol=2e-3)
    np.testing.assert_allclose(_bbse(joint, seen), best(lambda ratio: np.square(seen - ratio @ joint).sum()), atol=2e-3)


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_a_prior_shift_is_found_and_helps_and_no_label_changes(known, method):
    logits, labels = place(1, 10, ELSEWHERE)
    found = segcal.adapt(known, logits, method=method)
    assert found.adapted
    np.testing.assert_allclose(found.after, ELSEWHERE, atol=0.06)
    assert "class frequencies have changed" in found.verdict
    cases = segcal.ArrayCases(list(logits), list(labels))
    before, after = (
        segcal.evaluate(cases, each.calibrator, metrics=["nll", "flip_rate"]).after for each in (known, found.fitted)
    )
    assert after["nll"].value < 0.8 * before["nll"].value
    assert after["flip_rate"].value == 0


def test_places_like_home_are_left_alone_at_the_stated_rate(known):
    changed = [segcal.adapt(known, place(seed, 6, HOME)[0]).adapted for seed in range(100, 120)]
    assert sum(changed) <= 4  # 5 % of 20; a sum above 4 has a chance below 1 %


@pytest.mark.parametrize("scale", [0.4, 2.5])
def test_a_network_that_changed_is_no_prior_shift(known, scale):
    logits, _ = place(2, 10, ELSEWHERE, scale=scale)
    found = segcal.adapt(known, logits)
    assert not found.adapted
    assert found.fitted is known
    assert found.verdict.startswith("the predictions differ from those of labelled cases in more than class freq")


def test_a_calibrator_that_is_off_by_class_at_home_is_left_alone():
    uniform = np.full(3, 1 / 3)
    logits, labels = place(3, 24, HOME, uniform)
    own = segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels)
    found = segcal.adapt(own, place(4, 10, ELSEWHERE, uniform)[0])
    assert not found.adapted
    assert "off by class where it was fitted" in found.verdict


def test_too_few_draws_and_references_of_older_versions_are_refused(known):
    with pytest.raises(InputError, match=r"^there are 2 new groups .* and 24 labelled ones, but 3 and 10 are needed"):
        segcal.adapt(known, place(5, 2, HOME)[0])
    cases = tuple(msgspec.structs.replace(each, joint="") for each in known.reference.cases)
    old = replace(known, reference=msgspec.structs.replace(known.reference, cases=cases))
    with pytest.raises(InputError, match=r"^the reference does not tell decisions by label, but"):
        segcal.adapt(old, place(5, 4, HOME)[0])


def test_it_is_saved_and_loaded(known, tmp_path):
    found = segcal.adapt(known, place(1, 10, ELSEWHERE)[0]).fitted
    loaded = segcal.load(segcal.save(found, tmp_path / "new"))
    logits = torch.from_numpy(place(6, 2, ELSEWHERE)[0])
    assert torch.equal(loaded.calibrator(logits), found.calibrator(logits))
