"""The start of fits by gradient."""

import numpy as np
import pytest
import torch

from segcal import CALIBRATORS, ArrayCases, FitConfig, fit, make_calibrator
from segcal.fitting.request import Request
from segcal.fitting.voxels import StreamedVoxels
from segcal.fitting.warm_start import best_temperature, is_new


def test_the_temperature_is_that_of_temperature_scaling():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 40_000)).astype("float32")
    cases = ArrayCases([logits], [(0.4 * logits + rng.gumbel(size=logits.shape)).argmax(0)])
    source = StreamedVoxels(cases, lambda: None)
    cpu = torch.device("cpu")
    request = Request(make_calibrator("pts", 3), source, None, FitConfig(), cpu, lambda text: None, cases, None)
    expected = 1 / float(fit("ts", cases, config=FitConfig(voxels="all")).calibrator.inverse_temperature)
    assert best_temperature(request) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_what_was_made_is_new_until_it_is_changed(name, randomise):
    assert is_new(make_calibrator(name, 3))
    if make_calibrator(name, 3).num_parameters():
        assert not is_new(randomise(make_calibrator(name, 3)))
