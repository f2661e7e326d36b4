"""Trials of what is read: damaged files of every format, damaged documents of ours, odd numbers, odd options."""

import os
import random
from collections.abc import Generator
from pathlib import Path

import numpy as np

from benchmarks.campaign.commands import DOCUMENTS, LOGITS, ended, listed
from benchmarks.campaign.damage import CODE, VALUES, damage
from benchmarks.campaign.sandbox import Box
from benchmarks.campaign.watch import Outcome, Step

Trial = Generator[Step, Outcome, None]
# Folders of predictions by format: the scores, the labels, what is declared.
FOLDERS = {
    "npy": ("q", "y", LOGITS), "npz": ("npz", "y", LOGITS), "safetensors": ("st", "y", LOGITS),
    "zarr": ("zarr", "y", LOGITS), "nifti": ("nii", "niiy", LOGITS), "nnunet": ("nn", "niiy", []),
    "store": ("store", None, []), "png": ("q", "png", LOGITS), "images": ("q", "y", [*LOGITS, "--images", "images"]),
    "members": ("q m", "y", [*LOGITS, "--pooling", "mean_logits"]),
}  # fmt: skip
READERS = listed("""
check fit apply evaluate convert audit trust monitor view report
""")


def reading(name: str, scores: str, labels: str | None, flags: list[str], box: Box, more: tuple[str, ...] = ()) -> Step:
    """Return a command that reads a folder, with outputs that are new."""
    members, last = scores.split(), [] if labels is None else [labels]
    new, page, rows = box / "new", box / "new.html", box / "new.csv"
    steps = {
        "check": (["check", *members, *last], ()),
        "fit": (["fit", *members, *last, "--calibrator", "ts", "-o", "new"], [new]),
        "apply": (["apply", "cal", *members, "-o", "new", "--ignore-pooling", "--confidence-map"], [new]),
        "evaluate": (["evaluate", *members, *last, "--metrics", "nll,dice", "--csv", "new.csv"], [rows]),
        "convert": (["convert", *members, *(["--labels", labels] if labels else []), "-o", "new"], [new]),
        "audit": (["audit", "cal", *members], ()),
        "trust": (["trust", "cal", *members, "--level", "0.5", "--ignore-pooling", "-o", "new"], [new]),
        "monitor": (["monitor", "cal", *members, "--state", "new.json"], [box / "new.json"]),
        "view": (["view", "cal", *members, "--to", "contours", "-o", "new"], [new]),
        "report": (["report", "cal", *members, *last, "-o", "new.html"], [page]),
    }
    words, targets = steps[name]
    return Step([*words, *flags, *more], targets)


def files(rng: random.Random, box: Box) -> Trial:
    """Damage one or two files of a folder of predictions, labels or images, and read it."""
    scores, labels, flags = FOLDERS[rng.choice(list(FOLDERS))]
    folders = [*scores.split(), *([labels] if labels and rng.random() < 0.4 else []), *flags[3:4]]
    for _ in range(rng.choice((1, 1, 2))):
        there = [path for path in (box / rng.choice(folders)).rglob("*") if path.is_file()] if folders else []
        damage(rng.choice(sorted(there)), rng) if there else None
    more = rng.choice(((), (), ("--json",), ("--strict",), ("--workers", "1"), ("--ignore", "2")))
    yield reading(rng.choice(READERS), scores, labels, flags, box, more)


def documents(rng: random.Random, box: Box) -> Trial:
    """Damage a document, and run a command that reads it."""
    name = rng.choice(list(DOCUMENTS))
    damage(box / name, rng)
    words = rng.choice(DOCUMENTS[name])
    if words[0] == "fit" and words[-1] == "cal" and rng.random() < 0.5:
        words = [*words, "--overwrite"]
    yield Step(ended(words), targets(words, box), replaces=[box / name])


def targets(words: list[str], box: Box) -> list[Path]:
    """Return what a command may write, by its options."""
    named = ("-o", "--output", "--state", "--csv", "--summary", "--report", "--splits", "--figures")
    return [box / words[index + 1] for index, word in enumerate(words) if word in named]


def _extreme(rng: random.Random, like: np.ndarray) -> np.ndarray:
    """Return scores that a network should not give."""
    noise = np.random.default_rng(rng.randrange(2**31)).normal(size=like.shape)
    some = np.random.default_rng(rng.randrange(2**31)).random(like.shape) < rng.choice((0.02, 0.5, 1.0))
    value = rng.choice((np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-40, 5e-324, 0.0, -0.0, 1.0, 1e9, 1e10, 700.0))
    dtype = rng.choice(
        (np.float32, np.float32, np.float16, np.float64, np.int8, np.int64, np.uint8, bool, np.complex64)
    )
    with np.errstate(all="ignore"):
        return np.where(some, value, noise * rng.choice((0.0, 1e-30, 1.0, 1e4, 1e9))).astype(dtype)


