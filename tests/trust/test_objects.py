"""New objects: the model of real ones, its lists and what they promise, against independent answers; rows of each."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import segcal
from segcal.fitting.object_reference import ObjectCase, ObjectReference, ObjectRule
from segcal.trust.components import find_objects
from segcal.trust.object_model import PLUG_IN, THRESHOLDS, _least, features_of, fit_logistic, structure_models
from segcal.trust.objects import _world


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


@pytest.mark.parametrize("strength", [1.0, PLUG_IN])
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


@settings(max_examples=15, deadline=None)
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
    for seed in range(30):
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
    text = "the calibrator remembers .* objects of 4 groups .*, but objects of 5 groups are needed. Learn from more"
    with pytest.raises(segcal.InputError, match=text):
        structure_models(part(whole, 0, 4), 0.5, 0.4)
    with pytest.raises(segcal.InputError, match="but objects of 10 groups are needed"):
        structure_models(whole, 0.5, 0.4, proved=True)
    (model,), _ = structure_models(drawn(4, 12), 0.9, 0.01)
    assert model.least is None  # a bound that so few groups cannot support


@pytest.fixture(scope="module")
def learned(fitted, make_cases):
    return segcal.learn_objects(fitted, make_cases(30, seed=2, prefix="ref"))


def test_rows_are_those_of_the_model(learned, make_cases):
    cases = make_cases(4, seed=5, prefix="new")
    found = segcal.objects(learned, cases, level=0.8, fdr=0.2)
    models, members = structure_models(learned.objects, 0.8, 0.2)
    assert members
    start = 0
    for case_id in cases.ids:
        own = find_objects(learned.calibrator, cases.with_disagreement().checked(case_id), (1, 2), ObjectRule())
        for model, structure in zip(models, (1, 2), strict=True):
            table = own.table[own.table[:, 0] == structure]
            part = found.rows[start : start + len(table)]
            start += len(table)
            chance = model.chance(features_of(table, True))
            assert [row.p_real for row in part] == pytest.approx(chance)
            assert [row.listed for row in part] == (chance >= model.least).tolist()
            for row, own_row in zip(part, table, strict=True):
                wrong = model.spread * (1 + own_row[1] * (1 - own_row[2]))
                assert (row.size_low, row.size_high) == pytest.approx((max(1, own_row[1] - wrong), own_row[1] + wrong))
                assert (row.case, row.unit, row.size) == (case_id, "voxels", own_row[1])
                assert (row.real, row.dice) == (bool(own_row[7]), pytest.approx(own_row[8]))
                assert (row.world, row.world_box) == (None, None)
    assert start == len(found.rows) == sum(row.objects for row in found.cases)
    assert "groups" not in found.promise
    assert "not proved: the model of objects was learned on the same cases" in found.promise
    assert "This is proved" in segcal.objects(learned, cases, proved=True).promise


def test_new_cases_need_no_labels(learned, make_cases):
    with_labels, without = (make_cases(3, seed=5, prefix="new", labelled=each) for each in (True, False))
    one, other = (segcal.objects(learned, each) for each in (with_labels, without))
    assert [row[:18] for row in one.rows] == [row[:18] for row in other.rows]
    assert {row.real for row in other.rows} == {None}
    assert {(row.truths, row.missed) for row in other.cases} == {(None, None)}


def test_world_coordinates_are_those_of_each_corner():
    affine = np.array([[0, 2, -1, 5], [3, 0, 0, -7], [0, 0, 1.5, 1.0]])
    world, box = _world(affine, np.array([1.0, 2.0, 0.5]), np.array([0, 1, 0, 2, 4, 3]))
    assert world == pytest.approx([2 * 2 - 0.5 + 5, 3 - 7, 0.75 + 1])
    corners = [affine[:, :3] @ [i, j, k] + affine[:, 3] for i in (0, 1) for j in (1, 3) for k in (0, 2)]
    assert box == pytest.approx([*np.min(corners, 0), *np.max(corners, 0)])


def test_what_is_missing_is_said(learned, fitted, make_cases):
    cases = make_cases(3, seed=5, prefix="new")
    with pytest.raises(segcal.InputError, match=r"remembers no objects, .* Fit again with segcal fit --objects"):
        segcal.objects(fitted, cases)
    other = replace(learned, objects=msgspec.structs.replace(learned.objects, calibrator="x"))
    with pytest.raises(segcal.InputError, match="the objects belong to another calibrator"):
        segcal.objects(other, cases)
    with pytest.raises(segcal.InputError, match="fdr is 1, but a share between 0 and 1 is needed"):
        segcal.objects(learned, cases, fdr=1.0)
    with pytest.raises(segcal.InputError, match="has no members that could disagree"):
        segcal.objects(learned, make_cases(3, seed=5, members=1, prefix="new"), ignore_pooling=True)
    with pytest.raises(segcal.InputError, match="cases is empty"):
        segcal.objects(learned, cases.subset([]))
