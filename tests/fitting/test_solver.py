import numpy as np
import pytest
import scipy.optimize
import torch

from segcal import FitConfig, fit, make_calibrator
from segcal.calibrators.convex import ConvexCalibrator, Frame, Strengths
from segcal.fitting.request import FitData, Request, silent
from segcal.fitting.solver import Solver
from segcal.fitting.voxels import StreamedVoxels


def make(name, cases):
    calibrator, source = make_calibrator(name, cases.num_classes), StreamedVoxels(cases, lambda: None)
    data = FitData(cases, None, source, None)
    request = Request.on(data, calibrator, FitConfig(), torch.device("cpu"), silent)
    return Solver(calibrator, source, request)


@pytest.mark.parametrize("name", ["dc", "cms_ap"])
def test_solutions_do_not_depend_on_the_one_before(name, make_cases):
    cases, strengths = make_cases(4, 900), Strengths(0.1, 0.1, 0.1)
    after, alone = make(name, cases), make(name, cases)
    after.solve(Strengths(1e3, 1e3, 1e3), 1e-8)
    first, second = (solver.solve(strengths, 1e-8) for solver in (after, alone))
    torch.testing.assert_close(first.values, second.values, rtol=0, atol=1e-8)
    assert after.passes > first.evaluations
    assert first.converged


def test_the_temperature_that_a_penalty_leads_to_is_that_of_temperature_scaling(make_cases):
    cases = make_cases(4, 900)
    expected = fit("ts", cases).calibrator.inverse_temperature
    assert make("cms_ap", cases).inverse_temperature() == pytest.approx(float(expected), abs=1e-6)


class Ramps(ConvexCalibrator):
    """A calibrator that is convex but not affine, as a user might write it: one non-decreasing curve of all gaps."""

    translation_invariant = True
    preserves = "order"
    variables = ("slopes",)
    has_penalty = (True, False)

    def __init__(self, num_classes, pieces=4):
        super().__init__(num_classes, pieces=pieces)
        self.slopes = torch.nn.Parameter(torch.ones(pieces, dtype=torch.float64))
        self.register_buffer("knots", torch.arange(pieces, dtype=torch.float64))

    @property
    def num_features(self):
        return self.num_classes * len(self.slopes)

    def prepare(self, logits):
        gaps = torch.cat([(batch.amax(0) - batch).flatten() for batch in logits])
        shares = torch.arange(1, len(self.slopes), dtype=gaps.dtype) / len(self.slopes)
        self.knots[1:] = gaps[gaps > 0].quantile(shares)

    def ramps(self, logits):
        gaps = (logits.amax(1, keepdim=True) - logits).unsqueeze(-1)
        ends = torch.cat([self.knots[1:], torch.full((1,), torch.inf, dtype=torch.float64)])
        return torch.minimum((gaps - self.knots.to(gaps)).clamp(min=0), (ends - self.knots).to(gaps))

    def frame(self, logits):
        return Frame(-self.ramps(logits).flatten(1))

    def bounds(self):
        return torch.full((len(self.slopes),), 1e-3).double(), torch.full((len(self.slopes),), 1e3).double()

    def penalised(self, theta):
        return theta.diff(dim=-1), theta[..., :0], theta[..., :0]

    def penalty(self, lam, mu):
        return lam * self.slopes.diff().square().sum()

    def scores(self, logits, context=None):
        return -self.ramps(logits) @ self.slopes.to(logits.dtype)

    def num_identifiable(self):
        return len(self.slopes)


def test_a_convex_calibrator_that_is_not_affine_needs_nothing_of_the_solver(make_cases):
    cases, lam = make_cases(4, 3000, parts=3, scale=4.0), 0.02
    fitted = fit(Ramps(4), cases, config=FitConfig(lam=lam, tol=1e-9))
    assert fitted.certificate.converged
    assert fitted.certificate.kkt_residual <= 1e-9
    logits = torch.cat([case.logits for case in cases], 1).T
    labels = torch.cat([case.labels for case in cases])
    gaps, knots = (logits.amax(1, keepdim=True) - logits).numpy(), fitted.calibrator.knots.numpy()
    ends = np.append(knots[1:], np.inf)
    ramps = np.clip(gaps[..., None] - knots, 0, ends - knots)

    def both(slopes):
        scores = -ramps @ slopes
        top = scores.max(1, keepdims=True)
        log_probs = scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))
        error = np.exp(log_probs)
        error[np.arange(len(labels)), labels] -= 1
        value = -log_probs[np.arange(len(labels)), labels].mean() + lam * (np.diff(slopes) ** 2).sum()
        push = np.convolve(np.diff(slopes), [-1, 1])
        return value, -(error[..., None] * ramps).sum((0, 1)) / len(labels) + 2 * lam * push

    options = {"ftol": 1e-15, "gtol": 1e-10}
    found = scipy.optimize.minimize(
        both, np.ones(4), jac=True, bounds=[(1e-3, 1e3)] * 4, method="L-BFGS-B", options=options
    )
    np.testing.assert_allclose(fitted.calibrator.slopes, found.x, rtol=1e-5)
    assert fitted.certificate.objective == pytest.approx(found.fun, rel=1e-10)
    assert len(set(fitted.calibrator.slopes.tolist())) == 4
    assert fit(Ramps(4), cases).certificate.path  # strengths are chosen along the same path
