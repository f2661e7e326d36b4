"""Train the ensembles that the package ships again: ``python -m paper.loss_study.ensembles TASK --out DIR``.

On a GPU add ``--device cuda --workers 5``. Writes ``DIR/TASK.safetensors`` and ``DIR/TASK.json``, the files that the
package ships in ``demo/weights``; each member keeps a checkpoint in ``DIR/checkpoints`` and goes on from it. Members
differ by their seed alone.

The JSON file is their record on held-out cases, which a test checks. Dice is that of the trainer; NLL is the mean over
the voxels of a case that count, in nats; ECE has 50 equal bins ``(lo, hi]`` of the winner's probability, one case at a
time. All are means over cases. It is computed here and not by :mod:`segcal.metrics`, so that it can catch an error
there.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from paper.loss_study.trainer import Epoch, case_dice, train
from paper.loss_study.training import TrainConfig
from segcal.atomic import write_bytes, write_text
from segcal.demo.tasks import HELD_OUT, TASKS, TRAINING, VALIDATION, Task
from segcal.demo.unet import MEMBERS, UNet, fast_layout, load_ensemble, predict
from segcal.losses import make_loss
from segcal.numerics import canonical_logits
from segcal.parent import follow_parent
from segcal.pooling import pool
from segcal.types import IGNORED, Labels, Logits

Result = TypeVar("Result")
Scores = dict[str, dict[str, float]]
BINS = 50


@dataclass(frozen=True)
class Recipe:
    """How the members of a task are made.

    Attributes:
        widths: of the U-Net.
        cases: training cases. There are few of them, as in reality, and the networks are surer than they are right.
            Validation Dice is best long before the last epoch: 40 to 60 of 540 for the shipped members of roads, 100
            to 140 of 360 of streets, 100 to 150 of 180 of tumour.
        config: of the trainer.
    """

    widths: tuple[int, ...]
    cases: int
    config: TrainConfig


RECIPES: dict[str, Recipe] = {
    "roads": Recipe((16, 24, 48, 72), 48, TrainConfig(epochs=540, batch_size=8, flips=(0, 1), validate_every=20)),
    "tumour": Recipe((8, 20, 28, 40), 72, TrainConfig(epochs=180, batch_size=4, flips=(1,), validate_every=10)),
    "streets": Recipe(
        (16, 24, 48, 72),
        72,
        TrainConfig(epochs=360, batch_size=8, flips=(1,), validate_every=20, include_background=True),
    ),
}
VALIDATION_CASES = 16
RECORDED_CASES = 40
# So many of them are listed one by one, for a test that has no time for all.
LISTED_CASES = 3


@dataclass(frozen=True)
class Job:
    """One member to be trained."""

    task: str
    member: int
    recipe: Recipe
    folder: Path


def main(arguments: list[str] | None = None) -> None:
    """Train, save and measure the ensembles named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m paper.loss_study.ensembles", description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="members trained at the same time")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--cases", type=int, help="training cases instead of the recipe's")
    parser.add_argument("--recorded", type=int, default=RECORDED_CASES, help="held-out cases to measure")
    parser.add_argument("--measure-only", action="store_true", help="only write the record of weights that are there")
    options = parser.parse_args(arguments)
    if not options.measure_only:
        _train_all(options)
    records = [(task, options.out, options.members, options.recorded) for task in options.tasks]
    for record in _map(_write_record, records, options.workers):
        print(json.dumps(record, indent=1), flush=True)


def _train_all(options: argparse.Namespace) -> None:
    jobs = [
        (Job(task, member, _recipe(task, options), options.out),)
        for task in options.tasks
        for member in range(options.members)
    ]
    weights = _map(train_member, jobs, options.workers)
    for number, task in enumerate(options.tasks):
        mine = weights[number * options.members : (number + 1) * options.members]
        facts = _network_facts(TASKS[task], _recipe(task, options))
        save_ensemble(options.out / f"{task}.safetensors", facts, mine)


def _map(function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], workers: int) -> list[Result]:
    """Return the results of all calls, made here or in processes that share the cores."""
    if workers == 1:
        return [function(*arguments) for arguments in calls]
    threads = max((os.cpu_count() or 1) // workers, 1)
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (threads,)) as pool:
        return [future.result() for future in [pool.submit(function, *arguments) for arguments in calls]]


def _start_worker(threads: int) -> None:
    follow_parent()
    torch.set_num_threads(threads)


