"""Write the rows of the board that come from runs of ``segcal benchmark``: ``python -m paper.results_rows RESULTS``.

RESULTS has one folder per run: roads, cardiac, camvid, camvid_shift, more, selective and padding
(``paper/all_results.py`` makes them), and choice and transfer, whatever of them is there. A study whose folder is
absent keeps its rows. Folders that contradict each other are refused.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from paper import paper_numbers as paper
from paper.board import FOLDER, Row, counted, number, rows_of_markdown, rows_of_table, write_code, write_rows
from paper.choice_rows import choice
from paper.one_source import check_sources
from paper.paper_words import agreement, claims, comparisons
from paper.stamp import read_stamps
from paper.transfer_rows import parts, transfer
from segcal.errors import SegcalError
from segcal.report.board import board_rows
from segcal.report.paper_tables import SHOWN
from segcal.studies.binning import binning_tables, summary_binning
from segcal.studies.offsets import OffsetsData, offset_tables
from segcal.summary import Summary, read_summary

REAL = ("roads", "cardiac", "camvid")
SHIFT, PADDING, MORE, SELECTIVE, CHOICE, TRANSFER = "camvid_shift", "padding", "more", "selective", "choice", "transfer"
# The tables of the studies of `selective`, and what the titles of their rows are.
AXES = {
    "selective_figure5_regions": "",
    "selective_figure4_detection": "",
    "ensemble_size": "members: ",
    "crop_size": "crop: ",
    "test_scales": "scales: ",
}
Summaries = Mapping[str, Summary]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="the folder of the board")
    args = parser.parse_args()
    try:
        for name, (sources, rows) in studies(args.results).items():
            if found := list(rows):
                write_rows(name, found, args.output)
                write_code(name, read_stamps(args.results, sources), args.output)
                print(f"{name}: {len(found)} rows")
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def studies(folder: Path) -> dict[str, tuple[list[str], Iterator[Row]]]:
    """Return the folders that each study is made from, and its rows."""
    check_sources(folder, (*REAL, SHIFT, MORE))
    own = {name: found for name in REAL if (found := _summary(folder, name)) is not None}
    return {
        "table4": (list(own), results(own)),
        "matched": (list(own), (row for name, one in own.items() for row in comparisons(one, _printed(name)))),
        "agreement": (list(own), agreements(own)),
        "offsets": (list(own), offsets(folder, own)),
        "flips": (list(own), flips(folder, own)),
        "calibration_size": (list(own), sizes(folder, own)),
        "binning": (list(own), binning(own)),
        "corrupted": ([SHIFT], shift(folder)),
        "padding": ([PADDING], _files(folder / PADDING, ["padding"], "tumour")),
        "more": ([MORE], more(folder)),
        "where_error": ([SELECTIVE], where_error(folder)),
        "default": ([CHOICE], choice(folder / CHOICE)),
        "elsewhere": ([TRANSFER], transfer(folder / TRANSFER)),
        "rule_parts": ([TRANSFER], parts(folder / TRANSFER)),
    }


def _summary(folder: Path, name: str) -> Summary | None:
    return read_summary(folder / name) if (folder / name / "summary.json").is_file() else None


def _printed(name: str) -> dict[str, paper.Rows]:
    return {name: paper.RESULTS[paper.COUNTERPART[name]]}


def results(summaries: Summaries) -> Iterator[Row]:
    """Yield every metric of every pipeline, on the task that it was fitted on or on another."""
    for summary in summaries.values():
        yield from (msgspec.convert(cells, Row, strict=False) for cells in board_rows(summary))


def agreements(summaries: Summaries) -> Iterator[Row]:
    for name, summary in summaries.items():
        own = [each for each in summary.comparisons if not each.test_on]
        yield from agreement(name, own, _printed(name)[name])
        yield from claims(name, own)


def offsets(folder: Path, summaries: Summaries) -> Iterator[Row]:
    found = {}
    for name in summaries:
        path = folder / name / "studies" / "offsets.json"
        if path.is_file():
            found[name] = json.loads(path.read_text("utf-8"))["tasks"][name]
    if found:
        for row in rows_of_table(offset_tables(OffsetsData(found))["table5_offsets"]):
            metric = "cases" if row.metric == "n" else row.metric
            about = "free energy of the pooled logits"
            yield Row(row.method, about, metric, row.value, row.low, row.high, note=row.note)
        for dataset, value in paper.OFFSETS.items():
            yield Row(dataset, "the paper", "M = 5", number(value, ".2f"))


def _files(place: Path, stems: list[str], task: str = "") -> Iterator[Row]:
    """Yield the rows of tables of a folder of results."""
    for stem in stems:
        path = place / "tables" / f"{stem}.md"
        if path.is_file():
            yield from rows_of_markdown(path.read_text("utf-8"), task)


def flips(folder: Path, summaries: Summaries) -> Iterator[Row]:
    for name in summaries:
        yield from _files(folder / name, ["figure4_flips"])
        path = folder / name / "studies" / "flips.json"
        found = json.loads(path.read_text("utf-8"))["tasks"][name].get("ms(mean_logits)") if path.is_file() else None
        if found is not None:
            kinds = {"harmful": "right to wrong, %", "beneficial": "wrong to right, %", "neutral": "wrong to wrong, %"}
            total = sum(found[kind] for kind in kinds)
            yield from counted(name, "ms(mean_logits)", {"flips": total})
            for kind, title in kinds.items():
                yield Row(name, "ms(mean_logits)", title, number(100 * found[kind] / max(total, 1), ".1f"))


def sizes(folder: Path, summaries: Summaries) -> Iterator[Row]:
    """Yield the changes against the usual number of calibration cases; the groups of the tables are metrics."""
    for name in summaries:
        for row in _files(folder / name, [f"figure5_size_{name}"]):
            metric = f"{SHOWN[row.task].title} change, {row.metric}"
            yield Row(name, row.method, metric, row.value, row.low, row.high)


def binning(summaries: Summaries) -> Iterator[Row]:
    for summary in summaries.values():
        if "ece_20" in summary.metrics:
            for table in binning_tables(summary_binning(summary)).values():
                yield from rows_of_markdown(table.to_markdown())


def shift(folder: Path) -> Iterator[Row]:
    summary = _summary(folder, SHIFT)
    if summary is None:
        return
    yield from _files(folder / SHIFT, ["table6_corruptions"], "corruptions")
    yield from results({SHIFT: summary})
    yield from _files(folder / SHIFT, ["covariate_shift"])
    yield from comparisons(summary, {f"camvid_{name}": rows for name, rows in paper.SHIFTED.items()})
    for name, rows in paper.SHIFTED.items():
        own = [each for each in summary.comparisons if each.test_on == f"camvid_{name}"]
        yield from agreement(f"camvid_{name}", own, rows)


def more(folder: Path) -> Iterator[Row]:
    """Yield the calibrators that are not in the paper's table, and how well selective scaling finds mispredictions."""
    summary = _summary(folder, MORE)
    if summary is None:
        return
    yield from results({MORE: summary})
    for path in sorted((folder / MORE).glob("units/*/repeat_*/selective-*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            details = json.loads(next(lines))["certificate"]["details"]
        found, method = details["selector"], f"selective, repeat {int(path.parts[-2].split('_')[1]) + 1}"
        for key, title in (("mispredicted_share", "mispredicted, %"), ("flagged_share", "flagged, %")):
            yield Row(path.parts[-3], method, title, number(100 * found[key], ".1f"))
        for key, form in (("recall", ".2f"), ("precision", ".2f"), ("auroc", ".3f")):
            if found[key] is not None:
                yield Row(path.parts[-3], method, key, number(found[key], form))
        yield Row(path.parts[-3], method, "T of flagged voxels", number(details["temperature_wrong"], "g"))


def where_error(folder: Path) -> Iterator[Row]:
    summary = _summary(folder, SELECTIVE)
    if summary is None:
        return
    for task in summary.tasks:
        counts = {"calibration cases": task.cal[0], "validation cases": task.val[0], "test cases": task.test[0]}
        yield from counted(task.name, "division", counts)
    for stem, axis in AXES.items():
        for row in _files(folder / SELECTIVE, [stem]):
            yield Row(row.task, axis + row.method, row.metric, row.value, row.low, row.high, note=row.note)


if __name__ == "__main__":
    main()
