"""The verdict in plain language, every sentence made from the numbers; it can say "worse" and "no difference".

The page has the long form (:func:`make_verdict`), for readers who know no statistics: before, done, changed, mask,
limits. A terminal has the short form (:func:`short_verdict`, :func:`shift_sentence`), for those who do.
"""

from collections.abc import Sequence

import msgspec

from segcal.report.facts import Change, Effect, Facts, Honesty, PartCounts

# Between a number and its unit, so that no line ends there.
GLUE = "\N{NO-BREAK SPACE}"
FEW_CASES = 20
MEASURED = {
    "ece": "the calibration error (average gap between confidence and accuracy)",
    "ba_ece": "the same gap weighted towards the edges of structures",
    "nll": "the loss (which punishes confident mistakes)",
}
EFFECTS = {"better": "improved", "worse": "became worse", "same": "did not measurably change"}
SHIFTED = {"better": "still helps", "worse": "does harm", "same": "makes no measurable difference"}
ON_AVERAGE = (
    "Honest on average does not mean right: a voxel with 90 % confidence is still wrong one time in ten, and a single "
    "case can deviate. See the cases below, the worst first."
)
SPREAD = "Intervals describe the spread over these test cases, not over cases of another kind."
SEEN = "Measured on cases that the calibrator was fitted to: this says little about new cases."
# Of the short form, in the order in which they are said.
SHORT_EFFECTS = {"better": "improves", "worse": "worsens", "same": "does not measurably change"}
SHORT_TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "dice": "Dice"}


class Verdict(msgspec.Struct, frozen=True):
    """The sentences on one task, in the order in which they are read.

    Its tone is "better", "worse", "mixed", "same", or "measured" if nothing was calibrated.
    """

    headline: str
    tone: str
    before: str
    done: str
    changed: list[str] = []
    mask: str = ""
    limits: list[str] = []


def make_verdict(
    facts: Facts, division: PartCounts, level: float, why: str = "", shifted: Sequence[Facts] = ()
) -> Verdict:
    """Return the verdict on a task, with intervals of this level.

    `why` says how the calibrator was chosen; `shifted` are facts of the same calibrator on other tasks.
    """
    effects = {change.effect() for name, change in facts.change.items() if name in MEASURED}
    tone = _tone(effects, facts)
    near = ""
    if facts.boundary is not None:
        near = f" Less than 3 voxels from the edge of a structure it {_judged(facts.boundary)}"
    return Verdict(
        headline=SEEN if division.seen else _headline(tone, facts, "same" in effects),
        tone="measured" if division.seen else tone,
        before=f"Before calibration the model {_judged(facts.everywhere)}{near}",
        done=_done(facts, division, why),
        changed=_changed(facts, level, division.repeats),
        mask=_mask(facts),
        limits=_limits(facts, division, shifted),
    )


def measured_verdict(before: Honesty, cases: int) -> Verdict:
    """Return the verdict on confidences that were measured and not calibrated."""
    told = f"The model is {before.judged} on average."
    headline = told if before.judged else "On average the model is as sure as it is right."
    done = f"Nothing was changed: {cases} cases with known truth were measured. segcal fit fits a calibrator."
    return Verdict(headline, "measured", f"The model {_judged(before)}", done, limits=[ON_AVERAGE, SPREAD])


def _tone(effects: set[Effect], facts: Facts) -> str:
    if facts.calibrator == "identity":
        return "same"
    if {"better", "worse"} <= effects:
        return "mixed"
    return "better" if "better" in effects else "worse" if "worse" in effects else "same"


def _headline(tone: str, facts: Facts, partly: bool) -> str:
    if facts.calibrator == "identity":
        return "Nothing better was found: on validation cases no calibrator was measurably better than none."
    some = " by some measures" if partly else ""
    text = {
        "better": f"The confidences became more honest{some}",
        "worse": f"Calibration made the confidences worse{some}",
        "mixed": "Calibration helped by some measures and hurt by others",
        "same": "Calibration made no measurable difference",
    }[tone]
    changed = (
        f"changed in {_percent(facts.flips.total / facts.flips.voxels)} of the voxels" if facts.flips.total else ""
    )
    return f"{text}, and the mask {changed or 'did not change'}."


def _judged(honesty: Honesty) -> str:
    pair = f"was {_percent(honesty.confidence)} sure on average and right in {_percent(honesty.accuracy)} of the voxels"
    return f"{pair}: {honesty.judged or 'on average as sure as it was right'}."


def _done(facts: Facts, division: PartCounts, why: str) -> str:
    if facts.calibrator == "identity":
        return f"Calibrators were fitted on {division.cal} cases and compared on {division.val} others."
    chosen = f" It was chosen {why}." if why else ""
    again = f", {division.repeats} times over with other divisions" if division.repeats > 1 else ""
    tested = f"{division.test} test cases that had no part in the fit they judge{again}"
    if division.seen:
        tested = f"{division.test} cases, of which {division.seen} had a part in the fit: hold cases out to judge it"
    return (
        f"A calibrator, {facts.title} ({facts.calibrator}), was fitted on {division.cal} cases with known truth."
        f"{chosen} Everything below was measured on {tested}."
    )