def train_member(job: Job) -> dict[str, Tensor]:
    """Train one member and return its weights."""
    task, config = TASKS[job.task], replace(job.recipe.config, seed=job.member)
    started = time.perf_counter()
    cases = _cases(task, TRAINING, job.recipe.cases, config.device)
    validation = _cases(task, VALIDATION, min(VALIDATION_CASES, job.recipe.cases), config.device)

    def tell(epoch: Epoch) -> None:
        if epoch.dice is not None:
            seconds = time.perf_counter() - started
            line = f"{job.task} {job.member} epoch {epoch.number} loss {epoch.loss:.4f} Dice {epoch.dice:.4f}"
            print(f"{line} {seconds:.0f} s", flush=True)

    torch.manual_seed(config.seed)
    trained = train(
        fast_layout(UNet(**_network_facts(task, job.recipe))),
        make_loss("ce_dice"),
        cases,
        config,
        validation,
        checkpoint=job.folder / "checkpoints" / f"{job.task}_{job.member}.pt",
        on_epoch=tell,
    )
    return {key: value.cpu() for key, value in trained.network.state_dict().items()}


def save_ensemble(path: Path, facts: dict[str, Any], weights: Sequence[dict[str, Tensor]]) -> None:
    """Write the weights of all members in float16, beside and then renamed."""
    tensors = {
        f"{member}.{key}": (value.half() if value.is_floating_point() else value).cpu().contiguous()
        for member, state in enumerate(weights)
        for key, value in state.items()
    }
    write_bytes(path, save(tensors, {"network": json.dumps(facts), "members": str(len(weights))}))


def _recipe(task: str, options: argparse.Namespace) -> Recipe:
    recipe = RECIPES[task]
    on_gpu = torch.device(options.device).type == "cuda"
    config = replace(recipe.config, device=options.device, amp=on_gpu, epochs=options.epochs or recipe.config.epochs)
    return replace(recipe, config=config, cases=options.cases or recipe.cases)


def _network_facts(task: Task, recipe: Recipe) -> dict[str, Any]:
    return {
        "channels": task.channels,
        "num_classes": task.num_classes,
        "dims": len(task.space),
        "widths": list(recipe.widths),
    }


def _cases(task: Task, seed: int, count: int, device: str) -> list[tuple[Tensor, Tensor]]:
    samples = (task.sample(index, seed) for index in range(count))
    return [(torch.from_numpy(image).to(device), torch.from_numpy(labels).to(device)) for image, labels, _ in samples]


def _write_record(task: str, folder: Path, members: int, count: int) -> Scores:
    """Measure an ensemble as it will be used: float16 weights read back, float32 arithmetic, on the CPU."""
    networks = load_ensemble(task, members, folder)
    cases = [measure_case(TASKS[task], networks, index) for index in range(count)]
    record = {"task": task, "held_out_cases": count, "mean": mean_scores(cases), "first_cases": cases[:LISTED_CASES]}
    write_text(folder / f"{task}.json", json.dumps(record, indent=1) + "\n")
    return mean_scores(cases)


def measure_case(task: Task, networks: Sequence[UNet], index: int) -> Scores:
    """Return Dice, NLL and ECE of each member and of the ensemble by both poolings, on one held-out case."""
    sample = task.sample(index, HELD_OUT)
    labels = torch.from_numpy(sample.labels)
    members = [predict(network, sample.image) for network in networks]
    maps = {f"member_{number}": member for number, member in enumerate(members)}
    maps |= {how: pool(members, how) for how in ("mean_logits", "mean_probs")}
    return {name: scores(logits, labels, not task.background) for name, logits in maps.items()}


def mean_scores(cases: Iterable[Scores]) -> Scores:
    """Return the means over cases; a Dice that is not defined is left out."""
    rows = list(cases)
    return {
        name: {
            key: float(torch.tensor([row[name][key] for row in rows], dtype=torch.float64).nanmean())
            for key in rows[0][name]
        }
        for name in rows[0]
    }


def scores(logits: Logits, labels: Labels, include_background: bool) -> dict[str, float]:
    """Return Dice, NLL and ECE of one case, logits ``(classes, *space)``."""
    valid = labels != IGNORED
    log_probs = canonical_logits(logits[:, valid].double(), axis=0)
    truth = labels[valid]
    confidence, predicted = log_probs.exp().max(dim=0)
    return {
        "dice": float(case_dice(logits, labels, include_background)),
        "nll": float(-log_probs.gather(0, truth[None]).mean()),
        "ece": _calibration_error(confidence, predicted == truth),
    }


def _calibration_error(confidence: Tensor, correct: Tensor) -> float:
    place = torch.ceil(confidence * BINS).long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, correct.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))


if __name__ == "__main__":
    main()
