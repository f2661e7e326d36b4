"""Jobs: divide the cases of a task, fit its pipelines with one pooling, and test them, one case in memory at a time.

A unit's digest covers what decides its numbers and nothing else: not the other pipelines, not the location of the
files, not the bootstrap. So a protocol can grow by a pipeline, a repeat or a task, and only what is new is computed.

Units that share their cases are one job: a task in a repeat with a pooling. It reads its voxels once, fits all its
pipelines, and tests all of them on a case while it is in memory.

A job computes in one thread, whatever the machine offers. Sums of many numbers in another order differ in their last
digit. In one thread, results are the same bytes with one process or with many.

Kept of a test case are its numbers, and small tables that add up. Besides the protocol's metrics a row has the
calibration error with other numbers of bins (Fig. 6), and where flips lie: voxels and flips in each band of distance
from the boundary (Fig. 4).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import to_builtins

from segcal.benchmark.protocol import AS_PUBLISHED, Pipeline, Protocol, digest
from segcal.benchmark.results import SCHEMA, CaseResult, FlipBands, Totals, Unit, UnitHeader, write_unit
from segcal.benchmark.tasks import Task
from segcal.calibrators import Calibrator
from segcal.cases import Case, Cases, Split
from segcal.errors import InputError
from segcal.evaluation.case_counter import Counter, Stage
from segcal.fitting import Fitted
from segcal.fitting.artifact import save
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data
from segcal.kernels.loops import one_thread
from segcal.metrics import METRICS, Metric, find_metrics, rater_metrics
from segcal.metrics.base import CurveReader
from segcal.metrics.reliability import average_calibration_error, expected_calibration_error
from segcal.raters import Raters
from segcal.report.document import curves_of, thinned
from segcal.statistics import BandCache, CaseTables
from segcal.statistics.reliability import Curve, CurveSpread

FIELD = "ece_field"
OTHER_BINS = (20, 30, 40)

Report = Callable[[str], None]


class Job(NamedTuple):
    """Units of one task, repeat and pooling, each with its digest."""

    task: Task
    repeat: int
    pooling: str
    units: dict[Unit, str]

    @property
    def name(self) -> str:
        """Return its name, unique in a protocol."""
        return f"{self.task.name}, repeat {self.repeat + 1}, {self.pooling}"


def plan(
    protocol: Protocol, usable: Mapping[str, Sequence[Pipeline]], fingerprints: Mapping[tuple[str, str], str]
) -> list[Job]:
    """Return the jobs of a protocol, in the order of its tasks.

    `usable` are the pipelines that each task can have, `fingerprints` are of its cases with each pooling.
    """
    jobs = []
    for task in protocol.tasks:
        pipelines = () if task.test_only else usable[task.name]
        for repeat in range(protocol.repeats):
            for pooling in dict.fromkeys(pipeline.pooling for pipeline in pipelines):
                units = [
                    Unit(task=task.name, repeat=repeat, test_on=target, pipeline=pipeline)
                    for pipeline in pipelines
                    if pipeline.pooling == pooling
                    for target in ("", *task.test_on)
                ]
                digests = {unit: unit_digest(unit, protocol, fingerprints) for unit in units}
                jobs.append(Job(task, repeat, pooling, digests))
    return jobs


def unit_digest(unit: Unit, protocol: Protocol, fingerprints: Mapping[tuple[str, str], str]) -> str:
    """Return the digest of what decides a unit's numbers; `fingerprints` are of the cases by task and pooling."""
    names = [unit.task, *([unit.test_on] if unit.test_on else [])]
    usual = AS_PUBLISHED.to_dict()
    plain = {
        "schema": SCHEMA,
        "segcal": version("segcal"),
        "unit": to_builtins(unit),
        "tasks": [_deciding(protocol, protocol.task(name)) for name in names],
        "cases": [fingerprints[name, unit.pipeline.pooling] for name in names],
        "seed": protocol.seed,
        # What is not as usual, so that an option that is added later leaves finished units alone.
        "fit": {key: value for key, value in protocol.fit.to_dict().items() if value != usual[key]},
        "metrics": list(protocol.metrics),
    }
    return digest(plain)


