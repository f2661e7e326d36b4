import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig
from segcal.calibrators import make_calibrator
from segcal.fitting.paper import LIKELIHOODS
from segcal.fitting.request import FitData, Request, silent
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels

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


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", NAMES)
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


def test_experts_without_voxels_are_named_and_do_not_count():
    logits, labels = _problem(4, never_predicted=2)
    calibrator = _moved("cms_ap", 4)
    likelihood = _likelihood(calibrator, logits, labels)
    assert likelihood.untouched == (2,)
    before = float(likelihood(calibrator).detach())
    with torch.no_grad():
        calibrator.weight[2] += 5
    assert float(likelihood(calibrator).detach()) == before
