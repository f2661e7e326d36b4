"""The paper's claims and verdicts beside ours, as rows of the board."""

from collections import Counter
from collections.abc import Iterator, Mapping

from paper import paper_numbers as paper
from paper.board import Row, counted, measured
from segcal.summary import Comparison, Summary

TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE", "dice": "DSC, points"}
ABOUT = {
    "translation invariance": "translation invariance",
    "decision preservation": "keeping the decision",
    "curves that see their neighbourhood": "conic scaling",
}
OUTCOMES = {
    "agrees": "agree",
    "not confirmed": "differences of the paper that are none here",
    "only here": "differences only here",
    "opposite": "opposite",
}


def comparisons(summary: Summary, rows: Mapping[str, paper.Rows]) -> Iterator[Row]:
    """Yield the paired differences of a summary, with what the paper's printed numbers say of each.

    Args:
        summary: of a benchmark.
        rows: what the paper prints, by the task or the corrupted copy.
    """
    for each in summary.comparisons:
        task = f"{each.task}, tested on {each.test_on}" if each.test_on else each.task
        theirs = rows.get(each.test_on or each.task, {})
        for metric, title in TITLES.items():
            one = each.metrics[metric]
            scale, form = (100, ".2f") if metric == "dice" else (1, ".4f")
            gap = one.difference
            note = f"{one.verdict}; better in {gap.better} and worse in {gap.worse} of {gap.cases} {one.of}"
            if {each.first, each.second} <= set(theirs):
                note += f"; the paper: {paper.verdict(theirs, each.first, each.second, metric)}"
            yield from measured(task, f"{each.second} against {each.first}", title, gap, form, scale, note)


def claims(task: str, found: list[Comparison]) -> Iterator[Row]:
    """Yield, for each of the paper's claims, how often our comparisons on a task say so."""
    for about, method in ABOUT.items():
        pairs = [each.metrics for each in found if each.about == about and not each.test_on]
        for title, metrics in (("calibration metrics", [m for m in TITLES if m != "dice"]), ("Dice", ["dice"])):
            verdicts = Counter(each[metric].verdict for each in pairs for metric in metrics)
            counts = {"better": verdicts["better"], "worse": verdicts["worse"], "compared": verdicts.total()}
            yield from counted(task, method, {f"{title} {word}": count for word, count in counts.items()})


def agreement(task: str, found: list[Comparison], rows: paper.Rows) -> Iterator[Row]:
    """Yield how often our verdicts are the paper's."""
    outcomes = Counter(
        judge(paper.verdict(rows, each.first, each.second, metric), each.metrics[metric].verdict)
        for each in found
        if {each.first, each.second} <= set(rows)
        for metric in TITLES
    )
    counts = {"verdicts": outcomes.total()} | {words: outcomes[outcome] for outcome, words in OUTCOMES.items()}
    yield from counted(task, "agreement with the paper", counts)


def judge(theirs: str, ours: str) -> str:
    if ours == "no difference":
        return "agrees" if theirs == "same" else "not confirmed"
    if theirs == "same":
        return "only here"
    return "agrees" if theirs == ours else "opposite"
