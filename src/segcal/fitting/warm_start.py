"""Temperature scaling as the start of fits by gradient, and as what they fall back to.

A network that starts at temperature scaling with the best temperature has only to learn what goes beyond it. And a
training that ends no better than it on the validation data has learned nothing: then the start is the result.
"""

import torch

from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.fitting.newton import minimise
from segcal.fitting.request import Request
from segcal.fitting.temperature_problem import TemperatureProblem

COARSE_TOL = 1e-4


def best_temperature(request: Request) -> float:
    """Return the temperature that suits the calibration voxels best."""
    scaling = TemperatureScaling(request.calibrator.num_classes)
    problem = TemperatureProblem(scaling, request.source, request.device)
    start = minimise(problem.coarse(), problem.start(), [0], COARSE_TOL).theta
    return 1 / float(minimise(problem, start, [0], request.config.tol).theta)


def is_new(calibrator: Calibrator) -> bool:
    """Return whether a calibrator is as it was made; another one is where its owner wants the fit to start."""
    made = type(calibrator)(calibrator.num_classes, **calibrator.options).state_dict()
    return all(torch.equal(value.cpu(), made[name]) for name, value in calibrator.state_dict().items())
