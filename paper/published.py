r"""Cardiac volumes by the definitions of a published study of average calibration losses, next to its numbers.

    python -m paper.published measure ROOT RESULTS [--repeats 3] [--voxels 1000]
    python -m paper.published rows RESULTS [-o docs/board]

The study (Barfoot et al., 2025, mL1-ACE) bins each structure's own probability in 20 bins of equal width, per volume,
over all voxels: the average (ACE), expected (ECE) and maximum (MCE) gap between mean probability and frequency,
without empty bins, mean over the structures that are not background and then over volumes. Dice is that of the argmax,
mean over the structures that are there. `measure` computes all of it twice, by our counts and by MONAI, which took the
definitions over, and keeps the largest difference.

`if calibrated` is what ACE would be if every probability were exactly right and voxels independent: labels drawn from
the probabilities, once per volume. A map that leaves few bins filled has a low one.

Divisions are those of ``paper/peer_rows.py`` at random: 40 % of the cases by patients for the fits. The published
numbers are means over the 100 volumes of the 50 official test patients; ours are of other patients and networks.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.metrics import CalibrationErrorMetric, DiceMetric
from torch import Tensor

import segcal
from paper.board import FOLDER, Row, measured, number, write_code, write_rows
from paper.peer_rows import TEST_SHARE, open_cases
from paper.stamp import read_stamps, write_stamp
from segcal.calibrators.temperature import Identity
from segcal.evaluation.slabs import calibrated_scores
from segcal.fitting.division import divide, group_names
from segcal.metrics import METRICS
from segcal.resample import Draws
from segcal.statistics import count_logits
from segcal.statistics.reliability import Curve
from segcal.summary import estimate

STUDY, BINS, TASK = "published", 20, "cardiac"
OURS = ("identity", "ts", "conic", "default", "histogram")
DICE = METRICS["dice"].with_options(empty="skip")
THEIRS = {"ace": "average", "ece": "expected", "mce": "maximum"}
COLUMNS = {"ace": "ACE", "ece": "ECE", "mce": "MCE", "dice": "DSC", "floor": "ACE if calibrated"}
# Of the authors' own files per volume (macro_*_summary.csv and mean_dice_summary.csv of each bundle), mean.
PUBLISHED = {
    "Dice + CE": ("0.1310", "0.0016", "0.2840", "0.8804"),
    "Dice + CE + hard mL1-ACE": ("0.1018", "0.0013", "0.2173", "0.8804"),
    "Dice + CE + soft mL1-ACE": ("0.0776", "0.0011", "0.1572", "0.8705"),
}


def gaps(curves: Curve) -> dict[str, np.ndarray]:
    """Return the average, expected and maximum gap of each class but the background."""
    counts, found = curves.count[1:].astype(float), {}
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.abs(curves.confidence[1:] - curves.right[1:]) / counts
    found["ace"], found["mce"] = np.nanmean(each, 1), np.nanmax(each, 1)
    found["ece"] = np.nansum(each * counts, 1) / counts.sum(1)
    return found


def of_volume(scores: Tensor, labels: Tensor, rng: np.random.Generator) -> dict[str, float]:
    """Return the numbers of one volume, and how far MONAI's are from them."""
    tables = count_logits(scores, labels, class_bins=BINS).tables
    assert tables.classwise is not None
    ours = gaps(tables.classwise["all"])
    found = {name: float(values.mean()) for name, values in ours.items()}
    found["dice"] = DICE(tables) or float("nan")
    probs = scores.double().softmax(0)
    drawn = (probs.cumsum(0) < torch.from_numpy(rng.random(labels.shape))).sum(0).clamp_max(len(probs) - 1)
    chance = count_logits(scores, drawn, class_bins=BINS).tables.classwise
    assert chance is not None
    found["floor"] = float(gaps(chance["all"])["ace"].mean())
    return found | {f"off {name}": off for name, off in differences(probs, labels, ours, found["dice"]).items()}


