"""The calibrators, as a visible list in the order of the paper's tables.

Parameters of some grow with the cube of the number of classes, and options come from files that may be wrong. How much
a calibrator takes is known before it is made: it is first built without values, on torch's device for that.
"""

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.calibrators.conditional_affine import ConditionalAffine
from segcal.calibrators.conic import Conic
from segcal.calibrators.local_temperature import ImageTemperatureScaling, LocalTemperatureScaling
from segcal.calibrators.matrix import ConditionalDirichlet, MatrixScaling, RowSumMatrixScaling
from segcal.calibrators.meta_cal import MetaCal
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.prior_shift import PriorShift
from segcal.calibrators.selective import Selective
from segcal.calibrators.tables import Histogram, Isotonic
from segcal.calibrators.temperature import EnsembleTemperatureScaling, Identity, TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.calibrators.voxel_networks import OrderPreservingNetwork, ParametricTemperatureScaling
from segcal.checks import check_choice, check_memory, check_num_classes, memory_limit
from segcal.errors import InputError
from segcal.regions import Regions

__all__ = [
    "CALIBRATORS",
    "PEERS",
    "Calibrator",
    "fits_in_memory",
    "make_calibrator",
    "make_per_region",
    "registry_entry",
    "saved_entry",
]

CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    "identity": Identity,
    "ts": TemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "vs": VectorScaling,
    "vs_ti": partial(VectorScaling, common_scale=True),
    "ms": MatrixScaling,
    "ms_c": RowSumMatrixScaling,
    "dc": partial(MatrixScaling, canonical=True),
    "lts": LocalTemperatureScaling,
    "lts_ti": partial(LocalTemperatureScaling, canonical=True),
    "cdc": ConditionalDirichlet,
    "cms_ap": partial(ConditionalAffine, preserves="argmax"),
    "cms_op": partial(ConditionalAffine, preserves="order"),
    "conic": Conic,
    "conic_class": partial(Conic, by_class=True),
    "ibts": ImageTemperatureScaling,
    "pts": ParametricTemperatureScaling,
    "iop": OrderPreservingNetwork,
    "selective": Selective,
    "meta_cal": partial(MetaCal, above="uniform"),
    "meta_cal_large_t": partial(MetaCal, above="large_t"),
    "isotonic": Isotonic,
    "histogram": Histogram,
}

# What is usual for a single sigmoid; both may move its decision.
PEERS: dict[str, tuple[str, dict[str, bool]]] = {"platt": ("vs_ti", {}), "isotonic": ("isotonic", {"foreground": True})}
# How an artefact names the calibrators of regions.
PER_REGION = "per_region"
# The option by which a calibrator holds another one.
INNER = "inner"
# Up to so many classes none of them is large, unless its options make it so.
SMALL = 64


@typed
def make_calibrator(name: str, num_classes: int, **options: Any) -> Calibrator:
    """Make a new calibrator, which is the identity map until it is fitted.

    A calibrator that holds another one takes it as the option `inner`: its name, or ``{"name": ...,
    "options": {...}}``.

    >>> make_calibrator("cms_ap", num_classes=5).num_parameters()
    130
    >>> make_calibrator("selective", num_classes=5, inner="cms_ap").preserves
    'argmax'
    """
    if name == PER_REGION and set(options) == {"regions", "order", INNER} and len(options[INNER]) == num_classes:
        inner = [_make_inner(named, 2) for named in options[INNER]]
        return PerRegion(Regions.declared(options["regions"], options["order"]), inner)
    if name == PriorShift.name and set(options) == {INNER}:
        return PriorShift(num_classes, _make_inner(options[INNER], num_classes))
    check_choice(name, "calibrator", CALIBRATORS)
    _, fixed = _made_by(name)
    known = [key for key in inspect.signature(CALIBRATORS[name]).parameters if key not in ("num_classes", *fixed)]
    for option in options:
        if option not in known:
            listed = f"Its options are: {', '.join(known)}." if known else "It has none."
            raise InputError(f"{name} has no option {option!r}. {listed}")
    if check_num_classes(num_classes) > SMALL or options:
        needed = _state_bytes(_without_values(name, num_classes, options))
        repair = "Choose a calibrator with fewer parameters, such as ts."
        check_memory(f"{name} for {num_classes} classes", needed, memory_limit(), repair)
    return _make(name, num_classes, options)