SHAPES = (
    (3,), (3, 1), (3, 1, 1), (3, 0), (3, 0, 4), (1, 6, 5), (2, 6, 5), (3, 6, 5, 1), (3, 1, 1, 1, 1, 1), (0,), (),
    (3, 5, 6), (300, 2, 2),
)  # fmt: skip


def numbers(rng: random.Random, box: Box) -> Trial:
    """Write scores and labels that degenerate: not numbers, too large, constant, of one voxel, of another shape."""
    for name in rng.sample(["c0", "c1", "c2"], rng.choice((1, 3))):
        scores, labels = np.load(box / f"q/{name}.npy"), np.load(box / f"y/{name}.npy")
        way = rng.randrange(4)
        if way == 0:
            scores = _extreme(rng, scores)
        elif way == 1:
            shape = rng.choice(SHAPES)
            scores, labels = np.ones(shape, np.float32), np.zeros(shape[1:], np.uint8)
        elif way == 2:
            fill = rng.choice((0, 1, 2, 3, 255, -1, 2**40, 0.5, np.nan, True))
            labels = np.full(labels.shape, fill)
        else:
            scores, labels = np.full(scores.shape, rng.choice((0.0, 3.0, 1e9)), np.float32), np.zeros_like(labels)
        np.save(box / f"q/{name}.npy", scores)
        np.save(box / f"y/{name}.npy", labels)
    kind = ["--kind", rng.choice(("logits", "logits", "probs", "sigmoid"))]
    step = reading(rng.choice(READERS), "q", "y", kind, box, rng.choice(((), (), ("--json",), ("--ignore", "0"))))
    if step.run[0] == "fit" and rng.random() < 0.5:
        calibrator = rng.choice(("ets", "vs", "dc", "iop", "isotonic", "histogram", "conic", "lts", "meta_cal"))
        step.run = [calibrator if word == "ts" else word for word in step.run]
    yield step


OPTIONS = listed("""
--kind --pooling --format --ignore --class-axis --key --label-key --label-axes --images --groups --class-names
--regions --regions-class-order --class-pattern --properties --workers --device --num-parts --part-id --engine
--seed --metrics --level --tau --link --biomarker --rate --stream-rate --levels --series --val-share --test-share
--splits --validation --voxels --lam --mu --calibrator --output-kind --csv --summary --report --state --figures --to
""")
WORDS = (
    "", " ", "0", "-1", "1e400", "nan", "inf", "0.5", "2", "1,2", "a,b,c", "a,a", "=", "a=1", "a=1+2,b=2", "(",
    "(a+)+$", r"(\w+)", r"(.*)(.*)", "x" * 5000, "\x1b[31m", "None", "[]", "{}", "nowhere", "y", "p", "notes.txt",
    "/", "..", "all", "cal", "é\u2028", "99999999999999999999", "EF={a}", f"EF={CODE}", "EF={class 1}/0",
    "EF={class 1}**{class 1}", "EF=9**9**9**9", "cpu:7", "meta", "cuda", "npy", "store", "nll,nll", "hd95", "0.0",
    "1.0", "test", "-o", "--", "%", "!",
)  # fmt: skip


def options(rng: random.Random, box: Box) -> Trial:
    """Give options values that no one expects."""
    scores, labels, flags = FOLDERS[rng.choice(list(FOLDERS))]
    step = reading(rng.choice(READERS), scores, labels, flags, box)
    words = list(step.run)
    for _ in range(rng.choice((1, 1, 2))):
        option, value = rng.choice(OPTIONS), rng.choice((*WORDS, *(str(each)[:300] for each in VALUES)))
        value = value.replace("\x00", "")
        if option in ("--workers", "--num-parts") and value.isdigit():
            value = str(min(int(value), 2)) if len(value) < 9 else value
        words += [option, value.encode("utf-8", "replace").decode()]
    if "--engine" in words:  # engines start programs, on purpose
        words += ["--engine", "local"]
    step.run, step.targets = words, [*step.targets, *(_option_target(words, box))]
    yield step


def _option_target(words: list[str], box: Box) -> list[Path]:
    """Return what options of values at random allow to be written: files that are not there yet."""
    named = ("--csv", "--summary", "--report", "--state", "--figures", "--splits")
    found = [words[index + 1] for index, word in enumerate(words[:-1]) if word in named]
    new = [Path(os.path.normpath(box / name)) for name in found if name and len(name) < 200]
    return [path for path in new if path.is_relative_to(box.root) and not path.exists()]
