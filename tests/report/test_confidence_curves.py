import numpy as np
import torch

from segcal import make_calibrator
from segcal.calibrators.conic import Conic
from segcal.report.confidence_curves import LEVELS, confidence_curves, confidence_figure, page_figures
from segcal.report.figures import to_svg


def learned():
    """Half the slope where few neighbours have the voxel's class, and twice it where all do."""
    calibrator = Conic(3, contexts=["share_far"], ramps=1, hats=2)
    calibrator.hat_knots.copy_(torch.tensor([0.2, 1.0]))
    calibrator.set_theta(torch.tensor([[0.5, 0.0, 1.5]]))
    return calibrator


def test_curves_are_those_of_the_definition():
    slopes = {"low": 0.5, "in the middle": 1.25, "high": 2.0}
    found = list(confidence_curves(learned()))
    assert [one.level for one in found] == list(LEVELS)
    for one in found:
        gap = torch.logit(one.before)
        np.testing.assert_allclose(one.after, torch.sigmoid(slopes[one.level] * gap), atol=1e-6)


def test_without_contexts_there_is_one_curve():
    (one,) = confidence_curves(make_calibrator("conic", 4))
    np.testing.assert_allclose(one.after, one.before, atol=1e-9)


def test_the_figure_names_the_context_and_its_levels():
    text = to_svg(confidence_figure(learned()))
    assert "share of its class around, 25 x 25" in text
    assert all(level in text for level in LEVELS)
    (figure,) = page_figures(learned())
    assert figure.svg == text
    assert page_figures(make_calibrator("ts", 3)) == page_figures(None) == []
