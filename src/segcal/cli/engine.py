"""The options by which a command works on a part of its cases, or has others work on them; see docs/scale.md."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from segcal.cases import Cases
from segcal.cases.parallel import Workers
from segcal.cli.console import Output
from segcal.cli.parsing import at_least_one
from segcal.cli.recorded import settings
from segcal.cli.wording import plural
from segcal.errors import InputError, SegcalError
from segcal.scale.dask_engine import DaskEngine
from segcal.scale.merge import Merged
from segcal.scale.part import Identified, Part
from segcal.scale.served import kept_beside

Some = TypeVar("Some", bound=Cases)


def engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument_group("many cases: parts and engines (docs/scale.md)").add_argument
    option("--num-parts", type=at_least_one, metavar="N", help="divide the cases into so many parts")
    option("--part-id", type=int, metavar="I", help="do this part alone, from 0, into OUT; see segcal merge")
    engines = "who works on cases: this machine (default), Dask workers, or a SLURM array of --num-parts jobs"
    option("--engine", choices=["local", "dask", "slurm"], default="local", help=engines)
    option("--scheduler", metavar="ADDRESS", help="of a Dask scheduler; default: --workers processes here")
    option("--slurm", action="append", default=[], metavar="KEY=VALUE", help="for sbatch, such as partition=gpu")
    parser.set_defaults(merged=None)


class Work(NamedTuple):
    """What works on cases; and the part, if the command is to end with one."""

    workers: Workers
    part: Part | None = None

    def own(self, cases: Some) -> Some:
        """Return the cases to work on."""
        return cases if self.part is None else self.part.take(cases)

    def finish(self, output: Output) -> int:
        """Say what was done, and return the exit code."""
        assert self.part is not None
        return part_written(output, self.part.facts.part, self.part.facts.of, self.part.folder, len(self.part.ids))


def part_written(output: Output, number: int, of: int, folder: Path, cases: int | None = None) -> int:
    """Say that a part is done, and return the exit code."""
    count = "" if cases is None else f", {plural(cases, 'case')}"
    output.say(f"part {number} of {of}{count}, written to {folder}: next comes segcal merge")
    output.document({"part": number, "of": of, "cases": cases, "output": str(folder)})
    return output.finish()


@contextmanager
def engine_of(args: argparse.Namespace, *collections: Identified) -> Iterator[Work]:
    """Give what works on these cases, as the options say."""
    with ExitStack() as held:
        if args.merged is not None:
            with _of_parts(args.merged):
                yield Work(Merged(args.merged, collections, args.output, args.workers))
        elif args.part_id is not None:
            own = args.command != "benchmark"  # whose folder has been looked at
            part = Part(args.output, collections, args.part_id, args.num_parts, settings(args), args.workers, own)
            yield Work(held.enter_context(part), part)
        elif args.engine == "dask":
            dask = held.enter_context(DaskEngine(args.scheduler, args.workers))
            yield Work(
                dask
                if args.output is None
                else held.enter_context(kept_beside(args.output, collections, settings(args), dask))
            )
        else:
            yield Work(args.workers)


@contextmanager
def _of_parts(parts: list[Path]) -> Iterator[None]:
    """Say in one sentence what results of parts that do not fit together led to: nobody vouches for them."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, RuntimeError, AssertionError, ValueError) as error:
        if isinstance(error, SegcalError):
            raise
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        raise InputError(
            f"{parts[0]} and the other parts hold results that cannot be put together ({reason}), but they must be as "
            "segcal wrote them. Run the parts again."
        ) from error
