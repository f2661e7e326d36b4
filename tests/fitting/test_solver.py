import pytest
import torch

from segcal import FitConfig, fit, make_calibrator
from segcal.fitting.convex_problem import Strengths
from segcal.fitting.request import Request
from segcal.fitting.solver import Solver
from segcal.fitting.voxels import StreamedVoxels


def make(name, cases):
    calibrator, source = make_calibrator(name, cases.num_classes), StreamedVoxels(cases, lambda: None)
    request = Request(calibrator, source, None, FitConfig(), torch.device("cpu"), lambda text: None, cases, None)
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
