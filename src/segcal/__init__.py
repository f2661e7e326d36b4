"""segcal: calibrated confidence for trained segmentation models, without changing their masks.

A public name is imported when it is first asked for, so that `import segcal` takes no time.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from segcal.version import __version__ as __version__

if TYPE_CHECKING:
    from segcal import metrics
    from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
    from segcal.cases import ArrayCases, Case, CaseError, Cases, CheckResult, ReadOptions, as_cases, convert, open_cases
    from segcal.cases.check import check
    from segcal.cases.masks import MaskCases
    from segcal.decisions.decide import decide
    from segcal.decisions.masks import Decisions
    from segcal.errors import ArtifactError, InputError, SegcalError, SuspicionWarning
    from segcal.evaluation.apply import Applied, apply
    from segcal.evaluation.audit import Audit, audit
    from segcal.evaluation.evaluate import evaluate
    from segcal.evaluation.result import Evaluation
    from segcal.fitting import FitConfig, Fitted, fit
    from segcal.fitting.artifact import load, save
    from segcal.fitting.comparison import choose
    from segcal.integrations.attach import attach
    from segcal.integrations.onnx import export
    from segcal.integrations.viewers import view
    from segcal.losses import LOSSES, make_loss
    from segcal.metrics import METRICS
    from segcal.pooling import POOLINGS, pool
    from segcal.report.card import card
    from segcal.report.card_document import Card
    from segcal.report.evaluated import report
    from segcal.scale.merge import merge
    from segcal.scale.part import Part
    from segcal.trust.adapt import Adapted, adapt
    from segcal.trust.grown import apply_margins
    from segcal.trust.learn import learn_objects, learn_trust
    from segcal.trust.margins import Margins, fit_margins
    from segcal.trust.objects import Objects, objects
    from segcal.trust.result import Trust
    from segcal.trust.stream import Monitored, monitor
    from segcal.trust.structures import trust
    from segcal.types import Context

__all__ = [
    "CALIBRATORS", "LOSSES", "METRICS", "POOLINGS", "Adapted", "Applied", "ArrayCases", "ArtifactError", "Audit",
    "Calibrator", "Card", "Case", "CaseError", "Cases", "CheckResult", "Context", "Decisions", "Evaluation",
    "FitConfig", "Fitted", "InputError", "Margins", "MaskCases", "Monitored", "Objects", "Part", "ReadOptions",
    "SegcalError", "SuspicionWarning", "Trust", "adapt", "apply", "apply_margins", "as_cases", "attach", "audit",
    "card", "check", "choose", "convert", "decide", "evaluate", "export", "fit", "fit_margins", "learn_objects",
    "learn_trust", "load", "make_calibrator", "make_loss", "merge", "metrics", "monitor", "objects", "open_cases",
    "pool", "report", "save", "trust", "view",
]  # fmt: skip

# Where the public names are.
_NAMES = {
    "segcal.calibrators": ("CALIBRATORS", "Calibrator", "make_calibrator"),
    "segcal.cases": (
        "ArrayCases", "Case", "CaseError", "Cases", "CheckResult", "ReadOptions", "as_cases", "convert", "open_cases",
    ),
    "segcal.cases.check": ("check",),
    "segcal.cases.masks": ("MaskCases",),
    "segcal.decisions.decide": ("decide",),
    "segcal.decisions.masks": ("Decisions",),
    "segcal.errors": ("ArtifactError", "InputError", "SegcalError", "SuspicionWarning"),
    "segcal.evaluation.apply": ("Applied", "apply"),
    "segcal.evaluation.audit": ("Audit", "audit"),
    "segcal.evaluation.evaluate": ("evaluate",),
    "segcal.evaluation.result": ("Evaluation",),
    "segcal.fitting": ("FitConfig", "Fitted", "fit"),
    "segcal.fitting.artifact": ("load", "save"),
    "segcal.fitting.comparison": ("choose",),
    "segcal.integrations.attach": ("attach",),
    "segcal.integrations.onnx": ("export",),
    "segcal.integrations.viewers": ("view",),
    "segcal.losses": ("LOSSES", "make_loss"),
    "segcal.metrics": ("METRICS",),
    "segcal.pooling": ("POOLINGS", "pool"),
    "segcal.report.card": ("card",),
    "segcal.report.card_document": ("Card",),
    "segcal.report.evaluated": ("report",),
    "segcal.scale.merge": ("merge",),
    "segcal.scale.part": ("Part",),
    "segcal.trust.adapt": ("Adapted", "adapt"),
    "segcal.trust.grown": ("apply_margins",),
    "segcal.trust.learn": ("learn_objects", "learn_trust"),
    "segcal.trust.margins": ("Margins", "fit_margins"),
    "segcal.trust.objects": ("Objects", "objects"),
    "segcal.trust.result": ("Trust",),
    "segcal.trust.stream": ("Monitored", "monitor"),
    "segcal.trust.structures": ("trust",),
    "segcal.types": ("Context",),
}  # fmt: skip
_PLACES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return found
    try:
        return import_module(f"segcal.{name}")  # a folder or file of the package, such as `segcal.metrics`
    except ModuleNotFoundError as error:
        if error.name != f"segcal.{name}":
            raise
        raise AttributeError(f"module 'segcal' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps the functions `report` and `trust`, which have the names of folders: an import would put these there."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _PLACES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
