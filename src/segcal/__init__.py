"""segcal: honest confidence for trained segmentation models, without changing their masks."""

from segcal import metrics
from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from segcal.cases import ArrayCases, Case, CaseError, Cases, CheckResult, ReadOptions, as_cases, convert, open_cases
from segcal.cases.check import check
from segcal.errors import ArtifactError, InputError, SegcalError, SuspicionWarning
from segcal.evaluation.apply import Applied, apply
from segcal.evaluation.audit import Audit, audit
from segcal.evaluation.evaluate import evaluate
from segcal.evaluation.result import Evaluation
from segcal.fitting import FitConfig, Fitted, fit
from segcal.fitting.artifact import load, save
from segcal.fitting.contest import choose
from segcal.integrations.attach import attach
from segcal.integrations.onnx import export
from segcal.integrations.viewers import view
from segcal.losses import LOSSES, make_loss
from segcal.metrics import METRICS
from segcal.pooling import POOLINGS, pool
from segcal.report.evaluated import report
from segcal.scale.merge import merge
from segcal.scale.part import Part
from segcal.trust.learn import learn_trust
from segcal.trust.monitored import Monitored
from segcal.trust.result import Trust
from segcal.trust.stream import monitor
from segcal.trust.structures import trust
from segcal.types import Context
from segcal.version import __version__ as __version__

__all__ = [
    "CALIBRATORS",
    "LOSSES",
    "METRICS",
    "POOLINGS",
    "Applied",
    "ArrayCases",
    "ArtifactError",
    "Audit",
    "Calibrator",
    "Case",
    "CaseError",
    "Cases",
    "CheckResult",
    "Context",
    "Evaluation",
    "FitConfig",
    "Fitted",
    "InputError",
    "Monitored",
    "Part",
    "ReadOptions",
    "SegcalError",
    "SuspicionWarning",
    "Trust",
    "apply",
    "as_cases",
    "attach",
    "audit",
    "check",
    "choose",
    "convert",
    "evaluate",
    "export",
    "fit",
    "learn_trust",
    "load",
    "make_calibrator",
    "make_loss",
    "merge",
    "metrics",
    "monitor",
    "open_cases",
    "pool",
    "report",
    "save",
    "trust",
    "view",
]
