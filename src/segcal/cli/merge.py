"""``segcal merge``: the parts of a command, put together."""

from segcal.cli import arguments as shared
from segcal.cli.call import Call, settings
from segcal.cli.commands import COMMANDS, Command, Role, argument, at_least_one, command_of, make_parser
from segcal.cli.paths import check_paths
from segcal.errors import InputError
from segcal.scale.merge import check_parts


def _divided(name: str) -> bool:
    return name in COMMANDS and shared.IN_PARTS.keys() <= command_of(name).groups.keys()


def _merge(call: Call) -> int:
    """Check the parts against the command, and end what they began."""
    args = call.args
    if any(args.output.resolve().is_relative_to(part.resolve()) for part in args.parts):
        raise InputError(f"{args.output} is one of the parts, but the result needs a folder of its own. Name another.")
    if not args.made_by or not _divided(args.made_by[0]):
        given = f"{args.made_by[0]!r} is" if args.made_by else "nothing is"
        raise InputError(
            f"{given} after --, but the command that made the parts is needed there, one of "
            f"{', '.join(filter(_divided, COMMANDS))}. Write it as it was given: segcal merge PART... -o RESULT -- "
            "COMMAND ..."
        )
    again = make_parser().parse_args([*args.made_by, f"--output={args.output}"])
    again.merged, again.num_parts, again.part_id, again.engine = args.parts, None, None, "local"
    again.workers, again.json, again.overwrite = args.workers, args.json, args.overwrite
    check_paths(again)
    check_parts(args.parts, settings(again))
    return command_of(again.command).run(Call(again))


MERGE = Command(
    _merge,
    "segcal merge PART... -o RESULT [options] -- COMMAND ...",
    "Put together what a command with --num-parts and --part-id wrote: RESULT is what the command\n"
    "writes in one process, byte for byte. The command stands after --, as it was given for any of the parts:\n"
    "paths and options come from there, and of a part nothing is taken but its results. Parts that are\n"
    "missing, doubled, unfinished, of other options or of cases that have changed since are refused.",
    "example:\n  segcal merge part0/ part1/ -o result/ -- evaluate predictions/ labels/ --kind logits",
    argument("parts", "the folders of all parts, in any order", Role.READ, nargs="+", metavar="PART"),
    shared.target("RESULT", "where the result goes"),
    argument("--workers", "processes for what remains to do", type=at_least_one, default=1, metavar="N"),
    shared.overwrite("as for the command that made the parts"),
    *shared.JSON,
    before_another=True,
)