def make_per_region(name: str, regions: Regions) -> PerRegion:
    """Make a new calibrator of regions, with one of this name for each: of :data:`CALIBRATORS`, or of :data:`PEERS`.

    >>> make_per_region("ts", Regions.declared({"whole": [1, 2], "core": [2]}))
    2 regions, whole (ts), core (ts): keeps masks, label maps and nesting; 2 parameters
    """
    own, options = PEERS.get(name, (name, {}))
    return PerRegion(regions, [make_calibrator(own, 2, **options) for _ in regions.names])


def fits_in_memory(name: str, num_classes: int) -> bool:
    """Whether a calibrator can be fitted on this machine: its parameters, and what a fit holds beside them.

    >>> fits_in_memory("cms_ap", 20), fits_in_memory("cms_ap", 20_000)
    (True, False)
    """
    if num_classes <= SMALL:
        return True
    calibrator = _without_values(name, num_classes, {})
    return _state_bytes(calibrator) * calibrator.copies <= memory_limit()


def registry_entry(calibrator: Calibrator) -> tuple[str, dict[str, object]] | None:
    """Return the name and options with which :func:`make_calibrator` makes this calibrator again.

    None for a class that is not in the registry.

    >>> registry_entry(make_calibrator("cms_op", 4))
    ('cms_op', {})
    """
    if isinstance(calibrator, PerRegion):
        inner = [_name_inner(each) for each in calibrator.each.values()]
        return PER_REGION, {**calibrator.regions.to_plain(), INNER: inner}
    if isinstance(calibrator, PriorShift):
        return PriorShift.name, {INNER: _name_inner(calibrator.inner)}
    made_by, fixed = _made_by(calibrator.name)
    return (calibrator.name, _changed_options(calibrator, fixed)) if type(calibrator) is made_by else None


def saved_entry(calibrator: Calibrator) -> tuple[str, dict[str, object]]:
    """Return the name and options under which a calibrator is saved; ``module:Class`` of a class of the user's own."""
    kind = type(calibrator)
    entry = registry_entry(calibrator)
    if entry is not None:
        return entry
    named = [one for one in inspect.signature(kind).parameters.values() if one.kind is not one.VAR_KEYWORD]
    lost = next((one.name for one in named if one.name not in ("num_classes", *calibrator.options)), None)
    if lost is not None:
        raise InputError(
            f"{kind.__qualname__} takes {lost} and does not keep it, but a file must say how it is made again. "
            f"Pass it on in the class: super().__init__(num_classes, {lost}={lost})."
        )
    return f"{kind.__module__}:{kind.__qualname__}", _changed_options(calibrator, ())


def _make(name: str, num_classes: int, options: dict[str, object]) -> Calibrator:
    try:
        if isinstance(options.get(INNER), str | dict):
            options = options | {INNER: _make_inner(options[INNER], num_classes)}
        return CALIBRATORS[name](num_classes, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(
            f"{name} has the options {options}, but it cannot be made with them ({reason}). Check types and sizes."
        ) from None


def _without_values(name: str, num_classes: int, options: dict[str, object]) -> Calibrator:
    with torch.device("meta"):
        return _make(name, num_classes, options)


def _state_bytes(calibrator: Calibrator) -> int:
    return sum(value.numel() * value.element_size() for value in calibrator.state_dict().values())


def _made_by(name: str) -> tuple[Callable[..., Calibrator] | None, Collection[str]]:
    """Return the class behind a name, and the options that the name fixes."""
    make = CALIBRATORS.get(name)
    return (make.func, make.keywords) if isinstance(make, partial) else (make, ())


def _changed_options(calibrator: Calibrator, fixed: Collection[str]) -> dict[str, object]:
    defaults = {key: value.default for key, value in inspect.signature(type(calibrator)).parameters.items()}
    changed = {
        key: value for key, value in calibrator.options.items() if key not in fixed and value != defaults.get(key)
    }
    if isinstance(changed.get(INNER), Calibrator):
        changed[INNER] = _name_inner(changed[INNER])
    return changed


def _make_inner(named: Any, num_classes: int) -> Calibrator:
    if isinstance(named, str):
        return make_calibrator(named, num_classes)
    if not isinstance(named.get("name"), str) or not set(named) <= {"name", "options"}:
        raise InputError(f"{INNER} is {named!r}, but a name, or a name and options, is needed. Pass {INNER}='ts'.")
    return make_calibrator(named["name"], num_classes, **named.get("options", {}))


def _name_inner(inner: Calibrator) -> str | dict[str, object]:
    entry = registry_entry(inner)
    if entry is None:
        raise InputError(
            f"{INNER} is a {inner.name}, but only calibrators of segcal.CALIBRATORS can be written down. "
            "Choose one of these."
        )
    name, options = entry
    return {"name": name, "options": options} if options else name
