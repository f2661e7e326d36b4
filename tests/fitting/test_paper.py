import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, InputError, fit
from segcal.calibrators import make_calibrator
from segcal.fitting.paper import LIKELIHOODS
from segcal.fitting.request import FitData, Request, silent
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels

NAMES = ["ts", "ets", "vs", "vs_ti", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]


def _problem(classes, never_predicted=None):
    rng = np.random.default_rng(2)
    logits = 2 * rng.normal(size=(classes, 300))
    if never_predicted is not None:
        logits[never_predicted] -= 20
    return logits, rng.integers(0, classes, 300)


def _likelihood(calibrator, logits, labels, streamed=False):
    cases = ArrayCases(logits=[logits], labels=[labels])
    source = StreamedVoxels(cases, lambda: None) if streamed else SampledVoxels(cases, 1000, 0, lambda: None)
    request = Request.on(FitData(cases, None, source, None), calibrator, FitConfig(), torch.device("cpu"), silent)
    return LIKELIHOODS[calibrator.fitted_by](request, source)


def _moved(name, classes):
    """A calibrator away from the identity, within its bounds."""
    calibrator = make_calibrator(name, classes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(0.1 * torch.rand(parameter.shape, generator=generator))
    return calibrator


@pytest.mark.parametrize(("name", "streamed"), [*((name, False) for name in NAMES), ("ets", True), ("cms_ap", True)])
def test_value_and_gradient_are_those_of_the_calibrator_itself(name, streamed):
    logits, labels = _problem(4)
    calibrator = _moved(name, 4)
    if name == "ets":  # the map itself does not need weights that sum to one, but probabilities do
        with torch.no_grad():
            calibrator.mixture.div_(calibrator.mixture.sum())
    value = _likelihood(calibrator, logits, labels, streamed)(calibrator)
    value.backward()
    found = {key: parameter.grad for key, parameter in calibrator.named_parameters()}
    scores = calibrator.scores(torch.from_numpy(logits.T.copy()))
    normaliser = 0 if name == "ets" else scores.logsumexp(1)
    expected = (normaliser - scores[torch.arange(300), torch.from_numpy(labels)]).mean()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-10)
    gradients = torch.autograd.grad(expected, list(calibrator.parameters()), allow_unused=True)
    for (key, own), reference in zip(found.items(), gradients, strict=True):
        reference = torch.zeros_like(own) if reference is None else reference
        assert torch.allclose(own, reference, atol=1e-9), key


FAST = {"trials": 4, "max_steps": 60}