def _changed(facts: Facts, level: float, repeats: int) -> list[str]:
    if facts.calibrator == "identity":
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
    words = f"{MEASURED[name][0].upper()}{MEASURED[name][1:]} {EFFECTS[change.effect()]}"
    text = f"{words}: {_shown(name, change.before)} → {_shown(name, change.after)}"
    again = f", counted in each of {repeats} divisions" if repeats > 1 else ""
    counts = f"better in {gap.better} of {gap.cases} test cases{again}"
    if gap.low is None or gap.high is None:
        return f"{text} ({counts})."
    low = _shown(name, gap.low, True).removesuffix(f"{GLUE}points")
    ends = f"{low} to {_shown(name, gap.high, True)}"
    return f"{text} (change {_shown(name, gap.value, True)}; {100 * level:g} % interval {ends}; {counts})."


def _mask(facts: Facts) -> str:
    flips = facts.flips
    if flips.total == 0 and facts.keeps:
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


def _limits(facts: Facts, division: PartCounts, shifted: Sequence[Facts]) -> list[str]:
    limits = [ON_AVERAGE]
    after = facts.boundary_after
    if after is not None and after.judged:
        limits.append(f"Less than 3 voxels from the edge of a structure, the model after calibration {_judged(after)}")
    for each in shifted:
        change = each.change.get("ece")
        if change is not None and change.before is not None and change.after is not None:
            limits.append(
                f"On {each.task}, without fitting again, the calibration error is {_shown('ece', change.after)} "
                f"({_shown('ece', change.before)} without calibration): there, calibration {SHIFTED[change.effect()]}."
            )
    if not shifted:
        limits.append(
            "Data from another scanner, hospital, camera or season was not tested here; honesty does not carry over by "
            "itself."
        )
    if division.test < FEW_CASES:
        limits.append(f"{division.test} test cases are few: the intervals are wide, and rare failures are not seen.")
    return [*limits, SPREAD]


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


def short_verdict(facts: Facts) -> list[str]:
    """Return the verdict on a task for a terminal."""
    text = f"before calibration the ensemble {_judged_shortly(facts.everywhere)}"
    if facts.boundary is not None:
        text += f"; less than 3 voxels from a boundary it {_judged_shortly(facts.boundary)}"
    if facts.offset is not None:
        text += f". The offset of its logits varies by {facts.offset:.2f} (standard deviation) within a case"
    flips = facts.flips
    mask = f"changed in {flips.total:,}" if flips.total else "did not change: 0"
    sentences = [f"{text}.", _default(facts), f"the mask {mask} of {flips.voxels:,} voxels.", *_matrix(facts)]
    return [f"{facts.task}: {sentence}" for sentence in sentences]


def shift_sentence(clean: Facts, shifted: Facts) -> str:
    """Return what becomes of the same calibrator on corrupted copies of the cases."""
    name = clean.calibrator
    values = [facts.change["ece"] for facts in (clean, shifted)]
    parts = [f"{short_number(one.before)} without and {short_number(one.after)} with {name}" for one in values]
    effects = {metric: SHORT_EFFECTS[shifted.change[metric].effect()] for metric in ("ece", "nll")}
    return (
        f"{shifted.task}: ECE {parts[1]}, fitted on clean cases (clean: {parts[0]}). Under this shift "
        f"{name} {effects['ece']} ECE and {effects['nll']} NLL."
    )


def short_number(value: float | None) -> str:
    """Return a number with four digits."""
    return "undefined" if value is None else f"{value:.4f}"


def _judged_shortly(honesty: Honesty) -> str:
    pair = f"{100 * honesty.confidence:.1f} % sure and {100 * honesty.accuracy:.1f} % right"
    return f"was {honesty.judged or 'as sure as it was right on average'} ({pair})"


def _default(facts: Facts) -> str:
    if facts.calibrator == "identity":
        return "on the validation cases no calibrator was better than none, so none would be taken."
    said: dict[str, list[str]] = {}
    for metric, change in facts.change.items():
        if metric != "dice":
            gap = change.difference
            interval = "undefined"
            if gap.value is not None and gap.low is not None and gap.high is not None:
                interval = f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            pair = f"{short_number(change.before)} -> {short_number(change.after)}"
            counts = f"better in {gap.better} of {gap.cases} cases"
            said.setdefault(change.effect(), []).append(f"{SHORT_TITLES[metric]} {pair} ({interval}, {counts})")
    parts = "; ".join(f"{words} {', '.join(said[effect])}" for effect, words in SHORT_EFFECTS.items() if effect in said)
    ace = f"ACE {short_number(facts.ace[0])} -> {short_number(facts.ace[1])}"
    return f"the default calibrator, {facts.calibrator}, {parts}. {ace}."


def _matrix(facts: Facts) -> list[str]:
    flips = facts.matrix_flips
    if flips is None:
        return []
    if flips.total == 0 or flips.near is None:
        return ["matrix scaling would have flipped no label."]
    harmful, beneficial, neutral = (100 * count / flips.total for count in flips.flips)
    dice = facts.matrix_change["dice"]
    gap = dice.difference
    points = "undefined" if gap.value is None else f"{100 * gap.value:+.2f} points"
    low, high = ("?" if end is None else f"{100 * end:+.2f}" for end in (gap.low, gap.high))
    return [
        f"matrix scaling would have flipped {flips.total:,} labels ({100 * flips.total / flips.voxels:.2f} %): "
        f"{harmful:.0f} % right to wrong, {beneficial:.0f} % wrong to right, {neutral:.0f} % wrong to wrong; "
        f"{100 * flips.near:.0f} % of them less than 3 voxels from a boundary. It "
        f"{SHORT_EFFECTS[dice.effect('higher')]} Dice ({points} [{low}, {high}])."
    ]
