"""`segcal fit` with its defaults on three real ensembles, and `segcal evaluate` on held-out cases: one table.

    python -m paper.real_ensembles ROOT [--cases 40] [--voxels 5000]

ROOT holds ``predictions/TASK/member_M/CASE.npy`` (logits) and ``TASK/labels``, for the tasks camvid, roads and cardiac.
Two fifths of the cases are held out, whole groups at a time (patients; videos are too few); with --cases, every n-th
case is taken, so that about so many are left.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import segcal
from segcal.fitting.division import divide

METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
TEST_SHARE = 0.4


class Ensemble(NamedTuple):
    """A task: its title, and what its files are declared as."""

    title: str
    declared: dict[str, Any]


ENSEMBLES = {
    "camvid": Ensemble("street scenes, 11 classes", {"ignore": 11}),
    "roads": Ensemble("aerial roads, 2 classes", {}),
    "cardiac": Ensemble("cardiac volumes, 4 classes", {"groups": r"(patient\d+)", "label_axes": "zyx"}),
}


def open_ensemble(root: Path, task: str, count: int | None, pooling: str) -> Any:
    """Return the cases of a task, evenly thinned out by groups of files."""
    members = sorted((root / "predictions" / task).glob("member_*"))
    declared = ENSEMBLES[task].declared
    cases = segcal.open_cases(members, root / task / "labels", kind="logits", pooling=pooling, **declared)
    if count is None or count >= len(cases):
        return cases
    groups = sorted({cases.groups.get(name) or name for name in cases.ids})
    step = max(len(cases) // count, 1)
    kept = set(groups[::step])
    return cases.subset([name for name in cases.ids if (cases.groups.get(name) or name) in kept])


def rows(root: Path, task: str, count: int | None, voxels: int) -> tuple[list[str], float]:
    """Return the lines of one ensemble, and the share of labels that changed."""
    cases = open_ensemble(root, task, count, "best")
    split = divide(cases, 0.0, TEST_SHARE, 0)
    fitted = segcal.choose(split.cal, config=segcal.FitConfig(voxels=voxels))
    test = split.test.pooled(fitted.pooling)
    found = segcal.evaluate(test, fitted.calibrator, metrics=[*METRICS, "flip_rate"])
    assert found.after is not None
    assert found.change is not None
    lines = []
    first = (ENSEMBLES[task].title, f"{fitted.calibrator.name} ({fitted.pooling})", f"{len(split.cal)} / {len(test)}")
    for name, title in METRICS.items():
        before, after, change = found.before[name], found.after[name], found.change[name]
        gap = f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"
        lines.append(f"| {' | '.join((*first, title, f'{before.value:.4f}', f'{after.value:.4f}', gap))} |")
        first = ("", "", "")
    return lines, found.after["flip_rate"].value or 0.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("--cases", type=int, metavar="N", help="about so many of each ensemble; default: all")
    parser.add_argument("--voxels", type=int, default=5000, metavar="N", help="of each case, to fit to; default: 5000")
    parser.add_argument("--tasks", nargs="+", default=list(ENSEMBLES), choices=list(ENSEMBLES), metavar="NAME")
    given = parser.parse_args()
    print("| ensemble | chosen | cases: fit / held out | metric | before | after | change |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: |")
    flips = []
    for task in given.tasks:
        lines, flipped = rows(given.root, task, given.cases, given.voxels)
        print("\n".join(lines), flush=True)
        flips.append(flipped)
    print(f"\nLabels that changed: {', '.join(f'{one:.2%}' if one else 'none' for one in flips)}.")


if __name__ == "__main__":
    main()
