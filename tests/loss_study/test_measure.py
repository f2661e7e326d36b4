from dataclasses import replace

import numpy as np
import pytest
import torch

from paper.loss_study import measure
from paper.loss_study.data import Stored
from paper.loss_study.measure import Measurer, fit_post_hoc, logit_profile, plain_curve, rounded, study_metrics
from segcal.demo.tasks import get_task
from segcal.fitting import fit


def drawn(task, count, seed=0):
    rng = np.random.default_rng(seed)
    classes = get_task(task).num_classes
    space = (9, 11)
    stored = [Stored(f"c{i}", np.zeros((1, *space), np.float32), rng.integers(0, classes, space)) for i in range(count)]
    logits = [torch.from_numpy(rng.normal(size=(classes, *space)).astype(np.float32)) for _ in range(count)]
    return stored, logits


@pytest.mark.parametrize("task", ["roads", "streets"])
def test_errors_are_on_the_foreground_where_class_zero_is_background(task):
    stored, logits = drawn(task, 2)
    values, _ = Measurer(get_task(task)).measure(Measurer(get_task(task)).cases(stored, logits), {}, surface=True)
    probs = torch.softmax(logits[1].double(), 0)
    confidence, predicted = probs.max(0)
    truth = torch.from_numpy(stored[1].labels)
    region = truth > 0 if task == "roads" else truth >= 0
    error = 0.0
    for low in range(15):
        inside = region & (confidence > low / 15) & (confidence <= (low + 1) / 15)
        error += abs(float(((predicted == truth).double() - confidence)[inside].sum()))
    assert values["none"]["ece_foreground"][1] == pytest.approx(error / int(region.sum()), rel=1e-5)
    assert values["none"]["hd95"][1] >= 0


def test_calibrated_numbers_stand_beside_uncalibrated_ones():
    measurer = Measurer(get_task("roads"))
    cases = measurer.cases(*drawn("roads", 3))
    calibrators, facts = fit_post_hoc(cases, cases, names=("ts", "cms_ap"))
    values, curves = measurer.measure(cases, calibrators, surface=False)
    assert set(values) == {"none", "ts", "cms_ap"}
    assert set(values["ts"]) == set(study_metrics(True, False))
    assert np.mean(values["ts"]["nll"]) < np.mean(values["none"]["nll"])
    assert values["ts"]["dice"] == values["none"]["dice"]
    assert sum(plain_curve(curves)["count"]) == sum(int((case.labels > 0).sum()) for case in cases)
    for name, fact in facts.items():
        certificate = fit(name, cases, validation=cases).certificate
        assert (fact["passes"], fact["converged"]) == (certificate.passes, certificate.converged)


def test_a_fit_that_did_not_converge_is_said_and_used(monkeypatch):
    def stopped(*arguments, **options):
        found = fit(*arguments, **options)
        return replace(found, certificate=replace(found.certificate, converged=False, passes=17))

    monkeypatch.setattr(measure, "fit", stopped)
    cases = Measurer(get_task("roads")).cases(*drawn("roads", 2))
    calibrators, facts = fit_post_hoc(cases, cases, names=("ts",))
    assert list(calibrators) == ["ts"]
    assert (facts["ts"]["passes"], facts["ts"]["converged"]) == (17, False)


def test_a_calibrator_that_cannot_be_fitted_is_said_and_left_out():
    cases = Measurer(get_task("roads")).cases(*drawn("roads", 2))
    calibrators, facts = fit_post_hoc(cases, cases, names=("no such", "ts"))
    assert list(calibrators) == ["ts"]
    assert "InputError: no calibrator is named 'no such'" in facts["no such"]["error"]


def test_a_profile_is_the_mean_absolute_logit_of_each_true_class():
    stored, logits = drawn("roads", 2)
    profile = logit_profile(logits, stored, 2)
    mine = np.concatenate([values.numpy()[0][case.labels == 1] for values, case in zip(logits, stored, strict=True)])
    assert profile[1][0] == pytest.approx(np.abs(mine).mean(), rel=1e-5)
    assert logit_profile(logits, [Stored("a", c.image, c.labels * 0) for c in stored], 2)[1] == [None, None]


def test_numbers_are_kept_with_seven_digits():
    assert rounded(1 / 3) == 0.3333333
    assert rounded(float("nan")) is None
    assert rounded(None) is None
