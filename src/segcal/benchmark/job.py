"""One job: divide the cases of a task, fit its pipelines with one pooling, and test them, one case in memory at a time.

A job computes in one thread, whatever the machine offers. Sums of many numbers in another order differ in their last
digit; in one thread, results are the same bytes with one process or with many.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from segcal.benchmark.counting import CaseCounter, Kept, benchmark_metrics
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import write_unit
from segcal.benchmark.tasks import Opener, OpenTask, open_task
from segcal.benchmark.units import SCHEMA, Job, Unit, cases_elsewhere, divide
from segcal.cases import Cases, Split
from segcal.fitting import Fitted
from segcal.fitting.artifact import save
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data
from segcal.kernels.threads import one_thread

CALIBRATORS = "calibrators"


@dataclass(frozen=True)
class Context:
    """What every job of a run shares.

    Attributes:
        protocol: the protocol.
        folder: where results go.
        digests: the digest of each unit.
        embedded: opens embedded tasks.
    """

    protocol: Protocol
    folder: Path
    digests: Mapping[Unit, str]
    embedded: Opener | None

    def open(self, task: str, pooling: str) -> OpenTask:
        """Open a task with a pooling."""
        return open_task(self.protocol.task(task), pooling, self.protocol.root, self.embedded)

    def divide(self, task: str, cases: Cases, repeat: int) -> Split:
        """Divide the cases of a task in a repeat."""
        division = self.protocol.division(self.protocol.task(task))
        return divide(cases, division, task, self.protocol.seed, repeat)


def run_job(job: Job, context: Context, report: Callable[[str], None] = lambda message: None) -> int:
    """Run the units of a job, write their files, and return how many there are."""
    name = f"{job.task}, repeat {job.repeat + 1}, {job.pooling}"
    with one_thread():
        opened = context.open(job.task, job.pooling)
        split = context.divide(job.task, opened.cases, job.repeat)
        fits = _fit(job, context, split, lambda message: report(f"{name}: {message}"))
        for target in dict.fromkeys(unit.test_on for unit in job.units):
            units = [unit for unit in job.units if unit.test_on == target]
            where = f"{name}, tested on {target}" if target else name
            cases, background = _target(context, target, job, split, opened)
            kept = _test(units, cases, background, fits, context, lambda message: report(f"{where}: {message}"))  # noqa: B023
            for unit in units:
                header = _header(unit, context, fits[unit.pipeline.title], split, cases, background)
                write_unit(context.folder, header, kept[unit.pipeline.title].rows, kept[unit.pipeline.title].total())
    return len(job.units)


def _fit(job: Job, context: Context, split: Split, report: Callable[[str], None]) -> dict[str, Fitted]:
    config = context.protocol.fit
    data = read_data(split.cal, split.val if len(split.val) else None, config, report)
    fits = {}
    for pipeline in dict.fromkeys(unit.pipeline for unit in job.units):
        report(f"fitting {pipeline.calibrator}")
        fitted = fit_to(pipeline.make(split.cal.num_classes), data, config, context.protocol.device)
        fitted.calibrator.cpu()
        fits[pipeline.title] = fitted
        if fitted.calibrator.num_parameters():
            stem = Unit(job.task, job.repeat, pipeline).path.with_suffix("").name
            save(fitted, context.folder / CALIBRATORS / job.task / f"repeat_{job.repeat}" / stem)
    return fits


def _target(context: Context, target: str, job: Job, split: Split, opened: OpenTask) -> tuple[Cases, bool]:
    if not target:
        return split.test, opened.background
    other = context.open(target, job.pooling)
    alone = context.protocol.task(target).test_only
    own = None if alone else context.divide(target, other.cases, job.repeat)
    return cases_elsewhere(split, opened.cases, other.cases, own), other.background


def _test(
    units: list[Unit],
    cases: Cases,
    background: bool,
    fits: Mapping[str, Fitted],
    context: Context,
    report: Callable[[str], None],
) -> dict[str, Kept]:
    counter = CaseCounter(benchmark_metrics(context.protocol.metrics, background))
    calibrators = {unit.pipeline.title: fits[unit.pipeline.title].calibrator for unit in units}
    kept = {name: Kept() for name in calibrators}
    for number, case_id in enumerate(sorted(cases.ids)):
        report(f"testing case {number + 1} of {len(cases)}")
        counter.add(cases.read(case_id), calibrators, kept)
    return kept


def _header(
    unit: Unit, context: Context, fitted: Fitted, split: Split, cases: Cases, background: bool
) -> dict[str, Any]:
    calibrator = fitted.calibrator
    return {
        "schema": SCHEMA,
        "digest": context.digests[unit],
        "segcal": version("segcal"),
        "unit": unit.to_plain(),
        "title": unit.pipeline.title,
        "translation_invariant": calibrator.translation_invariant,
        "preserves": calibrator.preserves,
        "parameters": calibrator.num_parameters(),
        "identifiable": calibrator.num_identifiable(),
        "num_classes": calibrator.num_classes,
        "class_names": None if fitted.class_names is None else list(fitted.class_names),
        "background": background,
        "certificate": _finite(fitted.certificate.to_dict()),
        "cal": sorted(split.cal.ids),
        "val": sorted(split.val.ids),
        "test": sorted(cases.ids),
    }


def _finite(value: Any) -> Any:
    """Return plain data in which numbers that JSON does not have are None."""
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
