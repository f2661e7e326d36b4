"""segcal: honest confidence for trained segmentation models, without changing their masks."""

from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from segcal.cases import ArrayCases, open_cases
from segcal.errors import ArtifactError, InputError, SegcalError, SuspicionWarning
from segcal.evaluation.audit import audit
from segcal.evaluation.evaluate import evaluate
from segcal.fitting import FitConfig, fit
from segcal.fitting.artifact import load, save
from segcal.fitting.contest import choose
from segcal.losses import LOSSES, make_loss
from segcal.metrics import METRICS
from segcal.pooling import POOLINGS, pool
from segcal.version import __version__ as __version__

__all__ = [
    "CALIBRATORS",
    "LOSSES",
    "METRICS",
    "POOLINGS",
    "ArrayCases",
    "ArtifactError",
    "Calibrator",
    "FitConfig",
    "InputError",
    "SegcalError",
    "SuspicionWarning",
    "audit",
    "choose",
    "evaluate",
    "fit",
    "load",
    "make_calibrator",
    "make_loss",
    "open_cases",
    "pool",
    "save",
]
