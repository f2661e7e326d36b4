"""The calibrators, as a visible list in the order of the paper's tables."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from segcal.calibrators.base import Calibrator
from segcal.calibrators.conditional_affine import ConditionalAffine
from segcal.calibrators.conditional_dirichlet import ConditionalDirichlet
from segcal.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from segcal.calibrators.identity import Identity
from segcal.calibrators.matrix import MatrixScaling
from segcal.calibrators.matrix_row_sum import RowSumMatrixScaling
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.errors import InputError

__all__ = ["CALIBRATORS", "Calibrator", "make_calibrator"]

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    "identity": Identity,
    "ts": TemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "vs": VectorScaling,
    "vs_ti": partial(VectorScaling, common_scale=True),
    "ms": MatrixScaling,
    "ms_c": RowSumMatrixScaling,
    "dc": partial(MatrixScaling, canonical=True),
    "cdc": ConditionalDirichlet,
    "cms_ap": partial(ConditionalAffine, preserves="argmax"),
    "cms_op": partial(ConditionalAffine, preserves="order"),
}


def make_calibrator(name: str, num_classes: int, **options: Any) -> Calibrator:
    """Make a new calibrator, which is the identity map until it is fitted.

    >>> make_calibrator("cms_ap", num_classes=5).num_parameters()
    130
    """
    if name not in CALIBRATORS:
        raise InputError(f"no calibrator is named {name!r}. Choose one of: {', '.join(CALIBRATORS)}.")
    make = CALIBRATORS[name]
    fixed = set(make.keywords) if isinstance(make, partial) else set()
    known = [key for key in inspect.signature(make).parameters if key != "num_classes" and key not in fixed]
    for option in options:
        if option not in known:
            listed = f"Its options are: {', '.join(known)}." if known else "It has none."
            raise InputError(f"{name} has no option {option!r}. {listed}")
    return make(num_classes, **options)
