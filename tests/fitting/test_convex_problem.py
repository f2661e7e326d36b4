import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, make_calibrator
from segcal.calibrators.convex import Strengths
from segcal.fitting import convex_problem
from segcal.fitting.convex_problem import LinearProblem, Solver, coarse_stride
from segcal.fitting.frames import Frames
from segcal.fitting.request import FitData, Request, silent
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels

AFFINE = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]
NAMES = [*AFFINE, "vs", "vs_ti"]
LAM, MU = 0.03, 0.2
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("voxels", "stride"), [(1, 1), (15_999, 1), (16_000, 16), (1 << 22, 16), (1 << 23, 32), (10**9, 3815)]
)
def test_the_first_approach_keeps_a_bounded_number_of_voxels(voxels, stride):
    assert coarse_stride(voxels) == stride
    if voxels >= 16_000:
        assert voxels / coarse_stride(voxels) <= 1 << 18


def build_linear(name, cases, randomise=None, cache=1 << 30):
    calibrator = make_calibrator(name, cases.num_classes)
    if randomise is not None:
        randomise(calibrator)
    source = StreamedVoxels(cases, lambda: None)
    problem = LinearProblem(calibrator, Frames(source, calibrator, cache, torch.device("cpu")), seed=0)
    problem.set_strengths(Strengths(LAM, MU))
    return calibrator, problem


@pytest.mark.parametrize("name", NAMES)
def test_the_curvature_on_all_voxels_is_the_derivative_of_the_gradient(name, make_cases, randomise):
    calibrator, problem = build_linear(name, make_cases(3, 200), randomise)
    theta = calibrator.theta().detach()
    block = problem.blocks[0]
    curvature = problem.curvature(block, theta[block])
    for i in range(theta.shape[1]):
        step = torch.zeros_like(theta)
        step[block, i] = 1e-6
        ends = [problem.evaluate(theta + s * step, [block])[1][block] for s in (1, -1)]
        unit = torch.zeros(theta.shape[1], dtype=torch.float64)
        unit[i] = 1
        torch.testing.assert_close(curvature.product(unit), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", AFFINE)
def test_products_and_matrices_are_the_same_curvature_and_penalty(name, make_cases, randomise, monkeypatch):
    cases = make_cases(4, 300)
    calibrator, dense = build_linear(name, cases, randomise)
    monkeypatch.setattr(convex_problem, "LARGEST_MATRIX", 0)
    _, free = build_linear(name, cases, randomise)
    theta = calibrator.theta().detach()
    vector = torch.as_tensor(np.random.default_rng(0).normal(size=theta.shape[1]))
    torch.testing.assert_close(
        free._penalty_product(vector, 0), dense._penalty_product(vector, 0), rtol=1e-10, atol=1e-12
    )
    for block in dense.blocks:
        matrix, products = dense.curvature(block, theta[block]), free.products(block, theta[block], fresh=True)
        torch.testing.assert_close(matrix.product(vector), products.multiply(vector), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cache", [1 << 30, 100])
def test_about_a_centre_everything_is_the_same_in_the_same_variables(cache, make_cases, randomise, monkeypatch):
    plain = make_cases(4, 300, parts=3)
    offset = torch.tensor([[500.0], [512.0], [0.0], [-700.0]])
    cases = ArrayCases([case.logits + offset for case in plain], [case.labels for case in plain])
    calibrator, problem = build_linear("ms", cases, randomise, cache)
    problem.set_strengths(Strengths(0.0, 0.0))
    assert problem._frames.centre.abs().round(decimals=-2).tolist() == [500.0, 500.0, 0.0, 700.0]
    monkeypatch.setattr(convex_problem, "LARGEST_MATRIX", 0)
    theta, products = calibrator.theta().detach(), build_linear("ms", cases, randomise, cache)[1]
    products.set_strengths(Strengths(0.0, 0.0))
    theta[0, 4::5] -= (theta[0].reshape(4, 5)[:, :4] @ offset.double())[
        :, 0
    ]  # so that probabilities are not all 0 or 1
    calibrator.set_theta(theta)

    def nll(own):
        logits = torch.cat([case.logits for case in cases], 1).double()
        scores = own.reshape(4, 5)[:, :4] @ logits + own.reshape(4, 5)[:, 4:]
        return torch.nn.functional.cross_entropy(scores.T, torch.cat([case.labels for case in cases]))

    values, gradients = problem.evaluate(theta, [0])
    assert float(values[0]) == pytest.approx(float(nll(theta[0])), rel=1e-9)
    own = theta[0].clone().requires_grad_()
    torch.testing.assert_close(gradients[0], torch.autograd.grad(nll(own), own)[0], rtol=1e-7, atol=1e-7)
    if cache == 100:  # the Hessian is that of a few voxels
        return
    expected = torch.autograd.functional.hessian(nll, theta[0])
    vector = torch.as_tensor(np.random.default_rng(0).normal(size=20))
    for found in (problem.curvature(0, theta[0]).product, products.products(0, theta[0], fresh=True).multiply):
        torch.testing.assert_close(found(vector), expected @ vector, rtol=1e-4, atol=1e-3)


def test_refining_ends_when_all_voxels_are_in_the_sample(make_cases, monkeypatch):
    monkeypatch.setattr(convex_problem, "HESSIAN_WORK", 1)
    monkeypatch.setattr(convex_problem, "SMALLEST_SAMPLE_PER_VARIABLE", 1)
    _, problem = build_linear("dc", make_cases(3, 200))
    rounds = 0
    while problem.refine(0):
        rounds += 1
    assert rounds == 3  # 12, 48, 192, all
    assert len(problem._samples[0].target) == 200


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


CPU = torch.device("cpu")


def nobody():
    pass


def frames_of(name, cases, cache=1 << 30, sample=None):
    calibrator = make_calibrator(name, cases.num_classes)
    source = StreamedVoxels(cases, nobody) if sample is None else SampledVoxels(cases, sample, 0, nobody)
    return calibrator, Frames(source, calibrator, cache, CPU)


@pytest.mark.parametrize("cache", [1 << 30, 100])
def test_a_drawn_sample_is_an_unbiased_estimate(cache, make_cases):
    _, frames = frames_of("dc", make_cases(3, 2000, parts=4), cache)
    exact = sum(float((block.weight * block.features[0]).sum()) for _, block in frames.blocks([0]))
    estimates = []
    for seed in range(100):
        sample = frames.draw({0: 150}, seed)[0]
        assert len(sample.target) <= 160
        estimates.append(float((sample.weight * sample.features[0]).sum()))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 4 * error


def test_beside_a_stream_the_sample_of_a_hessian_is_bounded(make_cases):
    cases = make_cases(3, 2000)
    _, kept = frames_of("cms_ap", cases)
    _, streamed = frames_of("cms_ap", cases, cache=4 * 24 * 3 * 100)
    assert kept.largest_sample == 2000
    assert streamed.largest_sample == 100


def test_restricted_frames_offer_only_what_they_were_given(make_cases):
    _, frames = frames_of("cms_ap", make_cases(3, 900))
    samples = frames.draw({0: 50, 2: 50}, 0)
    small = frames.restricted_to(samples)
    assert [expert for expert, _ in small.blocks([0, 1, 2])] == [0, 2]
    assert small.counts == [len(samples[0].target), 0, len(samples[2].target)]
    assert frames.counts[1] > 0
