"""segcal: honest confidence for trained segmentation models, without changing their masks."""

from segcal.audit import audit
from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from segcal.cases import ArrayCases
from segcal.errors import ArtifactError, InputError, SegcalError
from segcal.fitting import FitConfig, fit
from segcal.fitting.artifact import load, save
from segcal.pooling import POOLINGS, pool

__version__ = "0.1.0"

__all__ = [
    "CALIBRATORS",
    "POOLINGS",
    "ArrayCases",
    "ArtifactError",
    "Calibrator",
    "FitConfig",
    "InputError",
    "SegcalError",
    "audit",
    "fit",
    "load",
    "make_calibrator",
    "pool",
    "save",
]
