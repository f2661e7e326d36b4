"""The optimum: found by others, certified by a gradient that is computed here, the same in every way of reading."""

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.linear_model import LogisticRegression

from segcal import ArrayCases, FitConfig, fit, make_calibrator
from segcal.fitting.config import DEFAULT_STRENGTH, STRENGTHS

CONVEX = ["ts", "vs", "vs_ti", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]
LAM, MU = 0.02, 0.05


def cases_of(logits, labels):
    return ArrayCases(logits=[logits], labels=[labels])


def gap_matrix(classes, preserves):
    G = -np.eye(classes)
    G[0, 0] = 1
    for k in range(1, classes):
        G[k, 0 if preserves == "argmax" else k - 1] = 1
    return torch.as_tensor(G)


def full_maps(calibrator):
    """The matrices W (E, C, C) and biases b (E, C) that Eq. 15 reads, from the named parameters."""
    classes = calibrator.num_classes
    weight, bias = calibrator.weight, calibrator.bias
    if calibrator.preserves is None:
        if weight.shape[-1] < classes:  # ms_c: the last column is what is missing to the row sum
            weight = torch.cat([weight, calibrator.gauge - weight.sum(-1, keepdim=True)], -1)
        return (weight, bias) if weight.ndim == 3 else (weight[None], bias[None])
    G = gap_matrix(classes, calibrator.preserves)
    inner = torch.cat([calibrator.gauge[:, None, :-1], torch.nn.functional.pad(weight, (1, 0))], 1)
    W = torch.linalg.inv(G) @ inner @ G
    b = torch.cat([calibrator.gauge[:, -1:], bias], 1) @ torch.linalg.inv(G).T
    return W, b


def eq_15(calibrator, lam, mu):
    classes = calibrator.num_classes
    if hasattr(calibrator, "inverse_temperature"):
        return 0.0
    if hasattr(calibrator, "scale"):
        spread = (calibrator.scale - calibrator.scale.mean()).square().mean()
        return lam * spread + mu * calibrator.bias.square().mean()
    W, b = full_maps(calibrator)
    off = W.square().sum((1, 2)) - torch.diagonal(W, dim1=1, dim2=2).square().sum(1)
    return (lam * off / (classes * (classes - 1)) + mu * b.square().mean(1)).mean()


def objective(calibrator, logits, labels, lam, mu):
    log_probs = calibrator(torch.as_tensor(logits.T).double())
    return -log_probs.gather(1, torch.as_tensor(labels)[:, None]).mean() + eq_15(calibrator, lam, mu)


def bounds_of(calibrator):
    """Bounds of every named parameter, as stated: scales in [1e-3, 1e3], the rest within 1e3 or in the cone."""
    low, high = {}, {}
    for name, parameter in calibrator.named_parameters():
        low[name], high[name] = torch.full_like(parameter, -1e3), torch.full_like(parameter, 1e3)
        if name in ("inverse_temperature", "scale"):
            low[name] = torch.full_like(parameter, 1e-3)
        if name == "gauge":
            low[name], high[name] = torch.full_like(parameter, -torch.inf), torch.full_like(parameter, torch.inf)
        if name in ("weight", "bias") and calibrator.preserves:
            low[name] = torch.zeros_like(parameter)
        if name == "weight":
            diagonal = torch.eye(*parameter.shape[-2:], dtype=torch.bool).expand(parameter.shape)
            low[name] = torch.where(diagonal, 1e-3, low[name])
    return low, high


def residual(calibrator, logits, labels, lam, mu):
    """The largest component of the projected gradient, by automatic differentiation of the formula."""
    calibrator.requires_grad_().zero_grad()
    objective(calibrator, logits, labels, lam, mu).backward()
    low, high = bounds_of(calibrator)
    worst = 0.0
    for name, parameter in calibrator.named_parameters():
        if parameter.numel() == 0 or parameter.grad is None:
            continue
        held = ((parameter <= low[name]) & (parameter.grad > 0)) | ((parameter >= high[name]) & (parameter.grad < 0))
        worst = max(worst, float(torch.where(held, 0.0, parameter.grad).abs().max()))
    return worst


