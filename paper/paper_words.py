"""The paper's claims and verdicts beside ours, in tables and sentences made from the numbers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from paper import paper_numbers as paper

TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE", "dice": "DSC"}


def claims(summaries: Mapping[str, Any]) -> Iterator[str]:
    """Yield, for each of the paper's claims, how often our comparisons say so."""
    texts = {
        "translation invariance": "Translation invariance (the paper: helps or does no harm)",
        "decision preservation": "Keeping the decision (the paper: saves Dice, costs calibration if C = 2)",
        "curves that see their surroundings": "Conic scaling (ours; against `ts`, `cms_ap`, by class against shared)",
    }
    for about, text in texts.items():
        found = []
        for name, summary in summaries.items():
            pairs = [each.metrics for each in summary.comparisons if each.about == about and not each.test_on]
            errors = Counter(each[metric].verdict for each in pairs for metric in TITLES if metric != "dice")
            dice = Counter(each["dice"].verdict for each in pairs)
            found.append(
                f"{name}: calibration metrics better in {errors['better']}, worse in {errors['worse']} of "
                f"{sum(errors.values())} comparisons, Dice better in {dice['better']}, worse in {dice['worse']} of "
                f"{sum(dice.values())}"
            )
        yield f"- {text}. {'; '.join(found)}."
    gains = []
    for name, summary in summaries.items():
        rows = {row.pipeline: row.metrics for row in summary.results if not row.test_on}
        values = [100 * rows[f"identity({how})"]["dice"].value for how in ("single", "mean_probs", "mean_logits")]
        gains.append(
            f"{name} {values[0]:.1f} alone, {values[1]:.1f} and {values[2]:.1f} as mean of probs and of logits"
        )
    yield f"- Pooling (the paper: improves Dice). Dice in %: {'; '.join(gains)}.\n"


def agreement(places: Mapping[str, tuple[Mapping[str, Any], paper.Rows, str]]) -> Iterator[str]:
    """Yield a table and a sentence: the paper's verdicts beside ours, for each task or corrupted copy."""
    yield "| where | comparison | " + " | ".join(TITLES.values()) + " |"
    yield "|---|---|" + "---|" * len(TITLES)
    counts: dict[str, Counter[str]] = {}
    for name, (summary, rows, target) in places.items():
        counts[name] = Counter()
        for each in summary.comparisons:
            if each.test_on != target or each.first not in rows or each.second not in rows:
                continue
            cells = []
            for metric in TITLES:
                theirs = paper.verdict(rows, each.first, each.second, metric)
                ours = each.metrics[metric].verdict
                outcome = judge(theirs, ours)
                counts[name][outcome] += 1
                text = f"{theirs} → {ours}"
                cells.append(f"**{text}**" if outcome == "opposite" else text)
            yield f"| {name} | {each.second} against {each.first} | {' | '.join(cells)} |"
    yield "\nThe paper's → ours; opposite ones in bold.\n"
    for name, found in counts.items():
        yield (
            f"- {name}: of {sum(found.values())} verdicts {found['agrees']} agree, {found['not confirmed']} of the "
            f"paper's differences are none here, {found['only here']} are differences only here, and "
            f"{found['opposite']} are opposite."
        )
    yield ""


def judge(theirs: str, ours: str) -> str:
    if ours == "no difference":
        return "agrees" if theirs == "same" else "not confirmed"
    if theirs == "same":
        return "only here"
    return "agrees" if theirs == ours else "opposite"
