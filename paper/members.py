"""Members from one network: flipped copies of the image beside one network and beside five, on real tasks: one table.

    python -m paper.members predict NETWORKS FLIPS [--tasks cardiac roads] [--network 0]
    python -m paper.members table ROOT FLIPS [--tasks cardiac roads] [--network 0] [--voxels 5000]

`predict` writes logits of one network for three copies of every image: mirrored along the last axis, along the one
before it, and along both; each is mirrored back. NETWORKS holds ``predict.py`` with ``UNet``, ``TASKS`` and
``read_image``, ``TASK/images`` and ``TASK/weights/member_M.safetensors``; FLIPS gets ``TASK/network_M/COPY/CASE.npy``,
and what is there already is kept.

`table` fits on three fifths of the cases and tests on the others, whole groups (patients) at a time, the same cases in
every row. Below each number: the paired difference to one network with the same kind of calibrator, its 95 % interval
over groups, and how many cases are better. ROOT holds ``predictions/TASK/member_M/CASE.npy`` and ``TASK/labels``.
"""

import argparse
import importlib.util
import multiprocessing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

import segcal
from paper.real_ensembles import ENSEMBLES, TEST_SHARE
from segcal.evaluation import Evaluation
from segcal.fitting.division import divide
from segcal.resample import Draws
from segcal.summary import difference

COPIES: dict[str, tuple[int, ...]] = {"last": (-1,), "before": (-2,), "both": (-2, -1)}
METRICS = ("nll", "ece", "dice")
TASKS = ("cardiac", "roads")


class Source(NamedTuple):
    """Where the members of a row are, and how they are pooled."""

    title: str
    members: list[Path]
    pooling: str


def load_networks(folder: Path) -> ModuleType:
    """Return the module that knows the networks."""
    spec = importlib.util.spec_from_file_location("networks", folder / "predict.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def predict(networks: Path, flips: Path, task: str, network: int) -> None:
    """Write the logits of every copy of every image of a task."""
    known = load_networks(networks)
    facts = known.TASKS[task]
    net = known.UNet(facts["channels"], facts["classes"], facts["widths"]).eval()
    stored = load_file(networks / task / "weights" / f"member_{network}.safetensors")
    net.load_state_dict({name: one.float() if one.is_floating_point() else one for name, one in stored.items()})
    mean, std = (torch.tensor(facts[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    for path in sorted((networks / task / "images").iterdir()):
        case = path.name.split(".")[0]
        image = (known.read_image(path) - mean) / std
        for copy, axes in COPIES.items():
            target = flips / task / f"network_{network}" / copy / f"{case}.npy"
            if target.exists():
                continue
            with torch.inference_mode():
                logits = net(image.flip(axes)).flip(axes).movedim(1, 0)
            target.parent.mkdir(parents=True, exist_ok=True)
            np.save(target, (logits if path.name.endswith(".nii.gz") else logits[:, 0]).half().numpy())


def sources(root: Path, flips: Path, task: str, network: int) -> list[Source]:
    """Return what is compared; the first is what differences are taken from."""
    own, one = root / "predictions" / task, root / "predictions" / task / f"member_{network}"
    copies = [one, *(flips / task / f"network_{network}" / copy for copy in COPIES)]
    return [
        Source("one network", [one], "single"),
        Source("its flips, mean of probabilities", copies, "mean_probs"),
        Source("its flips, mean of logits", copies, "mean_logits"),
        Source("five networks, mean of probabilities", sorted(own.glob("member_*")), "mean_probs"),
    ]


class Measured(NamedTuple):
    """Values of the test cases by calibrator and metric, the names of the calibrators, and the groups of the cases."""

    values: dict[str, dict[str, np.ndarray]]
    names: dict[str, str]
    groups: list[str]


def column(found: Evaluation, stage: str, metric: str) -> np.ndarray:
    """Return the values of one metric, one a case, NaN where it is undefined."""
    values = [row[metric] for row in found.rows if row["stage"] == stage]
    return np.array([np.nan if value is None else value for value in values], float)


def measure(root: Path, task: str, voxels: int, calibrators: list[str], source: Source) -> Measured:
    """Fit and evaluate one source."""
    labels, declared = root / task / "labels", ENSEMBLES[task].declared
    cases = segcal.open_cases(source.members, labels, kind="logits", pooling=source.pooling, **declared)
    split = divide(cases, 0.0, TEST_SHARE, 0)
    config = segcal.FitConfig(voxels=voxels)
    fits = {
        name: segcal.choose(split.cal, config=config)
        if name == "default"
        else segcal.fit(name, split.cal, config=config)
        for name in calibrators
    }
    found = {name: segcal.evaluate(split.test, fitted.calibrator, metrics=METRICS) for name, fitted in fits.items()}
    values = {"none": {name: column(found[calibrators[0]], "before", name) for name in METRICS}}
    values |= {title: {name: column(one, "after", name) for name in METRICS} for title, one in found.items()}
    groups = [split.test.groups.get(name) or name for name in split.test.ids]
    return Measured(values, {title: fitted.calibrator.name for title, fitted in fits.items()}, groups)


def rows(
    root: Path, flips: Path, task: str, network: int, voxels: int, calibrators: list[str], workers: int
) -> list[str]:
    """Return the lines of one task."""
    listed = sources(root, flips, task, network)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        measured = pool.map(partial(measure, root, task, voxels, calibrators), listed, chunksize=1)
    first, draws, lines = measured[0], Draws([measured[0].groups]), []
    for source, own in zip(listed, measured, strict=True):
        assert own.groups == first.groups
        for title, values in own.values.items():
            cells = [
                source.title if title == "none" else "",
                f"default: {own.names[title]}" if title == "default" else title,
            ]
            for name in METRICS:
                better = segcal.METRICS[name].better
                change = difference([first.values[title][name]], [values[name]], draws, better)
                cell = [f"{np.nanmean(values[name]):.4f}"]
                if own is not first:
                    cell.append(f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]")
                    cell.append(f"{change.better} of {change.cases}")
                cells.append("<br>".join(cell))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Predict, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("predict", "table"))
    parser.add_argument("root", type=Path, metavar="ROOT", help="for `predict`: NETWORKS")
    parser.add_argument("flips", type=Path, metavar="FLIPS")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS, metavar="NAME")
    parser.add_argument("--network", type=int, default=0, metavar="M")
    parser.add_argument("--voxels", type=int, default=5000, metavar="N", help="of each case, to fit to; default: 5000")
    parser.add_argument(
        "--calibrators", nargs="+", default=["ts", "default"], metavar="NAME", help="default: ts default"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="rows at a time; default: 2")
    given = parser.parse_args()
    for task in given.tasks:
        if given.step == "predict":
            predict(given.root, given.flips, task, given.network)
            continue
        print(f"\n| {ENSEMBLES[task].title}: members | calibrated by | NLL | ECE | Dice |")
        print("| --- | --- | ---: | ---: | ---: |")
        print(
            "\n".join(
                rows(given.root, given.flips, task, given.network, given.voxels, given.calibrators, given.workers)
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
