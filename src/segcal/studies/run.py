"""A benchmark from its protocol to its tables and studies: what `segcal benchmark` and `segcal demo` do."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from segcal.benchmark.protocol import Protocol
from segcal.benchmark.protocol import digest as make_digest
from segcal.benchmark.results import Results
from segcal.benchmark.run import JobEngine, Progress, Step, check_folder, exclude_broken, run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.cases.base import CaseError
from segcal.documents import parse_json
from segcal.errors import ArtifactError
from segcal.kernels.loops import one_thread
from segcal.report.board import write_board
from segcal.report.paper_tables import write_tables
from segcal.studies import STUDIES, choose_studies
from segcal.studies.study import FOLDER, NothingToStudyError, Setting


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
    """Run what comes before tables and studies, all of it or what an engine has; see :func:`run`."""
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
    summary = write_summary(results)
    write_tables(summary, place, overwrite)
    write_board(summary, place, overwrite)
    setting = Setting(protocol, results, summary)
    return Finished(setting, *run_studies(setting, progress=progress))


def run_studies(
    setting: Setting, names: Sequence[str] | None = None, progress: Progress = lambda step: None
) -> tuple[dict[str, Struct], dict[str, str]]:
    """Run studies, those of the protocol if `names` is None, and write them into the folder of the results.

    A study that is there is read back. Returned are the data by name, and the reason for each study that this
    benchmark has nothing for.
    """
    found: dict[str, Struct] = {}
    left_out = {}
    folder, names = setting.results.folder, choose_studies(setting.protocol.studies if names is None else names)
    decides = _deciding(setting) if names else {}
    for number, name in enumerate(names):
        progress(Step(number, len(names), f"study: {name.replace('_', ' ')}"))
        study, digest = STUDIES[name], make_digest({"study": name} | decides)
        data = study.read(folder, name, digest)
        try:
            if data is None:
                with one_thread():  # as the benchmark itself: the same bytes on every machine
                    data = study.run(setting)
                study.write(folder, name, data, digest)
            found[name] = data
        except NothingToStudyError as reason:
            left_out[name] = str(reason)
    progress(Step(len(names), len(names), "studies finished"))
    return found, left_out


def _deciding(setting: Setting) -> dict[str, object]:
    """Return what decides studies: the units that are read, the bootstrap, and how much of them is done.

    Units are known by what is in them: one that was computed anew may have other numbers and the same digest.
    """
    paths = sorted(each.unit.path for each in setting.results.units)
    units = [(str(path), sha256((setting.results.folder / path).read_bytes()).hexdigest()) for path in paths]
    decides = {"options": setting.protocol.study_options, "bootstrap": setting.summary.bootstrap}
    return {"units": units, "segcal": version("segcal")} | to_builtins(decides)


def read_outcomes(folder: str | Path) -> dict[str, Struct]:
    """Return the data of the studies of a folder of results, by name; what cannot be read is refused."""
    found: dict[str, Struct] = {}
    for path in sorted((Path(folder) / FOLDER).glob("*.json")):
        try:
            document = parse_json(path.read_text("utf-8"))
            if document["study"] in STUDIES:
                found[document["study"]] = convert(document, STUDIES[document["study"]].data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} is not readable ({error}), but it must be as segcal wrote it. Delete it and run the "
                "benchmark again."
            ) from None
    return found
