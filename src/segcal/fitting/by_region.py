"""Fitting of calibrators to regions: each region is a problem of two classes, and the loss is summed over them.

Regions share no parameters, so the sum has its minimum where each term has its own: one fit and one certificate for
each. Nesting is kept afterwards, by the map itself (:mod:`segcal.calibrators.per_region`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from segcal.calibrators import PEERS, make_calibrator, make_per_region
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Cases
from segcal.cases.region_view import region_view, regions_of
from segcal.cases.suspicion import suspect_kind, warn
from segcal.errors import InputError
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.choice import candidates_of

# Default candidates of a region: what keeps its decision, and what may move it.
KEEPING = ("identity", "ts", "conic", "conic_class")
MOVING = ("vs_ti",)


def fit_by_region(
    cases: Cases, validation: Cases | None, fit_one: Callable[[int, Cases, Cases | None], Fitted]
) -> Fitted:
    """Fit each region by a function of its number and its cases for calibration and validation, and join the results.

    The function fits, or compares and fits; all must come to one pooling.
    """
    regions = regions_of(cases)
    check_validation(cases, validation)
    warn(suspect_kind(cases.pooled(cases.poolings[0])))
    found = [
        fit_one(number, region_view(cases, number), None if validation is None else region_view(validation, number))
        for number in range(len(regions))
    ]
    pooling = found[0].pooling
    ids = [case_id for case_id in cases.ids if all(case_id in one.calibration_ids for one in found)]
    return replace(
        found[0],
        calibrator=PerRegion(regions, [one.calibrator for one in found]).eval().requires_grad_(False),
        certificate=join({name: one.certificate for name, one in zip(regions.names, found, strict=True)}),
        class_names=regions.names,
        fingerprint=cases.pooled(pooling).subset(ids).fingerprint(),
        calibration_ids=tuple(ids),
    )


def check_validation(cases: Cases, validation: Cases | None) -> None:
    """Refuse validation cases of other regions."""
    if validation is not None and validation.regions != cases.regions:
        raise InputError(
            "validation has other regions than the calibration cases, but both must come from one model. "
            "Declare the same regions for both."
        )


def inner_of(name_or_calibrator: Any, cases: Cases, number: int) -> Calibrator:
    """Return the calibrator from which the fit of a region starts."""
    regions, named = regions_of(cases), isinstance(name_or_calibrator, str)
    whole = make_per_region(name_or_calibrator, regions) if named else name_or_calibrator
    if getattr(whole, "regions", None) != regions:
        raise InputError(
            f"name_or_calibrator is {type(name_or_calibrator).__name__}, but the cases have regions: a name, or a "
            "calibrator of these regions, is needed. Pass a name such as 'conic'."
        )
    found: list[Calibrator] = list(whole.each.values())
    return found[number]


def best_pooling(found: Mapping[str, Fitted], poolings: tuple[str | None, ...]) -> str | None:
    """Return the pooling in which temperature scaling has the lowest loss, summed over regions."""
    sums: dict[str | None, float] = dict.fromkeys(poolings, 0.0)
    for one in found.values():
        for candidate in candidates_of(one.certificate.details):
            if candidate.name == "ts" and candidate.nll is not None:
                sums[candidate.pooling] += candidate.nll
    return min(sums, key=lambda pooling: sums[pooling])


def competing(names: Sequence[str] | None, preserve: str) -> list[str]:
    """Return the names that compete for a region, where each is a calibrator of two classes."""
    if names is None:
        return [*KEEPING, *(MOVING if preserve == "none" else ())]
    own = [PEERS[name][0] if name in PEERS and not PEERS[name][1] else name for name in names]
    for name in own:
        make_calibrator(name, 2)  # says it where there is none
    return own


def join(certificates: Mapping[str, Certificate]) -> Certificate:
    """Return the certificate of all regions: losses add up, and what is weakest counts."""
    found = list(certificates.values())
    residuals = [one.kkt_residual for one in found if one.kkt_residual is not None]
    held_out = [one.validation_nll for one in found if one.validation_nll is not None]
    reasons = {name: str(one.details["reason"]) for name, one in certificates.items() if "reason" in one.details}
    details: dict[str, object] = {"regions": {name: one.to_dict() for name, one in certificates.items()}}
    if reasons:
        details["reason"] = " ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return Certificate(
        method=", ".join(dict.fromkeys(one.method for one in found)),
        objective=sum(one.objective for one in found),
        nll=sum(one.nll for one in found),
        kkt_residual=max(residuals) if residuals else None,
        converged=all(one.converged for one in found),
        passes=sum(one.passes for one in found),
        voxels=found[0].voxels,
        voxels_available=found[0].voxels_available,
        validation_nll=sum(held_out) if len(held_out) == len(found) else None,
        active_bounds=tuple(f"{name}: {bound}" for name, one in certificates.items() for bound in one.active_bounds),
        details=details,
    )
