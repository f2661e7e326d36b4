"""Matched comparisons of pipelines, case by case: those of the paper, and those that a protocol asks for.

The paper's are of two pipelines that differ in one property, case by case:

- What does translation invariance do? Matrix scaling against its two TI forms; LTS on logits against log-probabilities.
- What does keeping the decision cost? CDC against CMS_ap and CMS_op, with each pooling.
- What do curves that see their surroundings add? Conic scaling against TS and CMS_ap, and by class against shared.

The second is compared with the first, metric by metric, in paired differences over the test cases of all repeats. It is
*better* or *worse* if the interval of the difference lies on one side of zero, and otherwise there is *no difference*.
That is a test of the mean difference at the level of the interval, one for each metric and pair: of many without any
difference, one in twenty is better or worse by chance.
A metric that pools voxels over cases (ACE) is better or worse if it is so in every repeat. That is no test: without any
difference three independent repeats agree in one of four, and repeats that share cases more often.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.errors import InputError
from segcal.metrics import Metric
from segcal.resample import Draws
from segcal.summary import TOO_FEW, Compared, Comparison, Difference, difference

# Pooling, the first calibrator, the second, and what the comparison is about.
PAIRS: tuple[tuple[str, str, str, str], ...] = (
    ("mean_logits", "ms", "ms_c", "translation invariance"),
    ("mean_logits", "ms", "dc", "translation invariance"),
    ("mean_logits", "lts", "lts_ti", "translation invariance"),
    ("mean_probs", "cdc", "cms_ap", "decision preservation"),
    ("mean_probs", "cdc", "cms_op", "decision preservation"),
    ("mean_logits", "cdc", "cms_ap", "decision preservation"),
    ("mean_logits", "cdc", "cms_op", "decision preservation"),
    *(
        (pooling, first, second, "curves that see their surroundings")
        for pooling in ("mean_probs", "mean_logits")
        for first, second in (("ts", "conic"), ("cms_ap", "conic"), ("conic", "conic_class"))
    ),
)
COMPARED = ("nll", "ece", "ba_ece", "ace", "dice")
SHORT = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE", "dice": "DSC"}
PERCENT = ("dice",)
# What a comparison is about that a protocol asks for.
ASKED = "asked for"


def find_pipeline(name: str, pipelines: Sequence[Pipeline]) -> str:
    """Return the title of the pipeline that is named: by its title, or by its calibrator where that is enough."""
    found = [each.title for each in pipelines if each.title == name]
    found = found or [each.title for each in pipelines if each.calibrator == name]
    if len(found) != 1:
        known = ", ".join(each.title for each in pipelines)
        how_many = "no pipeline is" if not found else f"{len(found)} pipelines are"
        raise InputError(f"compare names {name!r}, but {how_many} called so. Choose from: {known}.")
    return found[0]


def pairs_of(pipelines: Sequence[Pipeline], asked: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the pairs of which both pipelines are there: those that were asked for, by title, then the paper's."""
    titles = {each.title for each in pipelines}
    there = {(each.pooling, each.calibrator): each.title for each in pipelines if not each.options}
    found = {(one, other): ASKED for one, other in asked if {one, other} <= titles}
    for pooling, first, second, about in PAIRS:
        one, other = there.get((pooling, first)), there.get((pooling, second))
        if one is not None and other is not None:
            found.setdefault((one, other), about)
    return [(one, other, about) for (one, other), about in found.items()]


def compare(
    task: str,
    test_on: str,
    pairs: Sequence[tuple[str, str, str]],
    values: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
    pooled: Mapping[str, Mapping[str, Sequence[float | None]]],
    metrics: Mapping[str, Metric],
    draws: Draws,
    level: float,
) -> list[Comparison]:
    """Compare the two pipelines of each pair: first, second, and what the comparison is about.

    By title and metric, `values` are one array per repeat, one number per case, NaN where it is not defined, and
    `pooled` one number per repeat.
    """
    found = []
    for one, other, about in pairs:
        outcome = {}
        for name in (each for each in COMPARED if each in metrics):
            better = metrics[name].better or "lower"
            if metrics[name].pooled:
                outcome[name] = compare_repeats(pooled[one][name], pooled[other][name], better)
            else:
                gap = difference(values[one][name], values[other][name], draws, better, level)
                outcome[name] = Compared(gap.verdict(better), gap, "cases")
        where = f"{task} tested on {test_on}" if test_on else task
        sentence = f"{where}, {other} against {one}: {_in_words(outcome)}."
        found.append(Comparison(task, test_on, about, one, other, outcome, sentence))
    return found


def compare_repeats(
    first: Sequence[float | None], second: Sequence[float | None], better: Literal["lower", "higher"]
) -> Compared:
    """Compare a number that there is one of in each repeat; the interval is the range over repeats."""
    gaps = [b - a for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    undefined = len(first) - len(gaps)
    if not gaps:
        return Compared("not defined", Difference(None, None, None, 0, undefined, 0, 0, 0), "repeats")
    down, up = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    good, bad = (down, up) if better == "lower" else (up, down)
    gap = Difference(float(np.mean(gaps)), min(gaps), max(gaps), len(gaps), undefined, good, len(gaps) - down - up, bad)
    return Compared(gap.verdict(better), gap, "repeats")


def _in_words(metrics: Mapping[str, Compared]) -> str:
    parts = []
    for verdict in ("better", "worse"):
        listed = [_phrase(name, found) for name, found in metrics.items() if found.verdict == verdict]
        if listed:
            parts.append(f"{verdict} on {_joined(listed)}")
    same = [_phrase(name, found) for name, found in metrics.items() if found.verdict == "no difference"]
    if same:
        parts.append(f"no difference on {_joined(same)}" if parts else f"no difference on any metric: {_joined(same)}")
    for reason, valued in (("not defined", False), (TOO_FEW, True)):
        unknown = [
            SHORT.get(name, name)
            for name, found in metrics.items()
            if found.verdict == "not defined" and (found.difference.value is not None) == valued
        ]
        if unknown:
            parts.append(f"{reason}: {_joined(unknown)}")
    return "; ".join(parts)


def _phrase(name: str, found: Compared) -> str:
    gap = found.difference
    scale, digits, unit = (100, 2, " points") if name in PERCENT else (1, 4, "")
    assert gap.value is not None
    assert gap.low is not None
    assert gap.high is not None
    low, high = (f"{scale * end:+.{digits}f}" for end in (gap.low, gap.high))
    return (
        f"{SHORT.get(name, name)} ({scale * gap.value:+.{digits}f}{unit} [{low}, {high}], "
        f"better in {gap.better} and worse in {gap.worse} of {gap.cases} {found.of})"
    )


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
