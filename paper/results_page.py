"""Write docs/results.md from folders of results: ``python -m paper.results_page RESULTS [-o docs/results.md]``.

RESULTS has one folder per run of ``segcal benchmark``: roads, cardiac, camvid, camvid_shift, more, selective and
padding (``paper/all_results.py`` makes them), and choice, whatever of them is there. Every table and every
measured number of the page is made from them; run it again when they grow. Folders that contradict each other are
refused.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paper import paper_numbers as paper
from paper.choice_page import choice
from paper.more_page import FOLDER as MORE
from paper.more_page import more
from paper.one_source import check_sources
from paper.paper_words import TITLES, agreement, claims
from paper.regions_page import regions
from paper.selective_page import FOLDER as SELECTIVE
from paper.selective_page import selective
from paper.stamp import read_stamps
from paper.transfer_page import transfer
from segcal.atomic import write_text
from segcal.errors import SegcalError
from segcal.report.paper_tables import task_table
from segcal.studies.binning import binning_tables, summary_binning
from segcal.studies.offsets import OffsetsData, offset_tables
from segcal.summary import read_summary

REAL = ("roads", "cardiac", "camvid")
SHIFT, PADDING, CHOICE, TRANSFER = "camvid_shift", "padding", "choice", "transfer"
INTRO = """# Measured results

Every table and every measured number is written by `paper/results_page.py` from the folders that
`paper/all_results.py` makes in one command, and from the lines of `paper/choice.py`. Each section names the
code that made it: the version, and a digest of the source files, which `python -m paper.stamp` prints for a
checkout.

The paper is *Rethinking Post-Hoc Calibration in Semantic Segmentation*; its datasets and networks are not ours. Three
small ensembles stand for its three: aerial images of roads (two classes) for RoadSeg, cardiac MRI (four classes, mostly
background) for BraTS, and street scenes (eleven classes) for Cityscapes. Each has five U-Nets of the same data and
different seeds, and cases that none of them was trained on. So numbers cannot be equal; what can agree is who wins.

