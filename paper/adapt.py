"""`segcal adapt` between places of the real ensembles: what it decides, and what that is worth where labels are known.

    python -m paper.adapt --root DATA [--tasks cardiac ...] [--most 60]

DATA holds ``predictions/TASK/member_M/CASE.npy`` and ``TASK/labels``. A calibrator is chosen and its reference learned
on the cases of one place (patients of one disease, one video, one area of a map); the cases of each other place are
adapted to without their labels, and NLL and ECE are then measured with them, before and after. Prints one table.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import segcal
from paper.real_ensembles import open_ensemble

DISEASES = {range(51, 61): "infarction", range(61, 81): "healthy", range(81, 101): "right ventricle"}


def disease(case_id: str) -> str:
    """Return the disease of a patient, by number."""
    number = int(re.search(r"\d+", case_id)[0])  # type: ignore[index]
    return next(name for numbers, name in DISEASES.items() if number in numbers)


def video(case_id: str) -> str:
    """Return the video of a frame."""
    return case_id.split("_")[1]


def area(case_id: str) -> str:
    """Return the strip of the map that an image is of: its row in the survey."""
    return case_id[:4]


PLACES: dict[str, tuple[Callable[[str], str], str]] = {
    "cardiac": (disease, r"(patient\d+)"),
    "camvid": (video, r"(.*_f?\d+)\d\d"),
    "roads": (area, r"(\d+)_r"),
}
LEAST = 12


def rows(root: Path, task: str, most: int, methods: list[str]) -> Iterator[list[str]]:
    """Yield a row per pair of places and method."""
    place, pattern = PLACES[task]
    cases = open_ensemble(root, task, None, "mean_probs")
    cases.groups = {case_id: re.match(pattern, case_id)[1] for case_id in cases.ids}  # type: ignore[index]
    by_place: dict[str, list[str]] = {}
    for case_id in cases.ids:
        by_place.setdefault(place(case_id), []).append(case_id)
    chosen = {name: ids[:: max(1, len(ids) // most)] for name, ids in by_place.items() if len(ids) >= LEAST}
    for home, ids in chosen.items():
        own = cases.subset(ids)
        fitted = segcal.learn_trust(segcal.choose(own, config=segcal.FitConfig(voxels=5000)), own)
        for other, new in chosen.items():
            if other == home:
                continue
            there = cases.subset(new)
            for method in methods:
                try:
                    found = segcal.adapt(fitted, there, method=method)  # type: ignore[arg-type]
                except segcal.InputError as error:
                    yield [task, home, other, method, fitted.calibrator.name, str(error)[:60], "", ""]
                    continue
                forced = found.fitted.calibrator
                before, after = (
                    segcal.evaluate(there, each, metrics=["nll", "ece"]).after for each in (fitted.calibrator, forced)
                )
                ps = f"{found.shift_p:.3f} / {found.change_p:.3f} / {found.own_bias:.2f}"
                change = [f"{before[name].value:.4f} -> {after[name].value:.4f}" for name in ("nll", "ece")]
                yield [task, home, other, method, fitted.calibrator.name, ps, *change]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(PLACES), choices=list(PLACES), metavar="NAME")
    parser.add_argument("--most", type=int, default=60, metavar="N", help="about so many cases of a place")
    parser.add_argument("--methods", nargs="+", default=["em", "bbse"], choices=["em", "bbse"])
    given = parser.parse_args()
    titles = ["task", "fitted on", "adapted to", "method", "chosen", "p of shift / of change / own bias", "NLL", "ECE"]
    print(f"| {' | '.join(titles)} |\n| {' | '.join(['---'] * len(titles))} |")
    for task in given.tasks:
        for row in rows(given.root, task, given.most, given.methods):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