@pytest.mark.parametrize(("classes", "strengths"), [(2, (LAM, MU)), (5, (0.0, 0.0))])
@pytest.mark.parametrize("name", CONVEX)
def test_the_certificate_is_true(name, classes, strengths, make_data):
    logits, labels = make_data(classes, 900)
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=strengths[0], mu=strengths[1]))
    certificate = fitted.certificate
    assert certificate.converged
    assert certificate.kkt_residual <= 1e-6
    assert residual(fitted.calibrator, logits, labels, *strengths) <= 1.01e-6
    value = objective(fitted.calibrator, logits, labels, *strengths).item()
    assert certificate.objective == pytest.approx(value, abs=1e-10)
    with torch.no_grad():
        assert certificate.nll == pytest.approx(objective(fitted.calibrator, logits, labels, 0, 0).item(), abs=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_gpu_finds_the_same_optimum(name, offset, make_data):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    logits, labels = make_data(4, 900)
    cases, config = cases_of(logits + np.asarray(offset, logits.dtype), labels), FitConfig(lam=LAM, mu=MU)
    here, there = (fit(name, cases, config=config, device=device).certificate for device in ("cpu", "cuda"))
    assert there.converged
    assert there.objective == pytest.approx(here.objective, abs=1e-7)


def by_scipy(name, logits, labels, lam, mu):
    """Minimise the formula over the named parameters by L-BFGS-B."""
    calibrator = make_calibrator(name, len(logits))
    low, high = bounds_of(calibrator)
    parameters = dict(calibrator.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def both(flat):
        with torch.no_grad():
            for parameter, part in zip(parameters.values(), np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                parameter.copy_(torch.as_tensor(part).reshape(parameter.shape))
        calibrator.zero_grad()
        value = objective(calibrator, logits, labels, lam, mu)
        value.backward()
        grads = [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters.values()]
        return value.item(), torch.cat(grads).numpy()

    start = torch.cat([p.detach().flatten() for p in parameters.values()]).numpy()
    bounds = [
        (float(a), float(b)) for key in parameters for a, b in zip(low[key].flatten(), high[key].flatten(), strict=True)
    ]
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-9, "maxcor": 50}
    peer = scipy.optimize.minimize(both, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    both(peer.x)
    return peer.fun, calibrator


@pytest.mark.parametrize("name", CONVEX)
def test_objective_parameters_and_probabilities_are_those_that_scipy_finds(name, make_data):
    logits, labels = make_data(3, 400)
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=LAM, mu=MU, tol=1e-9))
    value, peer = by_scipy(name, logits, labels, LAM, MU)
    assert fitted.certificate.objective == pytest.approx(value, abs=1e-8)
    voxels = torch.as_tensor(logits.T)
    with torch.no_grad():
        torch.testing.assert_close(fitted.calibrator(voxels).exp(), peer(voxels).exp(), rtol=0, atol=1e-6)
        for (key, ours), theirs in zip(fitted.calibrator.named_parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["ms", "dc"])
def test_matrix_scaling_without_penalty_is_multinomial_logistic_regression(name, make_data):
    logits, labels = make_data(4, 600)
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=0, mu=0, tol=1e-9)).calibrator
    x = logits.T if name == "ms" else torch.as_tensor(logits.T).log_softmax(1).numpy()
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(x, labels)
    with torch.no_grad():
        ours = fitted(torch.as_tensor(logits.T)).exp().numpy()
        W, b = fitted.weight.numpy(), fitted.bias.numpy()
    np.testing.assert_allclose(ours, peer.predict_proba(x), atol=1e-6)
    # What is the same in all rows is lost in the softmax: compare without it.
    np.testing.assert_allclose(W - W.mean(0), peer.coef_ - peer.coef_.mean(0), atol=1e-5)
    np.testing.assert_allclose(b - b.mean(), peer.intercept_ - peer.intercept_.mean(), atol=1e-5)