The protocols are in `paper/protocols/`, and [protocol.md](protocol.md) says what each step does and where it
departs from the paper: exact fits instead of Adam and Optuna, padding that does not count, groups that stay together,
and draws of the bootstrap that all pipelines share. The paper's numbers of BraTS are what padded volumes give
([the study below](#padding-read-as-logits) shows how), so theirs are no target.
"""
TABLE = """Rows (a) to (f) are the paper's. Vector scaling, (g), is defined there but not in its table; conic scaling,
(h), is ours ([conic.md](conic.md); [conic_results.md](conic_results.md) says on which cases its form was chosen).
Strengths are chosen on validation cases, for all.
"""
MATCHED = """## Matched comparisons

Two pipelines that differ in one property, case by case, in paired differences with 95 % intervals. *Better* and *worse*
mean that the whole interval lies on one side of zero (for ACE: that it is so in every repeat); everything else is *no
difference*.
"""
AGREEMENT = """### Where they agree with the paper

What the paper's printed numbers say of the second pipeline, and what ours do. The paper gives no intervals of
differences, so its word is that of the point estimates, to three digits.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/results.md"))
    args = parser.parse_args()
    try:
        text = "\n".join(page(args.results))
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    write_text(args.output, text)


def page(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of the page."""
    check_sources(folder, (*REAL, SHIFT, MORE))
    summaries = {name: read_summary(folder / name) for name in REAL if (folder / name / "summary.json").is_file()}
    yield INTRO
    mine = read_stamps(folder, summaries)
    yield from setup(folder, summaries)
    sections = (
        main_results(summaries),
        matched(summaries),
        offsets(folder, summaries),
        tables(folder, "## Flips", "figure4_flips.md", summaries, flip_words),
        tables(folder, "## Number of calibration cases", "figure5_size_{}.md", summaries, nothing),
        binning(summaries),
    )
    for section in sections:
        yield from stamped(section, mine)
    for name, section in {
        SHIFT: shift(folder), PADDING: padding(folder), MORE: more(folder, summaries), SELECTIVE: selective(folder),
        CHOICE: choice(folder / CHOICE),
        TRANSFER: transfer(folder / TRANSFER),
    }.items():  # fmt: skip
        yield from stamped(section, read_stamps(folder, [name]))
    yield from regions()


def stamped(section: Iterator[str], words: str) -> Iterator[str]:
    """Yield a section, with the code that made it below its title."""
    for number, text in enumerate(section):
        yield text
        if number == 0:
            yield f"*{words}.*\n"


def setup(folder: Path, summaries: Mapping[str, Any]) -> Iterator[str]:
    yield "## What was run\n"
    yield "| task | stands for | C | M | cases | cal | val | test | repeats | voxels per case in the fits |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, summary in summaries.items():
        task = summary.tasks[0]
        parts = [f"{min(getattr(task, part))}–{max(getattr(task, part))}" for part in ("cal", "val", "test")]
        parts = [part.split("–")[0] if len(set(part.split("–"))) == 1 else part for part in parts]
        facts = [task.num_classes, task.members, task.cases, *parts, summary.repeats]
        voxels = summary.fit["voxels"]
        yield f"| {name} | {paper.COUNTERPART[name]} | {' | '.join(map(str, facts))} | {voxels} |"
    yield ""
    for name, summary in summaries.items():
        yield from (f"- {name}: {note}." for note in summary.notes)
    missing = [name for name in REAL if name not in summaries]
    if missing:
        yield f"- Not measured yet: {', '.join(missing)}."
    yield ""


def main_results(summaries: Mapping[str, Any]) -> Iterator[str]:
    yield "## Table 4, with intervals\n"
    yield TABLE
    for name, summary in summaries.items():
        yield f"### {name}\n"
        yield task_table(summary, name).to_markdown()
        yield f"Lowest on {name}: {'; '.join(lowest(summary, name))}.\n"


def lowest(summary: Mapping[str, Any], task: str) -> Iterator[str]:
    rows = [row for row in summary.results if (row.task, row.test_on) == (task, "")]
    for metric in ("nll", "ece", "ba_ece", "ace"):
        best = min(rows, key=lambda row: row.metrics[metric].value)
        yield f"{TITLES[metric]} {best.pipeline} ({best.metrics[metric].value:.4f})"


def matched(summaries: Mapping[str, Any]) -> Iterator[str]:
    yield MATCHED
    for summary in summaries.values():
        yield "\n".join(f"- {each.sentence}" for each in summary.comparisons) + "\n"
    yield "### In short\n"
    yield from claims(summaries)
    yield AGREEMENT
    theirs = {name: paper.RESULTS[paper.COUNTERPART[name]] for name in summaries}
    yield from agreement({name: (summary, theirs[name], "") for name, summary in summaries.items()})


def offsets(folder: Path, summaries: Mapping[str, Any]) -> Iterator[str]:
    yield "## Offsets (Tables 3 and 5)\n"
    paths = {name: folder / name / "studies" / "offsets.json" for name in summaries}
    found = {name: json.loads(path.read_text("utf-8"))["tasks"][name] for name, path in paths.items() if path.is_file()}
    if found:
        yield offset_tables(OffsetsData(found))["table5_offsets"].to_markdown()
    theirs = ", ".join(f"{dataset} {value}" for dataset, value in paper.OFFSETS.items())
    yield f"The paper's means with M = 5: {theirs}; that of BraTS is what padding alone would give.\n"


def tables(folder: Path, title: str, stem: str, summaries: Mapping[str, Any], words: Any) -> Iterator[str]:
    """Yield a section with the table of each task that has it, and a sentence on each."""
    paths = {name: folder / name / "tables" / stem.format(name) for name in summaries}
    paths = {name: path for name, path in paths.items() if path.is_file()}
    if paths:
        yield f"{title}\n"
    for name, path in paths.items():
        yield path.read_text("utf-8")
        yield from words(folder / name, name)


def binning(summaries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of each task that has every number of bins."""
    known = {name: summary for name, summary in summaries.items() if "ece_20" in summary.metrics}
    if known:
        yield "## Binning\n"
    for summary in known.values():
        yield from (table.to_markdown() for table in binning_tables(summary_binning(summary)).values())


def nothing(folder: Path, name: str) -> Iterator[str]:
    yield from ()


def flip_words(folder: Path, name: str) -> Iterator[str]:
    found = json.loads((folder / "studies" / "flips.json").read_text("utf-8"))["tasks"][name].get("ms(mean_logits)")
    if found is None:
        return
    total = max(found["harmful"] + found["beneficial"] + found["neutral"], 1)
    shares = [100 * found[kind] / total for kind in ("harmful", "beneficial", "neutral")]
    theirs = paper.FLIPS.get(paper.COUNTERPART[name])
    text = (
        f"{name}: of the {total:,} flips of ms(mean_logits) {shares[0]:.1f} % are right to wrong, {shares[1]:.1f} % "
        f"wrong to right and {shares[2]:.1f} % wrong to wrong"
    )
    yield text + (f" (paper: {theirs[0]} % and {theirs[1]} %).\n" if theirs else ".\n")


def shift(folder: Path) -> Iterator[str]:
    place = folder / SHIFT
    if not (place / "summary.json").is_file():
        return
    summary = read_summary(place)
    yield "## Corrupted images (Tables 6 and 7)\n"
    yield (
        "Calibrators are fitted on clean predictions and tested on predictions of corrupted copies of those test "
        f"images that have one; divisions of the cases: {summary.repeats}.\n"
    )
    yield from (f"{note[0].upper()}{note[1:]}: those are not in the tables.\n" for note in summary.notes)
    for stem in ("table6_corruptions", "shift_camvid", "covariate_shift"):
        path = place / "tables" / f"{stem}.md"
        if path.is_file():
            yield path.read_text("utf-8")
    yield "\n".join(f"- {each.sentence}" for each in summary.comparisons if each.test_on) + "\n"
    yield from agreement({f"camvid_{each}": (summary, paper.SHIFTED[each], f"camvid_{each}") for each in paper.SHIFTED})


def padding(folder: Path) -> Iterator[str]:
    path = folder / PADDING / "tables" / "padding.md"
    if path.is_file():
        yield "## Padding read as logits\n"
        yield "On the embedded task `tumour`: logits outside the crop are (1, 0, ..., 0), and count or do not.\n"
        yield path.read_text("utf-8")


if __name__ == "__main__":
    main()
