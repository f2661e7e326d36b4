"""Write the page of conic scaling from folders of results: ``python benchmarks/conic_page.py RESULTS -o PAGE``.

RESULTS is what ``segcal benchmark benchmarks/protocols/conic.toml`` wrote; `--sizes`, `--shift` and `--learned` name
what `conic_sizes.toml`, `conic_shift.toml` and `learned_context.py` did. Of corrupted pictures, `--corrupted` names the
JSON files that `corrupt.py` wrote. Beside the page, in images/, goes one picture per task: what one of its calibrators
has learned.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import segcal
from benchmarks.learned_page import section
from segcal.benchmark.results import Results, read_results
from segcal.calibrators.conic import Conic
from segcal.report.confidence_curves import confidence_figure
from segcal.report.figures import to_svg
from segcal.report.paper_tables import task_table
from segcal.summary import Comparison, Summary, read_summary

METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
HEAD = """# Conic scaling: measured

Written by `benchmarks/conic_page.py` from the results of `benchmarks/protocols/conic.toml`: three real ensembles of
five networks, three divisions each, by groups. Strengths were chosen on validation cases; contexts, knots and the form
of the penalty on validation cases of other divisions of the same ensembles. The guard, and leaving out coefficients by
class and context, were settled after test cases of those divisions had been seen; no other data were at hand. Intervals
are 95 %, over test cases and repeats; those of ACE, which pools voxels, are the range over repeats.
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
        gap = one.metrics[name].difference
        text = "—" if gap.value is None else f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
        yield f"**{text}**" if one.metrics[name].verdict in ("better", "worse") else text


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


def by_size(folder: Path) -> Iterator[str]:
    """Yield differences for several numbers of calibration cases."""
    summary = read_summary(folder)
    yield "## Few calibration cases\n"
    yield "`benchmarks/protocols/conic_sizes.toml`: so many labelled cases in all, strengths chosen on folds of them, 5,000"
    yield "voxels of each; 20 test cases, drawn anew for every number, three divisions. Differences as above.\n"
    yield f"| task | cases | pipelines | {' | '.join(METRICS.values())} |"
    yield f"|---|---:|---|{'---:|' * len(METRICS)}"
    for task in summary.tasks:
        for one in summary.comparisons:
            if one.task == task.name and "conic" in one.second:
                names = f"`{one.second.split('(')[0]}` against `{one.first.split('(')[0]}`"
                count = "–".join(str(each) for each in sorted({min(task.cal), max(task.cal)}))
                yield f"| {task.name.rsplit('_', 1)[0]} | {count} | {names} | {' | '.join(cells(one))} |"
    yield ""


def shifted(folder: Path, corrupted: Sequence[Path]) -> Iterator[str]:
    """Yield differences on corrupted pictures, and the numbers of each corruption."""
    summary = read_summary(folder)
    yield "## Corrupted pictures\n"
    yield "`benchmarks/protocols/conic_shift.toml`: fitted on clean street scenes, tested on corrupted copies of those test"
    yield "pictures that have one. Nothing is fitted to them. Differences as above.\n"
    yield f"| tested on | pipelines | {' | '.join(METRICS.values())} |"
    yield f"|---|---|{'---:|' * len(METRICS)}"
    for one in summary.comparisons:
        if one.test_on and "conic" in one.second:
            names = f"`{one.second.split('(')[0]}` against `{one.first.split('(')[0]}`"
            yield f"| {one.test_on} | {names} | {' | '.join(cells(one))} |"
    yield ""
    results = read_results(folder)
    for path in corrupted:
        yield from by_corruption(results, json.loads(path.read_text(encoding="utf-8")))


def by_corruption(results: Results, record: dict[str, object]) -> Iterator[str]:
    """Yield a table of one strength: mean NLL and ECE of the pictures with each corruption; too few for intervals."""
    pictures, strength = record["pictures"], record["strength"]
    assert isinstance(pictures, dict)
    kinds = {Path(name).stem: kind for name, kind in pictures.items()}
    units = [unit for unit in results.units if unit.unit.test_on.endswith(f"_{strength}")]
    titles = list(dict.fromkeys(unit.header.title for unit in units))
    yield f"NLL and ECE by corruption, {strength}; cases of all divisions, too few for intervals:\n"
    yield f"| corruption | cases | {' | '.join(title.split('(')[0] for title in titles)} |"
    yield f"|---|---:|{'---:|' * len(titles)}"
    for kind in dict.fromkeys(kinds.values()):
        found = {
            title: [row for unit in units if unit.header.title == title for row in unit.rows if kinds[row.case] == kind]
            for title in titles
        }
        pairs = (
            " / ".join(f"{np.mean([row.metrics[name] for row in rows]):.3f}" for name in ("nll", "ece"))
            for rows in found.values()
        )
        yield f"| {kind} | {len(found[titles[0]])} | {' | '.join(pairs)} |"
    yield ""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--sizes", type=Path)
    parser.add_argument("--shift", type=Path)
    parser.add_argument("--corrupted", type=Path, nargs="*", default=[])
    parser.add_argument("--learned", type=Path)
    args = parser.parse_args()
    pictures = args.output.parent / "images"
    pictures.mkdir(exist_ok=True)
    lines = list(page(args.results, pictures))
    lines += by_size(args.sizes) if args.sizes else []
    lines += shifted(args.shift, args.corrupted) if args.shift else []
    lines += section(args.learned) if args.learned else []
    args.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
