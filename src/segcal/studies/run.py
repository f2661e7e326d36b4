"""A benchmark from its protocol to its tables and studies: what `segcal benchmark` and `segcal demo` do."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import Results
from segcal.benchmark.run import JobEngine, Progress, Step, check_folder, exclude_broken, run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.cases.base import CaseError
from segcal.report.paper_tables import write_tables
from segcal.studies import choose_studies, run_studies
from segcal.studies.study import Setting


class Finished(NamedTuple):
    """A benchmark that ran to its end: its setting, the data of its studies by name, why others were left out."""

    setting: Setting
    studies: dict[str, Struct]
    left_out: dict[str, str]


def run_units(
    protocol: Protocol,
    place: Path,
    progress: Progress = lambda step: None,
    failed: Callable[[CaseError], None] | None = None,
    overwrite: bool = False,
    engine: JobEngine | None = None,
) -> tuple[Protocol, Results]:
    """Run what comes before tables and studies, all of it or the part that an engine has; see :func:`run`."""
    protocol = replace(protocol, studies=choose_studies(protocol.studies))
    check_folder(place, overwrite)
    if failed is not None:
        protocol = exclude_broken(protocol, place, failed, progress)
    return protocol, run_benchmark(protocol, place, progress, overwrite, engine)


def run(
    protocol: Protocol,
    folder: str | Path,
    progress: Progress = lambda step: None,
    failed: Callable[[CaseError], None] | None = None,
    overwrite: bool = False,
    engine: JobEngine | None = None,
) -> Finished:
    """Run a protocol with its studies; run again after an interruption, it goes on from there.

    `failed` takes cases that cannot be used, which are then left out; without it the first one ends the run. With
    `overwrite` files that a benchmark did not write may be replaced. An `engine` runs the jobs elsewhere.
    """
    place = Path(folder)
    protocol, results = run_units(protocol, place, progress, failed, overwrite, engine)
    names = protocol.studies or ()
    summary = write_summary(results)
    write_tables(summary, place, overwrite)
    finished = Finished(Setting(protocol, results, summary), {}, {})
    for number, name in enumerate(names):
        progress(Step(number, len(names), f"study: {name.replace('_', ' ')}"))
        found, reasons = run_studies(finished.setting, [name])
        finished.studies.update(found)
        finished.left_out.update(reasons)
    progress(Step(len(names), len(names), ""))
    return finished
