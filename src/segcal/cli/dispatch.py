"""Start of a command: here, as the jobs of a cluster, or with results for a URL; and ``segcal merge``."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from segcal.cases.remote import check_new, upload, url_of
from segcal.cli import arguments as shared
from segcal.cli.call import Call, check_paths, settings
from segcal.cli.commands import (
    COMMANDS,
    DONE,
    SOME_FAILED,
    Command,
    Role,
    argument,
    at_least_one,
    command_of,
    make_parser,
)
from segcal.cli.console import step_bar, under_way
from segcal.errors import InputError
from segcal.scale.merge import check_parts
from segcal.scale.part import FACTS, FOLDER, LOGS, remove_parts
from segcal.scale.slurm import run_array
from segcal.target import entries


def dispatch(args: argparse.Namespace) -> int:
    """Run a command, as its options say."""
    check_paths(args)
    if getattr(args, "engine", None) is not None:
        _check_engine(args)
        if args.engine == "slurm":
            return _on_slurm(args)
    url = url_of(getattr(args, "output", None) or "")
    return run(args) if url is None else _run_to_url(args, url)


def run(args: argparse.Namespace) -> int:
    """Run a command here."""
    with under_way(args.command, getattr(args, "quiet", False)):
        return command_of(args.command).run(Call(args))


def _check_engine(args: argparse.Namespace) -> None:
    """Refuse options of shards and engines that do not go together."""
    if (args.num_parts is None) != (args.part_id is None) and args.engine != "slurm":
        given, other = ("--part-id", "--num-parts") if args.num_parts is None else ("--num-parts", "--part-id")
        raise InputError(f"{given} is given without {other}, but a shard needs both. Give both, or neither.")
    if args.engine == "slurm" and (args.num_parts is None or args.part_id is not None or args.output is None):
        raise InputError("--engine is slurm, but it needs --num-parts and -o, and no --part-id. Give the former alone.")
    if any("=" not in text for text in args.slurm):
        raise InputError(f"--slurm is {args.slurm[-1]!r}, but KEY=VALUE is needed. Write partition=gpu or time=60.")
    if args.part_id is not None:
        _check_part(args)


def _check_part(args: argparse.Namespace) -> None:
    if args.engine == "dask":
        raise InputError(
            "--part-id is given with --engine dask, but one process does a shard. Leave one of the two out; --workers "
            "helps with a shard."
        )
    if args.output is None:
        raise InputError("--part-id is given without -o, but a shard is a folder. Name one with -o.")
    for one in command_of(args.command).all_arguments:
        if one.role is Role.FILE and getattr(args, one.dest) is not None:
            raise InputError(
                f"--{one.dest} is given with --part-id, but a shard has no such file. Leave it out: RESULT has."
            )


def _on_slurm(args: argparse.Namespace) -> int:
    """Send the shards, wait for them, put them together."""
    place = args.output.absolute().with_name(f"{args.output.name}.parts")
    foreign = [n for n in entries(place) if n != LOGS and not (place / n / FOLDER / FACTS).is_file()]
    if foreign:
        raise InputError(f"{place} holds {foreign[0]}, but the shards need a folder of their own. Move it away.")
    each = {**vars(args), "engine": "local", "json": True}
    folders = [place / f"part{number}" for number in range(args.num_parts)]
    parts = [argparse.Namespace(**{**each, "part_id": i, "output": folder}) for i, folder in enumerate(folders)]
    options = dict(text.split("=", 1) for text in args.slurm)
    from segcal.benchmark.run import Step  # of other commands none is imported

    with step_bar("parts", args.quiet) as show:
        codes = run_array(run, parts, place / LOGS, options, lambda done, of: show(Step(done, of, "parts")))
    assert {*codes} <= {DONE, SOME_FAILED}
    args.merged, args.num_parts = folders, None
    code = run(args)
    remove_parts(place, args.output)
    return code


def _run_to_url(args: argparse.Namespace, url: str) -> int:
    """Have the results of a command made here, and bring them to a URL when all are there."""
    check_new(url)
    with tempfile.TemporaryDirectory(prefix="segcal-") as place:
        args.output = Path(place) / "results"
        with naming(str(args.output), url.rstrip("/")):
            code = run(args)
        upload(args.output, url)
    return code


@contextmanager
def naming(place: str, url: str) -> Iterator[None]:
    """Let whatever is printed, or raised for a user, name a URL instead of a path."""
    with redirect_stdout(_Naming(sys.stdout, place, url)), redirect_stderr(_Naming(sys.stderr, place, url)):
        try:
            yield
        except InputError as error:
            if place in str(error):
                raise InputError(str(error).replace(place, url)) from None
            raise


class _Naming:
    """A stream in which every text has another name for a path; all else is the stream's."""

    def __init__(self, stream: TextIO, place: str, url: str) -> None:
        self._stream, self._place, self._url = stream, place, url

    def write(self, text: str) -> int:
        return self._stream.write(text.replace(self._place, self._url))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _divided(name: str) -> bool:
    return name in COMMANDS and shared.IN_PARTS.keys() <= command_of(name).groups.keys()


def _merge(call: Call) -> int:
    """Check the shards against the command, and end what they began."""
    args = call.args
    if any(args.output.resolve().is_relative_to(part.resolve()) for part in args.parts):
        raise InputError(f"{args.output} is one of the shards, but the result needs a folder of its own. Name another.")
    if not args.made_by or not _divided(args.made_by[0]):
        given = f"{args.made_by[0]!r} is" if args.made_by else "nothing is"
        raise InputError(
            f"{given} after --, but the command that made the shards is needed there, one of "
            f"{', '.join(filter(_divided, COMMANDS))}. Write it as it was given: segcal merge PART... -o RESULT -- "
            "COMMAND ..."
        )
    again = make_parser().parse_args([*args.made_by, f"--output={args.output}"])
    again.merged, again.num_parts, again.part_id, again.engine = args.parts, None, None, "local"
    again.workers, again.json, again.overwrite = args.workers, args.json, args.overwrite
    check_paths(again)
    check_parts(args.parts, settings(again))
    return run(again)


MERGE = Command(
    _merge,
    "segcal merge PART... -o RESULT [options] -- COMMAND ...",
    "Put together what a command with --num-parts and --part-id wrote: RESULT is what the command\n"
    "writes in one process, byte for byte. The command stands after --, as it was given for any of the shards:\n"
    "paths and options come from there, and of a shard nothing is taken but its results. Shards that are\n"
    "missing, doubled, unfinished, of other options or of cases that have changed since are refused.",
    "example:\n  segcal merge part0/ part1/ -o result/ -- evaluate predictions/ labels/ --kind logits",
    argument("parts", "the folders of all shards, in any order", Role.READ, nargs="+", metavar="PART"),
    shared.target("RESULT", "where the result goes"),
    argument("--workers", "processes for what remains to do", type=at_least_one, default=1, metavar="N"),
    shared.overwrite("as for the command that made the shards"),
    *shared.JSON,
    before_another=True,
)
