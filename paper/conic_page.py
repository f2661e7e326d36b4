"""Write the page of conic scaling from folders of results: ``python -m paper.conic_page RESULTS -o PAGE``.

RESULTS is what ``segcal benchmark paper/protocols/conic.toml`` wrote. What `conic_shift.py` and
`learned_context.py` found is read from results/. Beside the page, in images/, goes one picture per task: what one of
its calibrators has learned.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import segcal
from paper.learned_page import cell, compared, section
from segcal.calibrators.conic import Conic
from segcal.report.figures import confidence_figure, to_svg
from segcal.report.paper_tables import task_table
from segcal.summary import Comparison, Summary, read_summary

FOUND = Path(__file__).parent / "results"
PAIRS = (("conic", "ts"), ("conic", "cms_ap"), ("conic_class", "conic"))
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
HEAD = """# Conic scaling: measured

Written by `paper/conic_page.py` from the results of `paper/protocols/conic.toml`: three real ensembles of
five networks, three divisions each, by groups. Strengths were chosen on validation cases; contexts, knots and the form
of the penalty on validation cases of other divisions of the same ensembles. The guard, and leaving out coefficients by
class and context, were settled after test cases of those divisions had been seen; no other data were at hand. Intervals
are 95 %, over test cases and repeats; those of ACE, which pools voxels, are the range over repeats.
[Measured results](results.md) have the same calibrators beside those of the paper, made by a later state of the code:
where numbers differ, those are the newer ones.
"""

FEW = """\
From `paper/results/learned.json`: so many labelled cases in all, strengths chosen on folds of them, 5,000 voxels
of each; 20 test cases, drawn anew for every number. The run ended before all divisions were done. Groups stay whole,
so `cases` may be fewer than 5, 10, 20 and 50. With one group nothing can be held out, and the strength is a fixed one
near temperature scaling. [Up to 59 and 79 cases](results.md#number-of-calibration-cases), with strengths chosen on
validation cases and paired against the usual number, are in the measured results.
"""
CORRUPTED = """\
From `paper/results/conic_shift.json`, which `paper/conic_shift.py` made: the calibrators of street scenes
above, on corrupted copies of 40 pictures, of which those are tested that are test cases of the division. Each copy has
one of five corruptions. Nothing is fitted to them.
"""


def page(folder: Path, pictures: Path) -> Iterator[str]:
    """Yield the page, and write its pictures."""
    summary = read_summary(folder)
    yield HEAD
    yield "## Paired differences\n"
    yield "How much more the one before *against* has in the same test case; lower is better. Intervals on one side of"
    yield "zero are **bold**.\n"
    yield f"| task | pipelines | {' | '.join(METRICS.values())} |"
    yield f"|---|---|{'---:|' * len(METRICS)}"
    for one in summary.comparisons:
        if "conic" in one.second:
            yield f"| {one.task} | `{one.second}` against `{one.first}` | {' | '.join(cells(one))} |"
    yield ""
    yield "## All rows\n"
    for task in summary.tasks:
        yield task_table(summary, task.name).to_markdown()
    yield "## What was learned\n"
    yield from learned(folder, summary, pictures)


def cells(one: Comparison) -> Iterator[str]:
    """Yield a cell per metric."""
    for name in METRICS:
        yield cell(one.metrics[name])


def learned(folder: Path, summary: Summary, pictures: Path) -> Iterator[str]:
    """Yield a picture per task, of the repeat that learned most, and what the certificates of all say."""
    yield "Of each task the repeat with the weakest penalty. The strongest, 100000, leaves temperature scaling.\n"
    for task in summary.tasks:
        paths = sorted((folder / "calibrators" / task.name).glob("repeat_*/conic-mean_logits"))
        all_fits = [segcal.load(path) for path in paths]
        fitted = min(all_fits, key=lambda each: each.certificate.nu or 0.0)
        assert isinstance(fitted.calibrator, Conic)
        name = f"conic_{task.name}.svg"
        (pictures / name).write_text(to_svg(confidence_figure(fitted.calibrator)), encoding="utf-8")
        certificate, size = fitted.certificate, fitted.calibrator.num_parameters()
        yield f"![what conic scaling learned on {task.name}]({pictures.name}/{name})\n"
        yield (
            f"{task.name}: {size} parameters, KKT residual {certificate.kkt_residual:.0e} on "
            f"{certificate.voxels:,} voxels; strengths of the repeats "
            f"{', '.join(f'{each.certificate.nu:g}' for each in all_fits)}.\n"
        )


def by_size(path: Path) -> Iterator[str]:
    """Yield differences for several numbers of calibration cases."""
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row.get("size")]
    yield "## Few calibration cases\n"
    yield FEW
    yield f"| task | cases | divisions | rows | {' | '.join(METRICS.values())} |"
    yield f"|---|---:|---:|---|{'---:|' * len(METRICS)}"
    for task, size in dict.fromkeys(sorted((row["task"], row["size"]) for row in rows)):
        own = [row for row in rows if (row["task"], row["size"]) == (task, size)]
        counts = sorted({row["cal"] for row in own})
        for second, first in PAIRS:
            found = [
                sorted((r for r in own if r["row"] == name), key=lambda r: r["repeat"]) for name in (first, second)
            ]
            gaps = (cell(compared(*found, metric)) for metric in METRICS)
            start = f"| {task} | {'–'.join(map(str, counts))} | {len(found[0])} |"
            yield f"{start} `{second}` against `{first}` | {' | '.join(gaps)} |"
    yield ""


def shifted(path: Path) -> Iterator[str]:
    """Yield differences on corrupted pictures, and the numbers of each corruption."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    yield "## Corrupted pictures\n"
    yield CORRUPTED
    yield f"| tested on | cases | rows | {' | '.join(METRICS.values())} |"
    yield f"|---|---:|---|{'---:|' * len(METRICS)}"
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for task in tasks:
        for second, first in PAIRS:
            found = [[row for row in rows if (row["task"], row["row"]) == (task, name)] for name in (first, second)]
            count = sum(len(row["corruption"]) for row in found[0])
            gaps = (cell(compared(*found, metric)) for metric in METRICS)
            yield f"| {task} | {count} | `{second}` against `{first}` | {' | '.join(gaps)} |"
    yield ""
    for task in tasks:
        yield from by_corruption(task, [row for row in rows if row["task"] == task])


def by_corruption(task: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield mean NLL and ECE of the pictures with each corruption; they are too few for intervals."""
    names = list(dict.fromkeys(row["row"] for row in rows))
    yield f"{task}, NLL / ECE by corruption, cases of all divisions, too few for intervals:\n"
    yield f"| corruption | cases | {' | '.join(f'`{name}`' for name in names)} |"
    yield f"|---|---:|{'---:|' * len(names)}"
    for kind in sorted({kind for row in rows for kind in row["corruption"]}):
        texts = []
        for name in names:
            own = [row for row in rows if row["row"] == name]
            chosen = [np.array([each == kind for each in row["corruption"]]) for row in own]
            means = (
                np.concatenate(
                    [np.array(row["cases"][metric])[mask] for row, mask in zip(own, chosen, strict=True)]
                ).mean()
                for metric in ("nll", "ece")
            )
            texts.append(" / ".join(f"{mean:.3f}" for mean in means))
        yield f"| {kind} | {sum(int(mask.sum()) for mask in chosen)} | {' | '.join(texts)} |"
    yield ""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    pictures = args.output.parent / "images"
    pictures.mkdir(exist_ok=True)
    lines = [*page(args.results, pictures), *shifted(FOUND / "conic_shift.json")]
    if (learned := FOUND / "learned.json").is_file():
        lines += [*by_size(learned), *section(learned)]
    args.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
