"""One fit: the voxels that are read for it, drawn from its cases and kept, or streamed; and what a method is given."""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from segcal.calibrators.base import Calibrator
from segcal.calibrators.surroundings import CONTEXTS
from segcal.cases.base import CaseError, Cases
from segcal.cases.loader import as_cases
from segcal.cases.parallel import Workers
from segcal.cases.suspicion import single_folds, warn
from segcal.cases.watch import Watch, look_at_members
from segcal.errors import InputError
from segcal.fitting.config import FitConfig
from segcal.fitting.progress import Report, silent
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels, VoxelSource

# What validation data have in common with the calibration data; the rest belongs to single cases.
ALIKE = ("kind", "pooling", "model", "inferer", "ignore", "class_names", "regions", "regions_class_order")


@dataclass(frozen=True)
class FitData:
    """The voxels of a fit, read once; several calibrators can be fitted to them.

    `weights` is what cases count that count less than others; None before that is known.
    """

    cases: Cases
    validation_cases: Cases | None
    source: VoxelSource
    validation: VoxelSource | None
    weights: dict[str, float] | None = field(default=None, kw_only=True)

    @property
    def judges(self) -> Cases:
        """The cases that are held out: those for validation or, where there are none, the calibration cases in turn."""
        return self.cases if self.validation_cases is None else self.validation_cases


@dataclass(frozen=True)
class Request(FitData):
    """One fit: the voxels, the calibrator whose parameters are where it starts and leaves its result, and how.

    `report` takes a short text on how far the fit is.
    """

    calibrator: Calibrator
    config: FitConfig
    device: torch.device
    report: Report

    @classmethod
    def on(
        cls, data: FitData, calibrator: Calibrator, config: FitConfig, device: torch.device, report: Report
    ) -> "Request":
        """Return the fit of a calibrator to data that have been read."""
        parts = data.cases, data.validation_cases, data.source, data.validation
        return cls(*parts, calibrator, config, device, report, weights=data.weights)


def take_parts(cases: Any, labels: Any, validation: Any, declared: dict[str, Any]) -> tuple[Cases, Cases | None]:
    """Return calibration and validation cases of what :func:`segcal.fit` is given; see there."""
    if isinstance(labels, Cases):
        if validation is not None:
            raise InputError(
                "labels is a collection of cases, but validation is given too. Pass labels for arrays, and one "
                "collection as validation."
            )
        labels, validation = None, labels
    own = as_cases(cases, labels, **declared)
    if validation is None or isinstance(validation, Cases):
        return own, validation
    pair = isinstance(validation, tuple) and len(validation) == 2
    alike = {name: declared[name] for name in ALIKE if name in declared}
    return own, as_cases(*(validation if pair else (validation,)), **alike)


def read_data(
    cases: Cases,
    validation: Cases | None,
    config: FitConfig,
    report: Report = silent,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    *,
    suspect: bool = False,
    contexts: Collection[str] = (),
) -> FitData:
    """Draw the voxels of a fit from its cases, or arrange to stream them; `suspect` warns of what is seldom meant.

    `contexts` is what calibrators want to know around voxels; the other arguments are those of :func:`segcal.fit`.
    """
    check_cases(cases, validation)
    if "disagreement" in contexts:
        cases, validation = cases.with_disagreement(), validation and validation.with_disagreement()
    watch = Watch(cases.num_classes) if suspect else None
    # Voxels that fit into the memory allowed: 4 bytes for each class and context, and label and weight.
    each = 4 * (cases.num_classes + 2 + (len(CONTEXTS) if contexts else 0))

    def voxels(own: Cases, part: str, watched: Watch | None) -> VoxelSource:
        read = itertools.count(1)
        seen = None if watched is None else partial(watched.add, part=part)
        how = (lambda: report(f"read {next(read)} of {len(own)} cases"), workers, failed, seen, contexts)
        if config.voxels == "all":
            return StreamedVoxels(own, *how)
        return SampledVoxels(own, max(1, min(config.voxels, config.memory // each // len(own))), config.seed, *how)

    source = voxels(cases, "calibration", watch)
    # Who passes the same collection twice knows it.
    held = None if validation is None else voxels(validation, "validation", None if validation is cases else watch)
    if watch is not None:
        warn([*single_folds(cases.origin), *watch.found(), *look_at_members(cases)])
    return FitData(
        cases=cases.subset(source.ids),
        validation_cases=None if validation is None or held is None else validation.subset(held.ids),
        source=source,
        validation=held,
    )


def check_cases(cases: Cases, validation: Cases | None) -> None:
    """Refuse collections that nothing can be fitted to."""
    if len(cases) == 0:
        raise InputError("cases is empty, but at least one case is needed. Check the split.")
    if validation is None:
        return
    if len(validation) == 0:
        raise InputError("validation is empty, but at least one case is needed. Pass None to fit without validation.")
    if validation.num_classes != cases.num_classes:
        raise InputError(
            f"validation has {validation.num_classes} classes, but the calibration cases have {cases.num_classes}. "
            "Both must come from one model."
        )
