"""The arguments that commands share, and the groups of them that have a heading in the help."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from segcal.cases import ReadOptions
from segcal.cli.commands import Argument, Names, Role, argument, at_least_one, device, flag, numbers, regions, texts
from segcal.cli.console import option

POOLING = "pooling of several member folders; default: that of the calibrator, for fit the better one"
# How a text becomes what is declared.
KINDS: dict[type, Any] = {str: str, int: int, list: texts, tuple: numbers, dict: regions}


def calibrator(names: str = "calibrator", about: str = "a folder written by segcal fit") -> Argument:
    """Return the argument for a calibrator that is read."""
    return argument(names, about, Role.CALIBRATOR, metavar="CAL")


def target(metavar: str, about: str, role: Names = Role.FOLDER, required: bool = True) -> Argument:
    """Return the option for what is written."""
    return argument("-o --output", about, role, metavar=metavar, required=required)


def overwrite(about: str) -> Argument:
    """Return the option to write although something is there."""
    return flag("--overwrite", about, decides=False)


def _reading() -> Iterator[Argument]:
    """Yield the options that say what the files are: the fields of :class:`segcal.cases.ReadOptions`."""
    for field in fields(ReadOptions):
        about, role = field.metadata, None
        declared = {name: about[name] for name in ("choices", "metavar") if name in about}
        if about.get("path"):
            role = Role.BESIDE
        elif about["plain"] is bool:
            declared |= {"action": "store_const", "const": True}
        else:
            declared["type"] = KINDS[about["plain"]]
            role = Role.TABLE if field.name in ("groups", "sites") else None
        yield argument(option(field.name), POOLING if field.name == "pooling" else about["help"], role, **declared)


PREDICTIONS = argument("paths", "one folder, or one per member", Role.CASES, nargs="+", metavar="PREDICTIONS")
LABELLED = argument(
    "paths", "folders; the last one holds the labels", Role.CASES, nargs="+", metavar="PREDICTIONS LABELS"
)
RATERS = argument("--labels", "label folders, one per rater; other folders are then predictions", Role.CASES, nargs="+")
CALIBRATED = (calibrator(), PREDICTIONS)
RESULTS = target("OUT", "a folder for the results, or for a shard", required=False)
ALL_CLASSES = flag("--all-classes", "class 0 is a structure, not background")
ANY_FILES = overwrite("replace such files even if segcal did not write them")
ANY_POOLING = flag("--ignore-pooling", "accept a calibrator that was fitted for another pooling")
OWN_CLASS = argument(
    "--calibrator-class",
    "class of your own calibrator, imported from the working folder or installed packages",
    metavar="MODULE:CLASS",
)
POOLED = (ANY_POOLING, OWN_CLASS)
DICOM = (
    argument("--segments", "codes of the structures for DICOM, in a file as dcmqi takes it", Role.READ, metavar="JSON"),
    argument("--description", "of the DICOM series that are written", metavar="TEXT"),
)
WORKERS = argument("--workers", "processes to use (default 1)", None, False, type=at_least_one, default=1, metavar="N")
STRICT = flag("--strict", "stop at the first case that fails, with exit code 2")
JSON = (
    flag("--json", "print one JSON document on stdout and nothing else there", decides=False),
    flag("--quiet", "no progress output", decides=False),
)
DEVICE = argument("--device", "where to calibrate: cpu (default) or cuda", type=device, default="cpu")
# Of commands that read predictions.
ON_CASES = {
    "input files (declared, never guessed from values)": [*_reading()],
    "output and resources": [*JSON, WORKERS, DEVICE, STRICT],
}
# Of commands that may be done in parts, or by others.
ENGINES = "this machine (default), Dask workers, or a SLURM array of --num-parts jobs"
IN_PARTS = {
    "many cases: shards and engines (docs/scale.md)": [
        one._replace(decides=False)
        for one in (
            argument("--num-parts", "number of shards", type=at_least_one, metavar="N"),
            argument("--part-id", "number of this shard, from 0; see segcal merge", type=int, metavar="I"),
            argument("--engine", ENGINES, choices=["local", "dask", "slurm"], default="local"),
            argument("--scheduler", "of a Dask scheduler; default: --workers processes here", metavar="ADDRESS"),
            argument("--slurm", "for sbatch, such as partition=gpu", action="append", default=[], metavar="KEY=VALUE"),
        )
    ]
}
