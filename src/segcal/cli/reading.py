"""The options by which every command reads predictions and labels."""

import argparse
from pathlib import Path
from typing import Any

from segcal.cases import FORMATS, Case, CaseError, FileCases, open_cases
from segcal.cases.kinds import KINDS
from segcal.cases.parallel import map_cases
from segcal.cli.console import Bar
from segcal.errors import InputError
from segcal.pooling import POOLINGS


def common_options() -> argparse.ArgumentParser:
    """Return the options that every command has."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("output and resources")
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    group.add_argument("--device", default="cpu", help="where to compute: cpu (default) or cuda")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="work on N cases at a time, in processes")
    group.add_argument("--strict", action="store_true", help="stop at the first case that fails, with exit code 2")
    return parser


def reading_options() -> argparse.ArgumentParser:
    """Return the options that say what the files are."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("what the files are (declared, never guessed from values)")
    group.add_argument("--kind", choices=KINDS, help="what the numbers are; nnU-Net folders and our store know theirs")
    group.add_argument("--pool", choices=list(POOLINGS), default="single", help="how member folders are pooled")
    group.add_argument("--format", choices=list(FORMATS), help="file format, where the folder could be two things")
    group.add_argument("--ignore", type=int, metavar="LABEL", help="the label that does not count")
    group.add_argument("--class-axis", type=int, metavar="N", help="axis of the classes; default 0, for NIfTI the last")
    group.add_argument("--key", help="array name in npz, safetensors or zarr files that hold several")
    group.add_argument("--label-key", help="array name in npz label files that hold several")
    group.add_argument("--label-axes", choices=["xyz", "zyx"], help="how NIfTI label axes lie in scores that are not")
    group.add_argument("--images", type=Path, metavar="FOLDER", help="images with the same names")
    group.add_argument("--groups", metavar="REGEX|CSV", help="what stays in one split, e.g. '(patient\\d+)_.*'")
    group.add_argument("--class-names", metavar="A,B,...", help="one name a class")
    group.add_argument("--properties", type=Path, metavar="FOLDER", help="nnU-Net pkl files, where missing or damaged")
    return parser


def reading_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of :func:`segcal.open_cases`."""
    names = None if args.class_names is None else args.class_names.split(",")
    plain = ("kind", "pool", "format", "ignore", "class_axis", "key", "label_key", "label_axes", "images", "groups")
    return {name: getattr(args, name) for name in plain} | {"class_names": names, "properties": args.properties}


def open_labelled(args: argparse.Namespace) -> FileCases:
    """Open PREDICTIONS... LABELS; unless strict, incomplete cases fail one by one when they are read."""
    folders, labels = split_paths(args.paths)
    return open_cases(folders, labels, strict=args.strict, **reading_arguments(args))


def readable(cases: FileCases, args: argparse.Namespace, failures: list[CaseError]) -> FileCases:
    """Return the cases that can be read, with labels; the others are listed. With --strict the first one raises."""
    failed = None if args.strict else failures.append
    with Bar("reading", len(cases)) as bar:
        ids = []
        for case_id, _ in map_cases(cases, _look, args.workers, failed):
            ids.append(case_id)
            bar.step()
    if not ids:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. First: {failures[0]}")
    return cases.subset(ids)


def _look(case: Case) -> None:
    """Reading is the test."""


def split_paths(paths: list[Path]) -> tuple[list[Path], Path]:
    """Return the prediction folders and the label folder, which comes last."""
    if len(paths) < 2:
        raise InputError(
            f"PREDICTIONS LABELS is {paths[0]} alone, but both are needed. Name the folder of labels last."
        )
    return paths[:-1], paths[-1]
