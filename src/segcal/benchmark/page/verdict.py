"""The verdict in plain language, every sentence made from the numbers: before, done, changed, mask, limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from segcal.benchmark.page.words import calibrator_words
from segcal.studies.facts import Change, Facts, Honesty

# Less than this between confidence and accuracy is not worth a word: 0.1 points.
NEGLIGIBLE = 0.001
# Between a number and its unit, so that no line ends there.
GLUE = "\N{NO-BREAK SPACE}"
FEW_CASES = 20
MEASURED = {
    "ece": "the calibration error (average gap between confidence and accuracy)",
    "ba_ece": "the same gap weighted towards the edges of structures",
    "nll": "the loss (which punishes confident mistakes)",
}
SHIFTED = {"better": "still helps", "worse": "does harm", "same": "makes no measurable difference"}
ON_AVERAGE = (
    "Honest on average does not mean right: a voxel with 90 % confidence is still wrong one time in ten, and a single "
    "case can deviate. See the cases below, the worst first."
)
SPREAD = "Intervals describe the spread over these test cases, not over cases of another kind."
SEEN = "Measured on cases that the calibrator was fitted to: this says little about new cases."
EFFECTS = {"better": "improved", "worse": "became worse", "same": "did not measurably change"}


@dataclass(frozen=True)
class Verdict:
    """What is to be said about one task, in the order in which it is read.

    Attributes:
        headline: one sentence.
        tone: "better", "worse", "mixed", "same", or "measured" if nothing was calibrated.
        before: what was wrong with the confidences.
        done: what was done about it.
        changed: what it changed, one sentence a measure.
        mask: whether the mask changed.
        limits: what it cannot promise.
    """

    headline: str
    tone: str
    before: str
    done: str
    changed: list[str] = field(default_factory=list)
    mask: str = ""
    limits: list[str] = field(default_factory=list)


def make_verdict(facts: Facts, division: dict[str, Any], shifted: Sequence[Facts] = ()) -> Verdict:
    """Return the verdict on a task.

    Args:
        facts: of its test cases.
        division: cal, val and test: how many cases had which part; repeats; level; why the calibrator was chosen; and
            seen: how many of the test cases had a part in the fit, 0 if it is not given.
        shifted: facts of the same calibrator on other tasks.
    """
    keeps = facts.chosen.preserves is not None
    effects = {name: effect_of(change) for name, change in facts.change.items() if name in MEASURED}
    tone = _tone(effects, facts)
    seen = division.get("seen", 0)
    return Verdict(
        headline=SEEN if seen else _headline(tone, facts, "same" in effects.values()),
        tone="measured" if seen else tone,
        before=_before(facts),
        done=_done(facts, division),
        changed=_changed(facts, division["level"], division["repeats"]),
        mask=_mask(facts, keeps),
        limits=_limits(facts, division, shifted),
    )


def measured_verdict(before: Honesty, division: dict[str, Any]) -> Verdict:
    """Return the verdict on confidences that were measured and not calibrated."""
    gap = before.confidence - before.accuracy
    word = "is overconfident" if gap > 0 else "is underconfident"
    headline = f"The model {word} by {100 * abs(gap):.1f} points on average."
    if abs(gap) < NEGLIGIBLE:
        headline = "On average the model is as sure as it is right."
    done = (
        f"Nothing was changed: {division['test']} cases with known truth were measured. segcal fit fits a calibrator."
    )
    return Verdict(headline, "measured", f"The model {_judged(before)}", done, limits=[ON_AVERAGE, SPREAD])


def effect_of(change: Change, better: str = "lower") -> str:
    """Return "better" or "worse" if the whole interval lies on one side of zero, and else "same"."""
    gap = change.difference
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return "same"
    return "better" if (gap.high < 0) == (better == "lower") else "worse"


def _tone(effects: dict[str, str], facts: Facts) -> str:
    if facts.chosen.calibrator == "identity":
        return "same"
    found = set(effects.values())
    if {"better", "worse"} <= found:
        return "mixed"
    return "better" if "better" in found else "worse" if "worse" in found else "same"


def _headline(tone: str, facts: Facts, partly: bool) -> str:
    if facts.chosen.calibrator == "identity":
        return "Nothing better was found: on validation cases no calibrator was measurably better than none."
    texts = {
        "better": f"The confidences became more honest{' by some measures' if partly else ''}",
        "worse": f"Calibration made the confidences worse{' by some measures' if partly else ''}",
        "mixed": "Calibration helped by some measures and hurt by others",
        "same": "Calibration made no measurable difference",
    }
    flips = facts.chosen_flips
    if flips.total == 0:
        return f"{texts[tone]}, and the mask did not change."
    return f"{texts[tone]}, and the mask changed in {_percent(flips.total / flips.voxels)} of the voxels."


def _before(facts: Facts) -> str:
    text = f"Before calibration the model {_judged(facts.everywhere)}"
    if facts.boundary is not None:
        text += f" Less than 3 voxels from the edge of a structure it {_judged(facts.boundary)}"
    return text


def _judged(honesty: Honesty) -> str:
    gap = honesty.confidence - honesty.accuracy
    pair = f"was {_percent(honesty.confidence)} sure on average and right in {_percent(honesty.accuracy)} of the voxels"
    if abs(gap) < NEGLIGIBLE:
        return f"{pair}: on average as sure as it was right."
    word = "overconfident" if gap > 0 else "underconfident"
    return f"{pair}: {word} by {100 * abs(gap):.1f} points."


def _done(facts: Facts, division: dict[str, Any]) -> str:
    name = facts.chosen.calibrator
    if name == "identity":
        return f"Calibrators were fitted on {division['cal']} cases and compared on {division['val']} others."
    chosen = f" It was chosen {division['chosen']}." if division["chosen"] else ""
    again = f", {division['repeats']} times over with other divisions" if division["repeats"] > 1 else ""
    tested = f"{division['test']} test cases that had no part in the fit they judge{again}"
    if division.get("seen", 0):
        tested = (
            f"{division['test']} cases, of which {division['seen']} had a part in the fit: hold cases out to judge it"
        )
    return (
        f"A calibrator, {calibrator_words(name)} ({name}), was fitted on {division['cal']} cases with known truth."
        f"{chosen} Everything below was measured on {tested}."
    )


def _changed(facts: Facts, level: float, repeats: int) -> list[str]:
    if facts.chosen.calibrator == "identity":
        return []
    sentences = [_change(name, facts.change[name], level, repeats) for name in MEASURED if name in facts.change]
    after, before = facts.everywhere_after, facts.everywhere
    if after is not None:
        sentences.append(
            f"On average the calibrated model is {_percent(after.confidence)} sure and right in "
            f"{_percent(after.accuracy)} of the voxels (before: {_percent(before.confidence)} sure)."
        )
    return [sentence for sentence in sentences if sentence]


def _change(name: str, change: Change, level: float, repeats: int) -> str:
    gap = change.difference
    if change.before is None or change.after is None or gap.value is None:
        return ""
    words = f"{MEASURED[name][0].upper()}{MEASURED[name][1:]} {EFFECTS[effect_of(change)]}"
    text = f"{words}: {_shown(name, change.before)} → {_shown(name, change.after)}"
    again = f", counted in each of {repeats} divisions" if repeats > 1 else ""
    counts = f"better in {gap.better} of {gap.cases} test cases{again}"
    if gap.low is None or gap.high is None:
        return f"{text} ({counts})."
    low = _shown(name, gap.low, True).removesuffix(f"{GLUE}points")
    ends = f"{low} to {_shown(name, gap.high, True)}"
    return f"{text} (change {_shown(name, gap.value, True)}; {100 * level:g} % interval {ends}; {counts})."


def _mask(facts: Facts, keeps: bool) -> str:
    flips = facts.chosen_flips
    if flips.total == 0 and keeps:
        return (
            f"The mask did not change: 0 of {flips.voxels:,} voxels. With this calibrator it cannot change, whatever "
            "the input: that is built into its formula."
        )
    if flips.total == 0:
        return f"The mask did not change here: 0 of {flips.voxels:,} voxels. This calibrator does not promise it."
    harmful, beneficial, neutral = flips.flips
    return (
        f"The mask changed in {flips.total:,} of {flips.voxels:,} voxels ({_percent(flips.total / flips.voxels)}): "
        f"{beneficial:,} became right, {harmful:,} became wrong, {neutral:,} stayed wrong. This calibrator does not "
        "promise to keep the mask."
    )


def _limits(facts: Facts, division: dict[str, Any], shifted: Sequence[Facts]) -> list[str]:
    limits = [ON_AVERAGE]
    after = facts.boundary_after
    if after is not None and abs(after.confidence - after.accuracy) >= NEGLIGIBLE:
        limits.append(f"Less than 3 voxels from the edge of a structure, the model after calibration {_judged(after)}")
    for each in shifted:
        change = each.change.get("ece")
        if change is not None and change.before is not None and change.after is not None:
            limits.append(
                f"On {each.task}, without fitting again, the calibration error is {_shown('ece', change.after)} "
                f"({_shown('ece', change.before)} without calibration): there, calibration "
                f"{SHIFTED[effect_of(change)]}."
            )
    if not shifted:
        limits.append(
            "Data from another scanner, hospital, camera or season was not tested here; honesty does not carry over by "
            "itself."
        )
    if division["test"] < FEW_CASES:
        limits.append(f"{division['test']} test cases are few: the intervals are wide, and rare failures are not seen.")
    limits.append(SPREAD)
    return limits


def _percent(share: float) -> str:
    """Return a share in per cent, with enough digits that neither end is claimed falsely."""
    for digits in (1, 2, 3):
        text = f"{100 * share:.{digits}f}"
        if share in (0, 1) or float(text) not in (0, 100):
            return f"{text}{GLUE}%"
    return f"{100 * share:.3g}{GLUE}%" if share < 0.5 else f"more than 99.999{GLUE}%"


def _shown(name: str, value: float, sign: bool = False) -> str:
    mark = "+" if sign else ""
    text = f"{value:{mark}.4f}" if name == "nll" else f"{100 * value:{mark}.2f}{GLUE}{'points' if sign else '%'}"
    return text.replace("-", "\N{MINUS SIGN}")
