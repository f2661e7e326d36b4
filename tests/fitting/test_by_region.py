"""Fits of regions: each is the fit of its own two classes, and the certificates add up."""

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression, minimize, minimize_scalar

import segcal
from segcal.calibrators.per_region import PerRegion
from segcal.errors import InputError
from segcal.fitting.by_region import competing, join
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import REGION_STRENGTHS

REGIONS = {"whole": [1, 2], "core": [2]}


def data(cases=12, seed=0):
    """Scores that are too sure of the outer region and not sure enough of the inner one, and labels drawn of them."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(cases, 9, 11)) * 2
    true = np.stack([base + 0.3, base - 1.2], axis=1)
    noise = rng.logistic(size=base.shape)
    labels = (true + noise[:, None] > 0).sum(1)
    return (true * np.array([2.5, 0.5])[:, None, None]).astype(np.float64), labels


def cases_of(scores, labels, **more):
    return segcal.ArrayCases(list(scores), list(labels), kind="logits", regions=REGIONS, **more)


def loss(odds, truth):
    return np.logaddexp(0, np.where(truth, -odds, odds)).mean()


def truths(labels):
    return labels >= 1, labels == 2


def test_every_temperature_is_the_best_of_its_region():
    z, y = data()
    fitted = segcal.fit("ts", cases_of(z, y))
    assert isinstance(fitted.calibrator, PerRegion)
    total = 0.0
    for number, truth in enumerate(truths(y)):
        best = minimize_scalar(lambda b, n=number, t=truth: loss(b * z[:, n], t), bounds=(0.01, 9), method="bounded",
                               options={"xatol": 1e-9})  # fmt: skip
        found = fitted.calibrator.inner[number].temperature
        assert found == pytest.approx(1 / best.x, rel=1e-4)
        total += best.fun
    assert fitted.certificate.nll == pytest.approx(total, rel=1e-8)
    assert fitted.certificate.kkt_residual < 1e-6
    assert set(fitted.certificate.details["regions"]) == {"whole", "core"}
    assert fitted.class_names == ("whole", "core")
    assert fitted.calibration_ids == tuple(str(number) for number in range(12))
    assert "whole (ts), core (ts): keeps masks" in repr(fitted)


def test_platt_is_a_slope_and_an_intercept():
    z, y = data(seed=3)
    z = z + 0.8
    fitted = segcal.fit("platt", cases_of(z, y), config=segcal.FitConfig(lam=0.0, mu=0.0))
    odds = fitted.calibrator.scores(torch.from_numpy(z)).numpy()
    for number, truth in enumerate(truths(y)):
        best = minimize(lambda ab, n=number, t=truth: loss(ab[0] * z[:, n] + ab[1], t), [1.0, 0.0], tol=1e-12)
        np.testing.assert_allclose(odds[:, number], best.x[0] * z[:, number] + best.x[1], atol=2e-3)
    assert fitted.calibrator.preserves is None
    result = segcal.evaluate(cases_of(z, y), fitted, metrics=["nll", "flip_rate"])
    assert result.after["flip_rate (whole)"].value > 0.01
    assert result.after["label_map_flips"].value > 0.01


def test_isotonic_is_that_of_the_probability():
    z, y = data(cases=6, seed=5)
    fitted = segcal.fit("isotonic", cases_of(z, y))
    found = fitted.calibrator(torch.from_numpy(z)).exp().numpy()
    for number, truth in enumerate(truths(y)):
        order = np.argsort(z[:, number].ravel(), kind="stable")
        expected = isotonic_regression(truth.ravel()[order].astype(float)).x
        inside = (expected > 0) & (expected < 1)
        np.testing.assert_allclose(found[:, number].ravel()[order][inside], expected[inside], atol=1e-6)
        assert found[:, number].min() > 0
        assert found[:, number].max() < 1


def test_a_fit_is_saved_with_its_regions(tmp_path):
    z, y = data()
    fitted = segcal.fit("ts", cases_of(z, y, regions_class_order=[1, 2]))
    segcal.save(fitted, tmp_path / "cal")
    again = segcal.load(tmp_path / "cal")
    assert again.calibrator.regions == fitted.calibrator.regions
    assert torch.equal(again.calibrator(torch.from_numpy(z)), fitted.calibrator(torch.from_numpy(z)))
    assert again.certificate.nll == fitted.certificate.nll
    started = segcal.fit(again.calibrator, cases_of(z, y))
    assert started.calibrator.inner[1].temperature == pytest.approx(fitted.calibrator.inner[1].temperature, rel=1e-5)


def test_what_is_chosen_is_chosen_for_each_region_and_pooled_alike():
    z, y = data()
    members = [z + np.random.default_rng(n).normal(size=z.shape) * 0.3 for n in range(2)]
    cases = segcal.cases.as_cases(members, torch.from_numpy(y), kind="logits", pooling="best", regions=REGIONS)
    fitted = segcal.choose(cases, names=["identity", "ts"])
    assert fitted.pooling in ("mean_logits", "mean_probs")
    details = fitted.certificate.details["regions"]
    assert [details[name]["details"]["chosen"] for name in REGIONS] == ["ts", "ts"]
    assert {one["pooling"] for name in REGIONS for one in details[name]["details"]["candidates"]} >= {fitted.pooling}
    assert fitted.certificate.details["reason"].startswith("whole: ")


def test_who_competes():
    assert competing(None, "argmax") == ["identity", "ts", "conic", "conic_class"]
    assert competing(None, "none")[-1] == "vs_ti"
    assert competing(["platt", "ts"], "none") == ["vs_ti", "ts"]
    with pytest.raises(InputError, match="no calibrator is named 'nonsense'"):
        competing(["nonsense"], "none")


def test_certificates_are_joined():
    one = Certificate("convex", 1.0, 0.9, 1e-9, True, 3, 10, 20, active_bounds=("base",))
    other = Certificate("isotonic", 2.0, 2.0, None, False, 2, 10, 20)
    found = join({"a": one, "b": other})
    assert (found.method, found.objective, found.nll, found.kkt_residual) == ("convex, isotonic", 3.0, 2.9, 1e-9)
    assert (found.converged, found.passes, found.active_bounds) == (False, 5, ("a: base",))


def test_what_does_not_fit_is_one_sentence():
    z, y = data(cases=3)
    other = segcal.ArrayCases(list(z), list(y), kind="logits", regions={"whole": [1, 2], "edge": [1]})
    with pytest.raises(InputError, match="validation has other regions than the calibration cases"):
        segcal.fit("ts", cases_of(z, y), validation=other)
    with pytest.raises(InputError, match="the cases have regions: a name, or a calibrator of these regions, is needed"):
        segcal.fit(segcal.make_calibrator("ts", 2), cases_of(z, y))
    fitted = segcal.fit("ts", other)
    with pytest.raises(
        InputError,
        match=r"is for the regions whole=1\+2,edge=1, but .* have the regions whole=1\+2,core=2\. Use the cal",
    ):
        segcal.evaluation.evaluate.check_match(fitted, cases_of(z, y))
    with pytest.raises(
        InputError, match=r"have classes\. Declare --regions whole=1\+2,edge=1 if these are its outputs"
    ):
        segcal.evaluation.evaluate.check_match(fitted, segcal.ArrayCases(list(z), list(y > 0), kind="logits"))
    with pytest.raises(InputError, match="calibrator is a ts for 2 classes, but the cases have regions"):
        segcal.evaluate(cases_of(z, y), segcal.make_calibrator("ts", 2), metrics=["nll"])


def test_the_path_of_a_region_is_walked_to_its_end():
    """Labels follow a temperature, so that no strength gains anything; every one is measured all the same."""
    certificates = segcal.fit("conic", cases_of(*data(cases=4))).certificate.details["regions"]
    for certificate in certificates.values():
        strengths = {row["lam"] for row in certificate["path"]}
        assert strengths >= set(REGION_STRENGTHS)
        assert min(strengths) == min(REGION_STRENGTHS)
