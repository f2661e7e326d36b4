"""How a command is started: here, or as the jobs of a cluster, whose parts are put together."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from segcal.cases.parallel import Engine
from segcal.cases.remote import url_of
from segcal.cli.codes import DONE, SOME_FAILED
from segcal.cli.engine import engine_of
from segcal.cli.paths import check_paths
from segcal.cli.progress import step_bar
from segcal.cli.recorded import check_parts_options
from segcal.cli.to_url import run_to_url
from segcal.errors import InputError
from segcal.scale.part import FACTS, FOLDER
from segcal.scale.served import LOGS, remove_parts
from segcal.scale.slurm import run_array
from segcal.target import entries

if TYPE_CHECKING:  # of other commands none is imported
    from segcal.benchmark.run import JobEngine, JobRunner


def dispatch(args: argparse.Namespace) -> int:
    """Run a command, as its options say."""
    check_paths(args)
    if getattr(args, "engine", None) is not None:
        check_parts_options(args)
        if args.engine == "slurm":
            return _on_slurm(args)
    url = url_of(getattr(args, "output", None) or "")
    return _run(args) if url is None else run_to_url(args, url)


def _run(args: argparse.Namespace) -> int:
    code: int = args.run(args)
    return code


def _on_slurm(args: argparse.Namespace) -> int:
    """Send the parts, wait for them, put them together."""
    place = args.output.absolute().with_name(f"{args.output.name}.parts")
    foreign = [n for n in entries(place) if n != LOGS and not (place / n / FOLDER / FACTS).is_file()]
    if foreign:
        raise InputError(f"{place} holds {foreign[0]}, but the parts need a folder of their own. Move it away.")
    each = {**vars(args), "engine": "local", "json": True}
    folders = [place / f"part{number}" for number in range(args.num_parts)]
    parts = [argparse.Namespace(**{**each, "part_id": i, "output": folder}) for i, folder in enumerate(folders)]
    options = dict(text.split("=", 1) for text in args.slurm)
    from segcal.benchmark.run import Step

    with step_bar("parts", args.quiet) as show:
        codes = run_array(_run, parts, place / LOGS, options, lambda done, of: show(Step(done, of, "parts")))
    assert {*codes} <= {DONE, SOME_FAILED}
    args.merged, args.num_parts = folders, None
    code = _run(args)
    remove_parts(place, args.output)
    return code


def job_engine(args: argparse.Namespace) -> "JobEngine | None":
    """Return what runs the jobs of a benchmark; None where this machine does."""

    @contextmanager
    def gives(jobs: "JobRunner") -> Iterator[Engine]:
        with engine_of(args, jobs) as work:
            assert isinstance(work.workers, Engine)
            yield work.workers

    return gives if args.merged or args.part_id is not None or args.engine != "local" else None
