import pytest
import torch

from segcal import FitConfig, fit, make_calibrator
from segcal.calibrators.convex import Strengths
from segcal.fitting.convex_problem import TemperatureProblem, coarse_stride, solve_temperature
from segcal.fitting.voxels import StreamedVoxels

CPU = torch.device("cpu")


def build(cases, beta=1.0):
    calibrator = make_calibrator("ts", cases.num_classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(beta)
    return calibrator, TemperatureProblem(StreamedVoxels(cases, lambda: None), CPU)


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
def test_objective_slope_and_curvature_are_those_of_the_calibrator(beta, make_cases):
    cases = make_cases(4, 500, parts=3)
    calibrator, problem = build(cases, beta)
    values, gradients = problem.evaluate(calibrator.theta().detach(), [0])
    logits = torch.cat([case.logits for case in cases], 1).T
    labels = torch.cat([case.labels for case in cases])
    value = -calibrator(logits).gather(1, labels[:, None]).mean()
    (slope,) = torch.autograd.grad(value, calibrator.inverse_temperature, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, calibrator.inverse_temperature)
    assert float(values[0]) == pytest.approx(value.item(), rel=1e-10)
    assert float(gradients[0, 0]) == pytest.approx(slope.item(), rel=1e-9)
    one = torch.ones(1, dtype=torch.float64)
    assert float(problem.curvature(0, one).product(one)) == pytest.approx(curvature.item(), rel=1e-9)


@pytest.mark.parametrize(
    ("voxels", "stride"), [(1, 1), (15_999, 1), (16_000, 16), (1 << 22, 16), (1 << 23, 32), (10**9, 3815)]
)
def test_the_first_approach_keeps_a_bounded_number_of_voxels(voxels, stride):
    assert coarse_stride(voxels) == stride
    if voxels >= 16_000:
        assert voxels / coarse_stride(voxels) <= 1 << 18


def test_a_coarse_problem_is_close_to_the_whole(make_cases):
    _, problem = build(make_cases(4, 20_000, parts=2))
    theta = torch.full((1, 1), 0.5, dtype=torch.float64)
    whole, few = float(problem.evaluate(theta, [0])[0]), float(problem.coarse().evaluate(theta, [0])[0])
    assert few != whole
    assert few == pytest.approx(whole, rel=0.1)


def test_there_is_no_penalty(make_cases):
    _, problem = build(make_cases(3, 50))
    problem.set_strengths(Strengths(1.0, 1.0))
    assert float(problem.penalty_product(torch.ones(1))) == 0


@pytest.mark.parametrize("approach", [True, False])
def test_the_temperature_of_voxels_is_that_of_temperature_scaling(approach, make_cases):
    cases = make_cases(3, 40_000, dtype="float32")
    found = solve_temperature(StreamedVoxels(cases, lambda: None), CPU, 1e-6, approach)
    expected = fit("ts", cases, config=FitConfig(voxels="all")).calibrator.inverse_temperature
    assert float(found.theta) == pytest.approx(float(expected), rel=1e-6)
