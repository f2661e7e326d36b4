"""Strengths of a penalty: chosen on cases that had no part in the fit."""

import numpy as np
import pytest

from segcal import ArrayCases, FitConfig, fit
from segcal.fitting.config import STRENGTHS


def nll(calibrator, case):
    log_probs = calibrator(case.logits.T).numpy()
    return -log_probs[np.arange(len(log_probs)), case.labels.numpy()].mean()


def many_cases(make_data, count, seed=0, classes=5, voxels=150):
    drawn = [make_data(classes, voxels, seed=0 if count == 1 else 100 * seed + k) for k in range(count)]
    logits, labels = zip(*drawn, strict=True)
    return ArrayCases(logits, labels, ids=[f"s{seed}c{k}" for k in range(count)])


def test_strengths_are_chosen_on_validation_cases_along_a_path(make_data):
    cases, validation = many_cases(make_data, 3, voxels=60), many_cases(make_data, 8, seed=1)
    certificate = fit("dc", cases, validation=validation).certificate
    tried = {row["lam"]: row["held_out_nll"] for row in certificate.path}
    assert all(row["lam"] == row["mu"] == row["nu"] for row in certificate.path)
    assert list(tried) == sorted(tried, reverse=True)
    assert max(STRENGTHS) in tried
    assert certificate.lam in tried
    for strength, value in list(tried.items())[::3]:
        config = FitConfig(lam=strength, mu=strength, nu=strength)
        alone = fit("dc", cases, config=config).calibrator
        own = [nll(alone, c) for c in validation]
        assert value == pytest.approx(np.mean(own), abs=1e-3)


def test_what_held_out_cases_cannot_tell_apart_is_decided_for_the_stronger_one(make_data):
    """Between the best strength and the one that is taken, differences are within one standard error."""
    cases, validation = many_cases(make_data, 4, voxels=80), many_cases(make_data, 6, seed=1)
    certificate = fit("dc", cases, validation=validation).certificate
    tried = {row["lam"]: row["held_out_nll"] for row in certificate.path}
    best = min(tried, key=lambda strength: (tried[strength], -strength))
    assert certificate.lam >= best

    def worth(strength):
        calibrator = fit("dc", cases, config=FitConfig(lam=strength, mu=strength, nu=strength)).calibrator
        return np.array([nll(calibrator, c) for c in validation])

    def error(strength):
        gaps = worth(strength) - worth(best)
        return gaps.mean(), gaps.std(ddof=1) / np.sqrt(len(gaps))

    mean, limit = error(certificate.lam)
    assert mean <= limit + 1e-4
    stronger = [strength for strength in tried if strength > certificate.lam]
    if stronger:
        mean, limit = error(min(stronger))
        assert mean > limit - 1e-4


def test_without_validation_groups_are_held_out_in_turn(make_data):
    cases = many_cases(make_data, 6, voxels=200)
    certificate = fit("dc", cases, config=FitConfig(folds=3)).certificate
    assert len(certificate.path) > 2
    assert certificate.validation_nll is None
    again = fit("dc", cases, config=FitConfig(folds=3)).certificate
    assert again == certificate


def test_a_choice_at_the_end_of_the_path_is_said(make_data):
    """Labels that follow a temperature have nothing for a matrix to find."""
    rng = np.random.default_rng(1)
    logits = [3 * rng.normal(size=(4, 150)) for _ in range(6)]
    labels = [(0.5 * z + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    certificate = fit("dc", ArrayCases(logits, labels)).certificate
    assert certificate.lam == max(STRENGTHS)
    assert certificate.details["edge"] == "the strongest: temperature scaling in all but name"


def test_a_given_strength_is_kept_and_only_the_other_is_chosen(make_cases):
    certificate = fit(
        "dc", make_cases(3, 200), validation=make_cases(3, 500, seed=1), config=FitConfig(mu=0.5)
    ).certificate
    assert certificate.mu == 0.5
    assert {row["mu"] for row in certificate.path} == {0.5}
    assert len({row["lam"] for row in certificate.path}) > 2
