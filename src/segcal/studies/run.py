"""A benchmark from its protocol to its tables and studies: what `segcal benchmark` and `segcal demo` do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segcal.benchmark.protocol import Protocol
from segcal.benchmark.run import Step, check_folder, run_benchmark
from segcal.benchmark.sifting import sift
from segcal.benchmark.summaries import write_summary
from segcal.benchmark.tasks import Opener
from segcal.cases.base import CaseError
from segcal.report.tables import write_tables
from segcal.studies import choose_studies, run_studies
from segcal.studies.setting import Setting
from segcal.studies.study import Outcome


@dataclass(frozen=True)
class Finished:
    """A benchmark that ran to its end: its setting, the outcomes of its studies by name, why others were left out."""

    setting: Setting
    studies: dict[str, Outcome[Any]]
    left_out: dict[str, str]


def run(
    protocol: Protocol,
    folder: str | Path,
    embedded: Opener | None = None,
    embedded_once: Opener | None = None,
    progress: Callable[[Step], None] = lambda step: None,
    failed: Callable[[CaseError], None] | None = None,
    overwrite: bool = False,
) -> Finished:
    """Run a protocol with its studies; run again after an interruption, it goes on from there.

    Args:
        protocol: the protocol.
        folder: where results go.
        embedded: opens embedded tasks.
        embedded_once: the same for cases that are read once, so that nothing of them need be kept.
        progress: told how far it is.
        failed: takes cases that cannot be used, which are then left out; without it the first one ends the run.
        overwrite: go on where files that a benchmark did not write would be replaced.
    """
    place = Path(folder)
    protocol = replace(protocol, studies=choose_studies(protocol.studies))
    check_folder(place, overwrite)
    if failed is not None:
        protocol = sift(protocol, place, failed, progress)
    results = run_benchmark(protocol, place, embedded, progress, overwrite)
    summary = write_summary(results)
    write_tables(place)
    setting = Setting(protocol, results, summary, embedded, embedded_once, protocol.study_options)
    studies: dict[str, Outcome[Any]] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(protocol.studies):
        progress(Step(number, len(protocol.studies), f"study: {name.replace('_', ' ')}"))
        found, reasons = run_studies(setting, [name])
        studies |= found
        left_out |= reasons
    progress(Step(len(protocol.studies), len(protocol.studies), ""))
    return Finished(setting, studies, left_out)