def _deciding(protocol: Protocol, task: Task) -> dict[str, object]:
    """Return what of a task decides numbers: not where its files are, and not what else is tested."""
    plain, split = task.deciding(), to_builtins(protocol.division(task))
    plain["split"] = {key: value for key, value in split.items() if key != "fitted" or value is not None}
    return plain


def run_job(job: Job, protocol: Protocol, folder: Path, report: Report = lambda message: None) -> int:
    """Run the units of a job, write their files to a folder of results, and return how many there are."""
    name = job.name
    with one_thread():
        opened = protocol.open(job.task, job.pooling)
        split = protocol.divide(job.task, opened.cases, job.repeat)
        fits = _fit(job, protocol, folder, split, lambda message: report(f"{name}: {message}"))
        for target in dict.fromkeys(unit.test_on for unit in job.units):
            where, cases, background = name, split.test, opened.background
            if target:
                task = protocol.task(target)
                other = protocol.open(task, job.pooling)
                own = None if task.test_only else protocol.divide(task, other.cases, job.repeat)
                cases, background = cases_elsewhere(split, opened.cases, other.cases, own), other.background
                where = f"{name}, tested on {target}"
            units = {unit.pipeline.title: unit for unit in job.units if unit.test_on == target}
            calibrators = {title: fits[title].calibrator.to(protocol.device) for title in units}
            counter = CaseCounter(benchmark_metrics(protocol.metrics, background, cases.raters), calibrators)
            for number, case_id in enumerate(sorted(cases.ids)):
                report(f"{where}: testing case {number + 1} of {len(cases)}")
                counter.add(cases.read(case_id))
            for title, unit in units.items():
                header = _header(unit, job.units[unit], fits[title], split, cases, background)
                write_unit(folder, header, counter.rows[title], counter.totals[title])
    return len(job.units)


def _fit(job: Job, protocol: Protocol, folder: Path, split: Split, report: Report) -> dict[str, Fitted]:
    contexts = {name for unit in job.units for name in unit.pipeline.make(2).wants}
    data = read_data(split.cal, split.val if len(split.val) else None, protocol.fit, report, contexts=contexts)
    fits = {}
    for unit in {unit.pipeline: unit for unit in job.units}.values():
        report(f"fitting {unit.pipeline.calibrator}")
        fitted = fit_to(unit.pipeline.make(split.cal.num_classes), data, protocol.fit, protocol.device)
        fitted.calibrator.cpu()
        fits[unit.pipeline.title] = fitted
        if fitted.calibrator.num_parameters():
            save(fitted, folder / unit.calibrator_path)
    return fits


def cases_elsewhere(source: Split, every: Cases, target: Cases, own: Split | None) -> Cases:
    """Return the cases of another task, `target`, that a calibrator may be tested on.

    Another task may have the cases of the task that was fitted on (`every`, split as `source`), or some of them (a
    corrupted copy). Then these are the source's test cases. Otherwise they are the other task's own test cases, or all
    of its cases if nothing is fitted on it (`own` is None). Cases of the fit are left out.
    """
    seen = {*source.cal.ids, *source.val.ids}
    ids = target.ids if own is None else own.test.ids
    unseen = [case_id for case_id in ids if case_id not in seen]
    if set(every.ids) <= set(target.ids) or set(target.ids) <= set(every.ids):
        unseen = [case_id for case_id in target.ids if case_id in source.test.ids]
    if not unseen:
        raise InputError(
            f"test_on has {len(ids)} cases, but all of them had part in the fit, and at least one is needed that had "
            "not. Ask for fewer calibration and validation cases."
        )
    return target.subset(unseen)


def _header(unit: Unit, found: str, fitted: Fitted, split: Split, cases: Cases, background: bool) -> UnitHeader:
    calibrator = fitted.calibrator
    return UnitHeader(
        schema=SCHEMA,
        digest=found,
        segcal=version("segcal"),
        unit=unit,
        title=unit.pipeline.title,
        translation_invariant=calibrator.translation_invariant,
        preserves=calibrator.preserves,
        parameters=calibrator.num_parameters(),
        identifiable=calibrator.num_identifiable(),
        num_classes=calibrator.num_classes,
        class_names=fitted.class_names,
        background=background,
        certificate=_finite(fitted.certificate.to_dict()),
        cal=tuple(sorted(split.cal.ids)),
        val=tuple(sorted(split.val.ids)),
        test=tuple(sorted(cases.ids)),
        raters=cases.raters,
    )


