"""Crop size and test scales on networks of your own.

``python -m paper.inference_factors PROTOCOL.toml NETWORKS.py --root DATA -o RESULTS``

The studies `crop_size` and `test_scales` of ``segcal benchmark`` run the networks again, and folders of predictions
have none. NETWORKS.py is a file of yours with one function::

    def load(task: str, device: str) -> list[Callable[[Tensor], Tensor]]

It returns the members of the ensemble of a task of the protocol. Each maps an image ``(channels, *space)``, its values
as stored, to logits ``(classes, *space)``; it can be a module, or what ``torch.jit.load`` or ``torch.export.load``
returned. Members are pooled as mean logits. Tasks need `images` in the protocol. The file is run as a program, so take
it from nobody you would not take a program from.

RESULTS gets ``studies/crop_size.json`` and ``studies/test_scales.json`` with their tables, as ``segcal benchmark``
writes them; it may be a folder of results that is there.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from segcal.benchmark.protocol import Protocol, load_protocol
from segcal.cases.base import Cases
from segcal.errors import InputError, SegcalError
from segcal.pooling import pool
from segcal.studies.factor import CROP_SIZE, TEST_SCALES, Model, Ways, crop_ways, run_models, scale_ways

POOLING = "mean_logits"
STUDIES = {"crop_size": (CROP_SIZE, crop_ways), "test_scales": (TEST_SCALES, scale_ways)}
Loader = Callable[[str, str], list[Model]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", type=Path, metavar="PROTOCOL.toml")
    parser.add_argument("networks", type=Path, metavar="NETWORKS.py")
    parser.add_argument("--root", type=Path, help="where relative paths of the protocol begin")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULTS")
    parser.add_argument("--tasks", nargs="+", help="some tasks of the protocol; default: all")
    parser.add_argument("--cases", type=int, default=30, help="so many cases of a task, evenly spread; default: 30")
    parser.add_argument("--in-plane", action="store_true", help="networks see one slice of a volume at a time")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    try:
        run(args)
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def run(args: argparse.Namespace) -> None:
    """Run both studies and write them."""
    protocol = load_protocol(args.protocol, args.root)
    load = load_function(args.networks)
    names = [task.name for task in protocol.tasks]
    unknown = [name for name in args.tasks or () if name not in names]
    if unknown:
        raise InputError(
            f"tasks has {unknown[0]!r}, but a task of the protocol is needed. Choose from: {', '.join(names)}."
        )
    for name, (study, ways) in STUDIES.items():
        runnables = runnable_tasks(protocol, load, args.tasks or names, args.cases, args.device)
        found = run_models(partial(in_plane, ways) if args.in_plane else ways, runnables)
        for path in study.write(args.output, name, found):
            print(path)


def load_function(path: Path) -> Loader:
    """Return the function `load` of a user's file."""
    if not path.is_file():
        raise InputError(f"{path} is not a file, but one with a function `load` is needed. Check the path.")
    found: Loader | None = runpy.run_path(str(path)).get("load")
    if found is None:
        raise InputError(f"{path} has no function `load`, but one that returns networks is needed. Define it.")
    return found


def in_plane(ways: Ways, cases: Cases) -> dict[str, Callable[[Model], Model]]:
    """Return ways to run a model that sees one slice of a volume at a time, and so do crops and scales."""
    return {name: partial(slice_by_slice, way) for name, way in ways(cases).items()}


def slice_by_slice(way: Callable[[Model], Model], model: Model) -> Model:
    """Return a model of volumes ``(channels, slices, height, width)`` that sees one slice at a time; pictures pass."""
    changed = way(model)

    def predict(image: Tensor) -> Tensor:
        if image.ndim < 4:
            return changed(image)
        return torch.stack([changed(image[:, number]) for number in range(image.shape[1])], dim=1)

    return predict


def runnable_tasks(
    protocol: Protocol, load: Loader, wanted: list[str], most: int, device: str
) -> Iterator[tuple[str, Cases, Model]]:
    """Yield the tasks of a protocol with their cases, evenly spread, and the pooled prediction of their networks."""
    for task in protocol.tasks:
        if task.name in wanted:
            print(task.name, flush=True)
            cases = spread(protocol.open(task, POOLING).cases, most)
            yield task.name, cases, pooled(load(task.name, device), device)


def spread(cases: Cases, most: int) -> Cases:
    """Return at most so many cases, evenly spread over the sorted ids: neighbours in a folder are often alike."""
    if len(cases) <= most:
        return cases
    ids = sorted(cases.ids)
    return cases.subset([ids[place] for place in np.linspace(0, len(ids) - 1, most).round().astype(int)])


def pooled(networks: list[Model], device: str) -> Model:
    """Return the mean of the logits of several networks as one model."""

    @torch.inference_mode()
    def predict(image: Tensor) -> Tensor:
        here = image.to(device)
        return pool((network(here).float() for network in networks), POOLING).cpu()

    return predict


if __name__ == "__main__":
    main()
