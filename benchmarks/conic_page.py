"""Write the page of conic scaling from a folder of results: ``python benchmarks/conic_page.py RESULTS -o PAGE``.

RESULTS is what ``segcal benchmark benchmarks/protocols/conic.toml`` wrote. Beside the page, in images/, goes one
picture per task: what one of its calibrators has learned.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import segcal
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


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    pictures = args.output.parent / "images"
    pictures.mkdir(exist_ok=True)
    args.output.write_text("\n".join(page(args.results, pictures)), encoding="utf-8")


if __name__ == "__main__":
    main()
