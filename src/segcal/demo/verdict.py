"""The verdict of the demonstration in words, every sentence made from the numbers; it can say "no difference"."""

from typing import Any

from segcal.studies.study import Outcome as Study
from segcal.studies.facts import Change, Facts, Honesty

# Less than this between confidence and accuracy is not worth a word: 0.1 points.
NEGLIGIBLE = 0.001
EFFECTS = ("improves", "worsens", "does not measurably change")
TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "dice": "Dice"}


def task_verdict(facts: Facts) -> list[str]:
    """Return what is to be said about a task."""
    return [_before(facts), _default(facts), _mask(facts), *_matrix(facts)]


def shift_verdict(clean: Facts, shifted: Facts) -> str:
    """Return what becomes of the same calibrator on corrupted copies of the cases."""
    values = [facts.change["ece"] for facts in (clean, shifted)]
    parts = [f"{_number(one.before)} without and {_number(one.after)} with {clean.chosen.calibrator}" for one in values]
    return (
        f"{shifted.task}: ECE {parts[1]}, fitted on clean cases (clean: {parts[0]}). Under this shift "
        f"{clean.chosen.calibrator} {_effect(shifted.change['ece'], 'lower')} ECE and "
        f"{_effect(shifted.change['nll'], 'lower')} NLL."
    )


def padding_verdict(study: Study) -> str:
    """Return what padding does, if nobody looks."""
    data: dict[str, Any] = study.data
    plain, check = data["calibrators"]["identity"], data["check"]
    before, after = (plain[way]["ece"]["value"] for way in ("masked", "unmasked"))
    text = (
        f"padding: taking the filled outside of the crop ({100 * check['mean_share']:.0f} % of the voxels) for "
        f"logits turns an uncalibrated ECE of {_number(before)} into {_number(after)}"
    )
    if {"masked", "unmasked"} <= set(data["temperature"]):
        low, high = data["temperature"]["unmasked"], data["temperature"]["masked"]
        text += f" and the fitted temperature from {high:.2f} to {low:.2f}"
    return f"{text}; segcal check reports it in {check['caught']} of {check['cases']} cases."


def _before(facts: Facts) -> str:
    text = f"{facts.task}: before calibration the ensemble {_judged(facts.everywhere)}"
    if facts.boundary is not None:
        text += f"; less than 3 voxels from a boundary it {_judged(facts.boundary)}"
    if facts.offset is not None:
        text += f". The offset of its logits varies by {facts.offset:.2f} (standard deviation) within a case"
    return text + "."


def _default(facts: Facts) -> str:
    name = facts.chosen.calibrator
    if name == "identity":
        return f"{facts.task}: on the validation cases no calibrator was better than none, so none would be taken."
    said: dict[str, list[str]] = {}
    for metric, change in facts.change.items():
        if metric != "dice":
            counts = f"better in {change.difference.better} of {change.difference.cases} cases"
            text = (
                f"{TITLES[metric]} {_number(change.before)} -> {_number(change.after)} ({_interval(change)}, {counts})"
            )
            said.setdefault(_effect(change, "lower"), []).append(text)
    ordered = [effect for effect in EFFECTS if effect in said]
    parts = "; ".join(f"{effect} {', '.join(said[effect])}" for effect in ordered)
    ace = f"ACE {_number(facts.ace[0])} -> {_number(facts.ace[1])}"
    return f"{facts.task}: the default calibrator, {name}, {parts}. {ace}."


def _mask(facts: Facts) -> str:
    flips = facts.chosen_flips
    if flips.total == 0:
        return f"{facts.task}: the mask did not change: 0 of {flips.voxels:,} voxels."
    return f"{facts.task}: the mask changed in {flips.total:,} of {flips.voxels:,} voxels."


def _matrix(facts: Facts) -> list[str]:
    flips = facts.matrix_flips
    if flips is None:
        return []
    if flips.total == 0 or flips.near is None:
        return [f"{facts.task}: matrix scaling would have flipped no label."]
    harmful, beneficial, neutral = (100 * count / flips.total for count in flips.flips)
    dice = facts.matrix_change["dice"]
    gap = dice.difference
    points = "undefined" if gap.value is None else f"{100 * gap.value:+.2f} points"
    return [
        f"{facts.task}: matrix scaling would have flipped {flips.total:,} labels "
        f"({100 * flips.total / flips.voxels:.2f} %): "
        f"{harmful:.0f} % right to wrong, {beneficial:.0f} % wrong to right, {neutral:.0f} % wrong to wrong; "
        f"{100 * flips.near:.0f} % of them less than 3 voxels from a boundary. It {_effect(dice, 'higher')} Dice "
        f"({points} [{_end(gap.low)}, {_end(gap.high)}])."
    ]


def _judged(honesty: Honesty) -> str:
    gap = honesty.confidence - honesty.accuracy
    pair = f"{100 * honesty.confidence:.1f} % sure and {100 * honesty.accuracy:.1f} % right"
    if abs(gap) < NEGLIGIBLE:
        return f"was as sure as it was right on average ({pair})"
    return f"was {'over' if gap > 0 else 'under'}confident by {100 * abs(gap):.1f} points ({pair})"


def _effect(change: Change, better: str) -> str:
    """Return what a change amounts to: its whole interval must lie on one side of zero."""
    gap = change.difference
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return "does not measurably change"
    return "improves" if (gap.high < 0) == (better == "lower") else "worsens"


def _interval(change: Change) -> str:
    gap = change.difference
    if gap.value is None or gap.low is None or gap.high is None:
        return "undefined"
    return f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _end(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:+.2f}"
