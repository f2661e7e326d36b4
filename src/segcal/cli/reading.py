"""The options by which every command reads predictions and labels."""

import argparse
from pathlib import Path
from typing import Any

from segcal.cases import FORMATS, FileCases, open_cases
from segcal.cases.kinds import KINDS
from segcal.cli.parsing import at_least_one, device
from segcal.errors import InputError
from segcal.pooling import BEST, POOLINGS


def common_options() -> argparse.ArgumentParser:
    """Return the options that every command has."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("output and resources")
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    group.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes to use (default 1)")
    group.add_argument("--device", type=device, default="cpu", help="where to calibrate: cpu (default) or cuda")
    group.add_argument("--strict", action="store_true", help="stop at the first case that fails, with exit code 2")
    return parser


def reading_options() -> argparse.ArgumentParser:
    """Return the options that say what the files are."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("what the files are (declared, never guessed from values)")
    group.add_argument("--kind", choices=KINDS, help="what the numbers are; nnU-Net folders and our store know theirs")
    group.add_argument(
        "--pool",
        choices=[*POOLINGS, BEST],
        help="how several member folders are pooled; default: as the calibrator says, and for fit the better one",
    )
    group.add_argument("--format", choices=list(FORMATS), help="file format, where the folder could be two things")
    group.add_argument("--ignore", type=int, metavar="LABEL", help="the label that does not count")
    group.add_argument("--class-axis", type=int, metavar="N", help="axis of the classes; default 0, for NIfTI the last")
    group.add_argument("--key", metavar="NAME", help="array in npz, safetensors or zarr files that hold several")
    group.add_argument("--label-key", metavar="NAME", help="array in npz label files that hold several")
    group.add_argument(
        "--label-axes", choices=["xyz", "zyx"], help="axes of the scores, where they are arrays and labels are NIfTI"
    )
    group.add_argument("--images", type=Path, metavar="FOLDER", help="images with the same names")
    group.add_argument("--groups", metavar="REGEX|CSV", help="what stays in one split, such as '(patient\\d+)_.*'")
    group.add_argument("--class-names", metavar="A,B,...", help="one name a class")
    group.add_argument("--class-pattern", metavar="REGEX", help="names of one NIfTI file a class: groups id and cls")
    group.add_argument("--properties", type=Path, metavar="FOLDER", help="nnU-Net pkl files, where missing or damaged")
    return parser


def reading_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of :func:`segcal.open_cases`."""
    plain = (
        "kind", "format", "ignore", "class_axis", "key", "label_key", "label_axes", "images", "groups",
        "class_pattern", "properties",
    )  # fmt: skip
    names = None if args.class_names is None else args.class_names.split(",")
    return {name: getattr(args, name) for name in plain} | {"class_names": names, "pooling": args.pool or "single"}


def open_folders(
    args: argparse.Namespace, folders: list[Path], labels: Path | None = None, pool: str | None = None
) -> FileCases:
    """Open cases as the options say; unless strict, incomplete ones fail one by one when they are read.

    Args:
        args: the options.
        folders: one folder per member.
        labels: the folder of labels.
        pool: how several folders are pooled where the options do not say.
    """
    options = reading_arguments(args)
    if args.pool is None and pool is not None and len(folders) > 1:
        options["pooling"] = pool
    cases = open_cases(folders, labels, strict=args.strict, **options)
    if labels is not None and cases.label_folder is not None and not set(cases.ids) & set(cases.label_folder.files):
        spare = sorted(cases.label_folder.files)
        raise InputError(
            f"{folders[0]} and {labels} have no case in common (such as {cases.ids[0]} and {spare[0]}), but files of "
            "one case must have one stem. Rename the files, or name other folders."
        )
    return cases


def split_paths(paths: list[Path]) -> tuple[list[Path], Path]:
    """Return the prediction folders and the label folder, which comes last."""
    if len(paths) < 2:
        raise InputError(
            f"PREDICTIONS LABELS is {paths[0]} alone, but both are needed. Name the folder of labels last."
        )
    return paths[:-1], paths[-1]
