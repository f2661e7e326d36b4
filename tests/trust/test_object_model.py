"""The model of real objects: its optimum, its lists, and what they promise, against independent answers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import segcal
from segcal.fitting.object_reference import ObjectCase, ObjectReference, ObjectRule
from segcal.trust.object_model import (
    PLUG_IN,
    THRESHOLDS,
    _least,
    features_of,
    fit_logistic,
    folds_of,
    structure_models,
)


def drawn(seed, draws, most=4, cases=1):
    """Return a reference whose objects are real with a chance that their mean probability tells of."""
    rng, kept = np.random.default_rng(seed), []
    for draw in range(draws):
        shift = rng.normal()
        for case in range(cases):
            rows = []
            for _ in range(rng.integers(0, most + 1)):
                odds = 2 * rng.normal() + shift
                size, mean = rng.integers(1, 60), 1 / (1 + np.exp(-odds / 2))
                real = rng.random() < 1 / (1 + np.exp(-odds))
                truth = max(1, size + round(rng.normal() * (1 + size * (1 - mean)))) if real else 0
                rows += [1, size, mean, mean**0.5, 0.5, rng.random() < 0.3, np.nan, real, 0.8 * real, truth, real]
            text = " ".join(f"{float(value):.6g}" for value in rows)
            kept.append(ObjectCase(f"{draw:03d}_{case}", f"g{draw:03d}", text, f"{len(rows)} {rng.integers(0, 3)}"))
    return ObjectReference(1, "held out", "", (1,), ObjectRule(), tuple(kept))


def part(reference, start, stop):
    fields = (reference.version, reference.source, "", reference.structures, reference.rule)
    return ObjectReference(*fields, reference.cases[start:stop])


@pytest.mark.parametrize("strength", [1.0, 10.0, PLUG_IN])
def test_the_optimum_is_that_of_a_general_optimiser(strength):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)) * [1, 5, 0.1] + [0, 3, 0]
    y = (rng.random(80) < 1 / (1 + np.exp(-x[:, 0] - 1))).astype(float)
    found = fit_logistic(x, y, strength)
    z = (x - x.mean(0)) / x.std(0)
    usual = np.array([x[:, 0].std(), 0, 0])

    def loss(at):
        odds = at[0] + z @ at[1:]
        average = np.logaddexp(0, at[0]) * 2 - at[0]
        return np.logaddexp(0, odds).sum() - y @ odds + average + strength * ((at[1:] - usual) ** 2).sum() / 2

    if strength == PLUG_IN:
        peer = minimize(lambda b: loss([b[0], *usual]), [0.0], tol=1e-12).x
        assert found.weights == pytest.approx([peer[0], *usual], abs=1e-5)
    else:
        peer = minimize(loss, np.zeros(4), tol=1e-12).x
        assert found.weights == pytest.approx(peer, abs=1e-4)
    assert found(x) == pytest.approx(1 / (1 + np.exp(-found.weights[0] - z @ found.weights[1:])))


def test_all_objects_real_is_no_certainty():
    found = fit_logistic(np.zeros((8, 2)), np.ones(8), 1.0)
    assert found(np.zeros((1, 2)))[0] == pytest.approx(9 / 10)  # as if one of ten had been false


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.2, 0.5]))
def test_the_threshold_is_that_of_lists_counted_one_by_one(seed, fdr):
    rng = np.random.default_rng(seed)
    owners = np.sort(rng.integers(0, 25, 70))
    groups = np.array([f"g{k // 2}" for k in range(25)], object)
    scores, real = rng.random(70), (rng.random(70) < 0.7).astype(float)
    cases = sorted(set(owners.tolist()))

    def share(case, at):
        own = [k for k in range(70) if owners[k] == case and scores[k] >= at]
        return sum(real[k] == 0 for k in own) / len(own) if own else 0.0

    answer = None
    for place in reversed(range(len(THRESHOLDS) + 1)):
        grid = THRESHOLDS[place:]
        by_group = {}
        for case in cases:
            by_group.setdefault(groups[case], []).append(max([share(case, at) for at in grid], default=0.0))
        mean = np.mean([np.mean(values) for values in by_group.values()])
        if (len(by_group) * mean + 1) / (len(by_group) + 1) > fdr + 1e-9:
            break
        answer = THRESHOLDS[place] if place < len(THRESHOLDS) else np.inf
    assert _least(owners, groups, scores, real, fdr) == answer


def false_share(model, members, reference):
    shares = []
    for case in reference.cases:
        rows = np.array(case.objects.split(), float).reshape(-1, 11)
        if len(rows):
            listed = model.chance(features_of(rows, members)) >= model.least
            shares.append((rows[listed, 7] == 0).mean() if listed.any() else 0.0)
    return np.mean(shares)


@pytest.mark.parametrize("proved", [False, True])
def test_lists_hold_their_bound_over_many_references(proved):
    found, covered = [], []
    for seed in range(60):
        whole = drawn(seed, 120)
        (model,), members = structure_models(part(whole, 0, 60), 0.9, 0.2, proved)
        found.append(false_share(model, members, part(whole, 60, 120)))
        rows = np.concatenate([np.array(c.objects.split(), float).reshape(-1, 11) for c in whole.cases[60:]])
        rows = rows[rows[:, 7] == 1]
        covered.append((np.abs(rows[:, 9] - rows[:, 1]) <= model.spread * (1 + rows[:, 1] * (1 - rows[:, 2]))).mean())
    error = 3 * np.std(found) / np.sqrt(len(found))
    assert 0.02 < np.mean(found) <= 0.2 + error
    assert 0.88 < np.mean(covered) < 0.95


def test_probabilities_are_honest():
    whole = drawn(1, 1200)
    (model,), members = structure_models(part(whole, 0, 600), 0.9, 0.1)
    rows = np.concatenate([np.array(c.objects.split(), float).reshape(-1, 11) for c in whole.cases[600:]])
    chance = model.chance(features_of(rows, members))
    for low in (0.0, 0.25, 0.5, 0.75):
        own = (chance >= low) & (chance < low + 0.25)
        assert rows[own, 7].mean() == pytest.approx(chance[own].mean(), abs=0.06)
    assert model.how == "learned"
    assert model.missed == pytest.approx(np.mean([float(c.structures.split()[1]) for c in whole.cases[:600]]))


def test_few_objects_give_the_plug_in_and_too_few_draws_are_refused():
    whole = drawn(3, 7, most=2)
    (model,), _ = structure_models(whole, 0.5, 0.4)
    assert model.how == "plug-in"
    assert model.chance.weights[2:] == pytest.approx(0, abs=1e-6)
    text = "the calibrator remembers .* objects of 4 draws .*, but objects of 5 draws are needed. Learn from more"
    with pytest.raises(segcal.InputError, match=text):
        structure_models(part(whole, 0, 4), 0.5, 0.4)
    with pytest.raises(segcal.InputError, match="but objects of 10 draws are needed"):
        structure_models(whole, 0.5, 0.4, proved=True)


def test_a_bound_that_draws_cannot_support_lists_nothing_and_says_so():
    (model,), _ = structure_models(drawn(4, 12), 0.9, 0.01)
    assert model.least is None


def test_groups_stay_together():
    folds = folds_of(list("abcabcddee"), 3)
    assert all(len({folds[k] for k, name in enumerate("abcabcddee") if name == one}) == 1 for one in "abcde")
