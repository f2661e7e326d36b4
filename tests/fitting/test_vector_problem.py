import pytest
import torch

from segcal import make_calibrator
from segcal.fitting import vector_problem
from segcal.fitting.convex_problem import Strengths
from segcal.fitting.frames import Frames
from segcal.fitting.vector_problem import VectorProblem, vector_frame
from segcal.fitting.voxels import StreamedVoxels

LAM, MU = 0.03, 0.2


def build(name, cases, randomise):
    calibrator = randomise(make_calibrator(name, cases.num_classes))
    frames = Frames(StreamedVoxels(cases, lambda: None), vector_frame(calibrator), 1, 1 << 30, torch.device("cpu"))
    problem = VectorProblem(calibrator, frames, seed=0)
    problem.set_strengths(Strengths(LAM, MU))
    return calibrator, problem


@pytest.mark.parametrize("name", ["vs", "vs_ti"])
def test_objective_and_gradient_are_those_of_the_calibrator(name, make_cases, randomise, monkeypatch):
    monkeypatch.setattr(vector_problem, "STEP_VALUES", 1)  # 256 voxels a step
    cases = make_cases(4, 600, parts=2)
    calibrator, problem = build(name, cases, randomise)
    values, gradients = problem.evaluate(problem.start(), [0])
    logits = torch.cat([case.logits for case in cases], 1).T
    labels = torch.cat([case.labels for case in cases])
    value = -calibrator(logits).gather(1, labels[:, None]).mean() + calibrator.penalty(LAM, MU)
    value.backward()
    assert float(values[0]) == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(
        gradients[0], torch.cat([calibrator.scale.grad, calibrator.bias.grad]), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["vs", "vs_ti"])
def test_the_curvature_is_the_derivative_of_the_gradient(name, make_cases, randomise):
    _, problem = build(name, make_cases(4, 300), randomise)
    theta = problem.start()
    curvature = problem.curvature(0, theta[0])
    for i in range(theta.shape[1]):
        step = torch.zeros_like(theta)
        step[0, i] = 1e-6
        ends = [problem.evaluate(theta + s * step, [0])[1][0] for s in (1, -1)]
        torch.testing.assert_close(curvature.product(step[0] * 1e6), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "strengths"), [("vs", (True, True)), ("vs_ti", (False, True))])
def test_a_common_scale_has_no_spread_to_penalise(name, strengths, make_cases, randomise):
    _, problem = build(name, make_cases(3, 50), randomise)
    assert make_calibrator(name, 3).has_penalty == strengths
    assert problem.names[0] == "scale[0]"
    assert problem.names[-1] == "bias[2]"


def test_a_result_is_written_into_the_calibrator(make_cases, randomise):
    calibrator, problem = build("vs", make_cases(3, 50), randomise)
    problem.write(torch.arange(1.0, 7.0, dtype=torch.float64)[None])
    assert calibrator.scale.tolist() == [1, 2, 3]
    assert calibrator.bias.tolist() == [4, 5, 6]