def _finite(value: Any) -> Any:
    """Return plain data in which numbers that JSON does not have are None."""
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def benchmark_metrics(names: Sequence[str], background: bool, raters: Raters | None = None) -> dict[str, Metric]:
    """Return the metrics of a task, ECE as other libraries have it, and what the binning study reads.

    Without background Dice counts class 0.
    """
    chosen = dict(find_metrics(tuple(names)))
    if "dice" in chosen and not background:
        chosen["dice"] = METRICS["dice"].with_options(include_background=True)
    if {"ece", "ace"} <= chosen.keys():  # the latter has counted the bins
        part = CurveReader("all", 15)
        chosen[FIELD] = Metric("calibration error", part, expected_calibration_error, pooled=True, bins=15)
    for bins in OTHER_BINS:
        title, part = f"calibration error, {bins} bins", CurveReader("all", bins)
        chosen[f"ece_{bins}"] = Metric(title, part, expected_calibration_error, bins=bins)
    for bins in OTHER_BINS:
        title, part = f"average calibration error, {bins} bins", CurveReader("all", bins)
        chosen[f"ace_{bins}"] = Metric(title, part, average_calibration_error, pooled=True, bins=bins)
    return rater_metrics(chosen, raters)


class CaseCounter:
    """Counts test cases with several calibrators at a time.

    Sums are taken in the order in which cases come. Whoever counts goes through them in the order of their ids, so that
    the result is the same to the last bit.

    Attributes:
        rows: by the name of a calibrator, one row per case.
        totals: by the name of a calibrator, the sums of the tables of all cases.
    """

    def __init__(self, metrics: Mapping[str, Metric], calibrators: Mapping[str, Calibrator]) -> None:
        self._metrics = metrics
        self._calibrators = calibrators
        self._bands = BandCache(max_bytes=0)  # of one case, for all its pipelines
        # Bands and class-wise tables are always kept: figures read them, whatever metrics were asked for.
        needed = {name: METRICS[name] for name in ("ba_ece", "cece", "ece", "ace")}
        self._counter = Counter({**needed, **metrics}, self._bands)
        self.rows: dict[str, list[CaseResult]] = {name: [] for name in calibrators}
        self.totals: dict[str, Totals] = {}
        self._curves: dict[str, dict[str | None, dict[str, Curve]]] = {name: {} for name in calibrators}  # by group

    def add(self, case: Case) -> None:
        """Count a case with every calibrator."""
        assert case.labels is not None
        labels = case.labels.numpy().reshape(-1)
        before, after = self._counter.count_each(case, self._calibrators, predict=True)
        bands = self._bands.bands(case.id, case.labels.numpy())
        for name, counted in after.items():
            assert before.prediction is not None
            assert counted.prediction is not None
            tables = replace(counted.tables, free_energy=before.tables.free_energy)
            old, new = before.prediction.reshape(-1), counted.prediction.reshape(-1)
            flips = FlipBands.of(bands.code, len(bands.edges) + 1, labels, old, new)
            self.rows[name].append(self._row(case, tables, flips))
            curves, before_it = curves_of(tables), self._curves[name].get(case.group, {})
            joined = {region: curve + before_it[region] if before_it else curve for region, curve in curves.items()}
            if case.group is not None:
                self._curves[name][case.group] = joined
            spread = {region: CurveSpread.of(curve, before_it.get(region)) for region, curve in joined.items()}
            own = Totals(thinned(tables), flips, spread)
            self.totals[name] = self.totals[name] + own if name in self.totals else own

    def _row(self, case: Case, tables: CaseTables, flips: FlipBands) -> CaseResult:
        stage = Stage(self._metrics)
        numbers = stage.add(case.id, tables)
        pooled = {name: own[case.id] for name, own in stage.parts.items() if own and not name.startswith("ace_")}
        return CaseResult(
            case=case.id,
            group=case.group,
            voxels=tables.voxels,
            ignored=tables.confusion.ignored,
            metrics=numbers,
            parts={name: part.to_plain() for name, part in sorted(pooled.items())},
            flip_bands=flips.to_plain(),
        )