def _cases(seed, classes=3, voxels=400, never_predicted=None):
    """Overconfident logits with confused classes, so that every calibrator has something to find."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(classes, voxels))
    labels = (2 * truth + rng.gumbel(size=truth.shape)).argmax(0)
    logits = 4 * truth + 0.5 * np.roll(truth, 1, axis=0) + rng.normal(size=truth.shape)
    if never_predicted is not None:
        logits[never_predicted] = logits.min(0) - 1
    return ArrayCases(logits=[logits], labels=[labels])


def _voxels(cases):
    case = next(iter(cases))
    return case.logits.double().numpy(), case.labels.numpy()


def _mean_nll(log_probs, labels):
    return float(-log_probs[labels, np.arange(len(labels))].mean())


@pytest.mark.parametrize("name", ["dc", "cms_op"])
def test_it_approaches_the_exact_optimum_from_above(name):
    cases = _cases(1)
    start = fit("identity", cases).certificate.objective
    exact = fit(name, cases, config=FitConfig(lam=1e-3, mu=1e-3)).certificate.objective
    config = FitConfig.paper(lam=1e-3, mu=1e-3, learning_rate=0.03, patience=50)
    found = fit(name, cases, cases, config).certificate.objective
    assert exact - 1e-9 <= found <= exact + 0.1 * (start - exact)


def test_the_certificate_describes_the_calibrator_that_is_returned():
    cases, validation = _cases(3, classes=4), _cases(4, classes=4)
    fitted = fit("cms_op", cases, validation, FitConfig.paper(**FAST))
    certificate = fitted.certificate
    nll = {}
    for key, part in (("cases", cases), ("validation", validation)):
        logits, labels = _voxels(part)
        log_probs = fitted.calibrator(torch.from_numpy(logits.T.copy())).detach().numpy().T
        nll[key] = _mean_nll(log_probs, labels)
    assert certificate.nll == pytest.approx(nll["cases"], abs=1e-9)
    assert certificate.validation_nll == pytest.approx(nll["validation"], abs=1e-9)
    penalty = fitted.calibrator.penalty(certificate.lam, certificate.mu).item()
    assert certificate.objective == pytest.approx(nll["cases"] + penalty, abs=1e-9)
    assert (certificate.method, certificate.kkt_residual) == ("gradient", None)
    assert min(certificate.curve) == pytest.approx(certificate.validation_nll, abs=1e-9)
    assert certificate.validation_nll == pytest.approx(min(t["validation_nll"] for t in certificate.path), abs=1e-9)
    assert len(certificate.path) == certificate.details["trials"] == FAST["trials"]
    assert certificate.passes > certificate.details["steps"]
    assert certificate.validation_nll < fit("identity", validation).certificate.nll


def test_the_same_seed_gives_the_same_result():
    cases, validation = _cases(5), _cases(6)
    first, again = (fit("cms_ap", cases, validation, FitConfig.paper(**FAST)) for _ in range(2))
    assert torch.equal(first.calibrator.weight, again.calibrator.weight)
    assert first.certificate == again.certificate
    other = fit("cms_ap", cases, validation, FitConfig.paper(seed=1, **FAST))
    assert other.certificate.path != first.certificate.path


def test_the_search_stays_in_its_space_and_tries_exact_zeros():
    cases, validation = _cases(7, voxels=60), _cases(8, voxels=60)
    certificate = fit("dc", cases, validation, FitConfig.paper(trials=20, max_steps=2)).certificate
    for name in ("lam", "mu"):
        tried = [trial[name] for trial in certificate.path]
        assert 0 in tried
        assert all(value == 0 or 1e-6 <= value <= 1e-1 for value in tried)
        assert any(value > 0 for value in tried)
    assert 1e-4 <= certificate.details["learning_rate"] <= 3e-2
    assert certificate.details["patience"] in (10, 20, 50)


def test_what_the_configuration_fixes_is_not_searched():
    config = FitConfig.paper(lam=0.01, mu=0.0, learning_rate=0.02, patience=3, max_steps=30)
    certificate = fit("dc", _cases(9), _cases(10), config).certificate
    assert (certificate.lam, certificate.mu) == (0.01, 0.0)
    details = certificate.details
    assert (details["learning_rate"], details["patience"], details["trials"]) == (0.02, 3, 1)


def test_an_expert_without_voxels_keeps_the_identity():
    cases = _cases(11, classes=4, never_predicted=1)
    fitted = fit("cms_ap", cases, cases, FitConfig.paper(lam=0.1, mu=0.1, **FAST))
    assert fitted.certificate.untouched == (1,)
    assert torch.equal(fitted.calibrator.weight[1], torch.eye(3, dtype=torch.float64))
    assert not torch.equal(fitted.calibrator.weight[0], torch.eye(3, dtype=torch.float64))


def test_without_validation_data_it_says_what_to_do():
    with pytest.raises(InputError, match=r"validation is None, but the paper's procedure .* Pass validation cases"):
        fit("ts", _cases(12), config=FitConfig.paper())


def test_without_optuna_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"optuna is not installed, but .* pip install 'segcal\[search\]'"):
        fit("ts", _cases(13), _cases(14), FitConfig.paper())


def test_processes_that_share_a_journal_share_the_trials_and_find_the_same(make_cases, tmp_path):
    """Two calls at once, each doing some of the trials, end with the same calibrator; a third finds all done."""
    cal, val = make_cases(3, 400, parts=3), make_cases(3, 300, parts=2, seed=9)
    config = FitConfig.paper(trials=6, max_steps=15, voxels=200, journal=str(tmp_path / "trials.log"))

    def call(_):
        return fit("ms", cal, config=config, validation=val)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(call, range(2))
    third = call(None)
    assert len(first.certificate.path) == 6
    assert first.certificate == second.certificate == third.certificate
    for one, other in zip(first.calibrator.parameters(), third.calibrator.parameters(), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    best = min(trial["validation_nll"] for trial in first.certificate.path)
    assert first.certificate.validation_nll == pytest.approx(best, rel=1e-6)
    assert "journal" not in first.config.to_dict()