@pytest.mark.parametrize("name", CONVEX)
def test_the_answer_is_the_same_every_time_and_from_every_start(name, make_data, randomise):
    logits, labels = make_data(3, 400)
    cases = cases_of(logits, labels)
    config = FitConfig(lam=LAM, mu=MU, tol=1e-9)
    first, again = (fit(name, cases, config=config).calibrator for _ in range(2))
    elsewhere = fit(randomise(make_calibrator(name, 3)), cases, config=config).calibrator
    for a, b, c in zip(first.parameters(), again.parameters(), elsewhere.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ts", "vs", "dc", "cms_ap", "cms_op"])
def test_a_stream_reaches_the_optimum_of_what_is_in_memory(name, make_cases):
    cases = make_cases(4, 3000, parts=7)
    kept = fit(name, cases, config=FitConfig(lam=LAM, mu=MU, tol=1e-8))
    streamed = fit(name, cases, config=FitConfig(lam=LAM, mu=MU, tol=1e-8, voxels="all", memory=1 << 20))
    assert streamed.certificate.converged
    assert streamed.certificate.objective == pytest.approx(kept.certificate.objective, abs=1e-9)
    for a, b in zip(kept.calibrator.parameters(), streamed.calibrator.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)


def test_a_hessian_from_a_sample_leads_to_the_same_optimum(make_cases, monkeypatch):
    monkeypatch.setattr("segcal.fitting.convex_problem.HESSIAN_WORK", 1)
    cases = make_cases(4, 4000)
    few = fit("dc", cases, config=FitConfig(lam=LAM, mu=MU))
    monkeypatch.undo()
    all_of_them = fit("dc", cases, config=FitConfig(lam=LAM, mu=MU))
    assert few.certificate.converged
    assert few.certificate.passes > all_of_them.certificate.passes
    assert few.certificate.objective == pytest.approx(all_of_them.certificate.objective, abs=1e-8)


def test_after_a_sampled_fit_the_residual_on_all_voxels_can_be_had(make_data):
    logits, labels = make_data(3, 4000)
    cases = cases_of(logits, labels)
    config = {"lam": LAM, "mu": MU}
    for name in ("ts", "vs", "dc", "cms_ap"):
        sampled = fit(name, cases, config=FitConfig(voxels=400, verify=True, **config))
        assert sampled.certificate.voxels <= 400
        assert sampled.certificate.voxels_available == 4000
        expected = residual(sampled.calibrator, logits, labels, LAM, MU)
        assert sampled.certificate.full_residual == pytest.approx(expected, rel=1e-6)
        assert sampled.certificate.full_residual > 1e-5
        complete = fit(name, cases, config=FitConfig(voxels=4000, verify=True, **config)).certificate
        assert complete.full_residual <= 1.01e-6
    assert fit("dc", cases, config=FitConfig(**config)).certificate.full_residual is None


def three_terms(calibrator, strength, beta):
    """The penalty of a chosen strength: Eq. 15, and the distance of diagonals from temperature scaling."""
    W, _ = full_maps(calibrator)
    spread = (torch.diagonal(W, dim1=1, dim2=2) - beta).square().mean(1).mean()
    return eq_15(calibrator, strength, strength) + strength * spread


@pytest.mark.parametrize("name", ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"])
def test_the_optimum_at_a_chosen_strength_is_certified_by_the_formula(name, make_data):
    logits, labels = make_data(4, 900)
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=0.3, mu=0.3, nu=0.3))
    beta = fit("ts", cases_of(logits, labels)).calibrator.inverse_temperature.item()
    assert fitted.certificate.inverse_temperature == pytest.approx(beta, abs=1e-5)
    calibrator = fitted.calibrator.requires_grad_()
    value = objective(calibrator, logits, labels, 0, 0) + three_terms(calibrator, 0.3, beta)
    value.backward()
    assert fitted.certificate.objective == pytest.approx(value.item(), abs=1e-9)
    low, high = bounds_of(calibrator)
    for key, parameter in calibrator.named_parameters():
        if parameter.numel():
            g = parameter.grad
            held = ((parameter <= low[key]) & (g > 0)) | ((parameter >= high[key]) & (g < 0))
            assert float(torch.where(held, 0.0, g).abs().max()) <= 2e-6


@pytest.mark.parametrize("name", ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op", "vs"])
def test_the_strongest_strength_is_temperature_scaling(name, make_data):
    logits, labels = make_data(4, 900)
    cases, strongest = cases_of(logits, labels), max(STRENGTHS)
    fitted = fit(name, cases, config=FitConfig(lam=strongest, mu=strongest, nu=strongest)).calibrator
    scaled = fit("ts", cases).calibrator
    voxels = torch.as_tensor(logits.T)
    torch.testing.assert_close(fitted(voxels).exp(), scaled(voxels).exp(), rtol=0, atol=2e-3)


def test_where_nothing_can_be_held_out_the_stated_default_is_used(make_cases):
    certificate = fit("dc", make_cases(3, 200)).certificate
    assert (certificate.lam, certificate.mu, certificate.nu) == (DEFAULT_STRENGTH,) * 3
    assert certificate.path == ()
    temperature = fit("ts", make_cases(3, 200)).certificate
    assert (temperature.lam, temperature.mu) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["ms_c", "cdc", "cms_ap", "cms_op"])
def test_without_a_matrix_the_optimum_is_the_same(name, make_cases, monkeypatch):
    cases = make_cases(6, 900)
    config = FitConfig(lam=LAM, mu=MU)
    dense = fit(name, cases, config=config).certificate
    monkeypatch.setattr("segcal.fitting.convex_problem.LARGEST_MATRIX", 0)
    free = fit(name, cases, config=config).certificate
    assert free.converged
    assert free.objective == pytest.approx(dense.objective, abs=1e-7)


@pytest.mark.parametrize("name", ["dc", "cdc"])
def test_fewer_voxels_than_variables_are_no_reason_to_fail(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 6, 12)).astype(np.float32)
    labels = rng.integers(0, 60, (6, 12))
    fitted = fit(name, ArrayCases([logits], [labels]), config=FitConfig(lam=0.0, mu=0.0, tol=1e-2))
    assert np.isfinite(fitted.certificate.nll)


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
