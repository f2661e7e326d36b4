"""A benchmark from its protocol to its tables and studies: what `segcal benchmark` and `segcal demo` do."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segcal.benchmark.broken_cases import exclude_broken
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.run import Step, check_folder, run_benchmark
from segcal.benchmark.studies import Setting, Study, run_studies
from segcal.benchmark.summaries import write_summary
from segcal.cases.base import CaseError
from segcal.report.paper_tables import write_tables


@dataclass(frozen=True)
class Whole:
    """What a benchmark found.

    Attributes:
        setting: the finished benchmark: protocol, results and summary.
        studies: by name.
        left_out: studies that it has nothing for, with the reason.
    """

    setting: Setting
    studies: dict[str, Study]
    left_out: dict[str, str]


def run_protocol(
    protocol: Protocol,
    folder: str | Path,
    progress: Callable[[Step], None] = lambda step: None,
    failed: Callable[[CaseError], None] | None = None,
    overwrite: bool = False,
) -> Whole:
    """Run a protocol with its studies; run again after an interruption, it goes on from there.

    Args:
        protocol: the protocol.
        folder: where results go.
        progress: told how far it is.
        failed: takes cases that cannot be used, which are then left out; without it the first one ends the run.
        overwrite: go on where files that a benchmark did not write would be replaced.
    """
    place = Path(folder)
    check_folder(place, overwrite)
    if failed is not None:
        protocol = exclude_broken(protocol, place, failed, progress)
    results = run_benchmark(protocol, place, progress, overwrite)
    summary = write_summary(results)
    write_tables(place, summary)
    setting = Setting(protocol, results, summary, options=protocol.study_options)
    studies: dict[str, Study] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(protocol.studies):
        progress(Step(number, len(protocol.studies), f"study: {name.replace('_', ' ')}"))
        found, reasons = run_studies(setting, [name])
        studies |= found
        left_out |= reasons
    progress(Step(len(protocol.studies), len(protocol.studies), ""))
    return Whole(setting, studies, left_out)