def differences(probs: Tensor, labels: Tensor, ours: dict[str, np.ndarray], dice: float) -> dict[str, float]:
    """Return the largest difference of each number of a class to MONAI's."""
    hot = torch.nn.functional.one_hot(labels, len(probs)).movedim(-1, 0)[None].double()
    found = {}
    for name, reduction in THEIRS.items():
        metric = CalibrationErrorMetric(num_bins=BINS, include_background=False, calibration_reduction=reduction)
        found[name] = float(np.abs(metric(probs[None], hot)[0].numpy() - ours[name]).max())
    mask = torch.nn.functional.one_hot(probs.argmax(0), len(probs)).movedim(-1, 0)[None].double()
    theirs = DiceMetric(include_background=False, reduction="none")(mask, hot)
    return found | {"dice": abs(float(theirs.nanmean()) - dice)}


def measure(root: Path, path: Path, repeats: int, voxels: int) -> None:
    """Fit and measure every division."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    known = {(line["division"], line["method"]) for line in lines}
    cases, config = open_cases(root, TASK), segcal.FitConfig(voxels=voxels)
    for seed in range(repeats):
        split = divide(cases, 0.0, TEST_SHARE, seed)
        for name in OURS:
            if (seed, name) in known:
                continue
            if name == "identity":
                calibrator: Any = Identity(cases.num_classes)
            elif name == "default":
                calibrator = segcal.choose(split.cal, config=config).calibrator
            else:
                calibrator = segcal.fit(name, split.cal, config=config).calibrator
            values: dict[str, list[float]] = {}
            for place, case_id in enumerate(split.test.ids):
                case = split.test.checked(case_id)
                own = of_volume(calibrated_scores(calibrator, case), case.labels, np.random.default_rng([seed, place]))
                for key, value in own.items():
                    values.setdefault(key, []).append(value)
            line = {"division": seed, "method": name, "chosen": calibrator.name, "values": values}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "groups": list(group_names(split.test, split.test.ids))}) + "\n")
            print(seed, name, {key: round(float(np.mean(column)), 4) for key, column in values.items()}, flush=True)


def rows(path: Path) -> Iterator[Row]:
    """Yield ours, then those of the study, then the largest differences to MONAI."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for name in OURS:
        own = [line for line in lines if line["method"] == name]
        draws = Draws([line["groups"] for line in own])
        chosen = ", ".join(line["chosen"] for line in own) if name == "default" else ""
        for key, title in COLUMNS.items():
            one = estimate([np.array(line["values"][key], float) for line in own], draws)
            yield from measured("ours", name, title, one, ".4f", note=chosen)
    for name, values in PUBLISHED.items():
        for title, value in zip(list(COLUMNS.values())[:4], values, strict=True):
            yield Row("published", name, title, number(float(value)), cases=100)
    for key, title in list(COLUMNS.items())[:4]:
        most = max(max(line["values"][f"off {key}"]) for line in lines)
        yield Row("largest difference to MONAI, a class of a volume", "all of ours", title, number(most, ".1e"))


def main() -> None:
    """Measure, or write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    first, second = steps.add_parser("measure"), steps.add_parser("rows")
    first.add_argument("root", type=Path, metavar="ROOT")
    for step in (first, second):
        step.add_argument("results", type=Path, metavar="RESULTS")
    first.add_argument("--repeats", type=int, default=3, metavar="N")
    first.add_argument("--voxels", type=int, default=1000, metavar="N", help="of each case, to fit to")
    second.add_argument("-o", "--output", type=Path, default=FOLDER, help="the folder of the board")
    given = parser.parse_args()
    path = given.results / f"{TASK}.jsonl"
    if given.step == "rows":
        write_rows(STUDY, rows(path), given.output)
        write_code(STUDY, read_stamps(given.results.parent, [given.results.name]), given.output)
        return
    torch.set_num_threads(1)
    given.results.mkdir(parents=True, exist_ok=True)
    write_stamp(given.results)
    measure(given.root, path, given.repeats, given.voxels)


if __name__ == "__main__":
    main()
