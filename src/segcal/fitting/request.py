"""One fit: the voxels that are read for it, drawn from its cases and kept, or streamed; and what a method is given."""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from segcal.calibrators.base import Calibrator
from segcal.calibrators.neighbourhood import CONTEXTS
from segcal.cases.base import CaseError, Cases
from segcal.cases.loader import as_cases
from segcal.cases.parallel import Workers
from segcal.cases.suspicion import single_folds, warn
from segcal.cases.watch import Watch, look_at_members, reading_at_once
from segcal.errors import InputError
from segcal.fitting.config import FitConfig
from segcal.fitting.progress import Report, silent
from segcal.fitting.sample import draw_each
from segcal.fitting.voxels import StreamedVoxels, VoxelSource
from segcal.raters import DECLARED

# What validation data have in common with the calibration data; the rest belongs to single cases.
ALIKE = ("kind", "pooling", "model", "inferer", "ignore", "class_names", "regions", "regions_class_order", *DECLARED)


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
    """Draw the voxels of a fit from its cases, or arrange to stream them; `suspect` warns of what is rarely intended.

    `contexts` is what calibrators want to know around voxels; the other arguments are those of :func:`segcal.fit`.
    """
    others = None if validation is None else [validation]
    return read_each([cases], others, config, report, workers, failed, suspect=suspect, contexts=contexts)[0]


def read_each(
    cases: Sequence[Cases],
    validation: Sequence[Cases] | None,
    config: FitConfig,
    report: Report = silent,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    *,
    suspect: bool = False,
    contexts: Collection[str] = (),
) -> list[FitData]:
    """Do the same for several poolings of the same cases, each read once; the first is checked for suspicions."""
    check_cases(cases[0], None if validation is None else validation[0])
    if "disagreement" in contexts:
        cases = [each.with_disagreement() for each in cases]
        validation = None if validation is None else [each.with_disagreement() for each in validation]
    watch = Watch(cases[0].num_classes) if suspect else None
    # Voxels that fit into the memory allowed: 4 bytes for each class and context, and label and weight.
    each = 4 * (cases[0].num_classes + 2 + (len(CONTEXTS) if contexts else 0))

    def voxels(own: Sequence[Cases], part: str, watched: Watch | None) -> Sequence[VoxelSource]:
        found = _known(own[0], config, contexts) if len(own) == 1 and not suspect else None
        if found is not None:
            return [found]
        read = itertools.count(1)
        seen = None if watched is None else partial(watched.add, part=part)
        how = (lambda: report(f"read {next(read)} of {len(own[0])} cases"), workers, failed)
        if config.voxels == "all":
            return [StreamedVoxels(one, *how, seen if one is own[0] else None, contexts) for one in own]
        per_case = max(1, min(config.voxels, config.memory // each // len(own[0])))
        with reading_at_once(own, suspect):
            drawn = draw_each(own, per_case, config.seed, *how, seen, contexts)
        for one, source in zip(own, drawn, strict=True):
            if one.kept is not None:
                one.kept.keep_drawn(_drawn_as(one, config), (frozenset(contexts), source), source.size)
        return drawn

    sources = voxels(cases, "calibration", watch)
    # Who passes the same collection twice knows it.
    again = validation is not None and validation[0] is cases[0]
    held = None if validation is None else voxels(validation, "validation", None if again else watch)
    if watch is not None:
        warn([*single_folds(cases[0].origin), *watch.found(), *look_at_members(cases[0])])
    return [
        FitData(
            cases=own.subset(source.ids),
            validation_cases=None if validation is None or held is None else validation[place].subset(held[place].ids),
            source=source,
            validation=None if held is None else held[place],
        )
        for place, (own, source) in enumerate(zip(cases, sources, strict=True))
    ]


def _drawn_as(cases: Cases, config: FitConfig) -> tuple[object, ...]:
    return cases.pooling, cases.aspect, config.voxels, config.seed


def _known(cases: Cases, config: FitConfig, contexts: Collection[str]) -> VoxelSource | None:
    """Return the voxels of these cases that were drawn before and are kept, if there are any."""
    found = None if cases.kept is None else cases.kept.drawn(_drawn_as(cases, config))
    known, drawn = (frozenset[str](), None) if found is None else found
    if drawn is None or not {*contexts} <= known or not {*cases.ids} <= {*drawn.ids}:
        return None
    source: VoxelSource = drawn if drawn.ids == cases.ids else drawn.subset(cases.ids)
    return source


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
