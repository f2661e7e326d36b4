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

__all__ = ["CALIBRATORS", "Calibrator", "make_calibrator", "registry_entry"]

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


def registry_entry(calibrator: Calibrator) -> tuple[str, dict[str, Any]] | None:
    """Return the name and options with which :func:`make_calibrator` makes this calibrator again.

    None for a class that is not in the registry.

    >>> registry_entry(make_calibrator("cms_op", 4))
    ('cms_op', {})
    """
    best: tuple[int, str, dict[str, Any]] | None = None
    for name, make in CALIBRATORS.items():
        fixed = make.keywords if isinstance(make, partial) else {}
        made_by = make.func if isinstance(make, partial) else make
        matches = type(calibrator) is made_by and all(calibrator.options.get(key) == fixed[key] for key in fixed)
        if matches and (best is None or len(fixed) > best[0]):
            best = (len(fixed), name, _changed_options(calibrator, set(fixed), made_by))
    return None if best is None else (best[1], best[2])


def _changed_options(calibrator: Calibrator, fixed: set[str], made_by: Callable[..., Calibrator]) -> dict[str, Any]:
    defaults = {key: value.default for key, value in inspect.signature(made_by).parameters.items()}
    return {key: value for key, value in calibrator.options.items() if key not in fixed and value != defaults.get(key)}
