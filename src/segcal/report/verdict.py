"""The verdict in plain language, every sentence made from the numbers; it can say "worse" and "no difference".

Its readers know no statistics: before, done, changed, mask, limits. The numbers come from one evaluation or from a
benchmark, as :class:`Facts`. For those who do know, the demonstration has a shorter form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.errors import InputError
from segcal.evaluation.result import gap_in_words
from segcal.resample import FEW_GROUPS
from segcal.statistics.reliability import Curve
from segcal.summary import TOO_FEW, Difference

# Between a number and its unit, so that no line ends there.
GLUE = "\N{NO-BREAK SPACE}"
MEASURED = {
    "ece": "the calibration error (average gap between confidence and accuracy)",
    "ba_ece": "the same gap weighted towards the edges of structures",
    "nll": "the loss (which punishes confident mistakes)",
}
EFFECTS = {"better": "improved", "worse": "became worse", "same": "did not measurably change"}
SHIFTED = {"better": "still helps", "worse": "does harm", "same": "makes no measurable difference"}
ON_AVERAGE = (
    "Calibrated on average does not mean right: a voxel with 90 % confidence is still wrong one time in ten, and a "
    "single case can deviate. See the cases below, the worst first."
)
SPREAD = "Intervals describe the spread over these test cases, not over cases of another kind."
ELSEWHERE = (
    "Data from another scanner, hospital, camera or season was not tested here; "
    "calibration does not carry over by itself."
)
FEW = "Test cases are few ({}): intervals over so few are unreliable, and rare failures are not seen."
SEEN = "Measured on cases that the calibrator was fitted to: this says little about new cases."
Effect = Literal["better", "worse", "same"]


@dataclass(frozen=True)
class MeanCalibration:
    """Mean confidence and accuracy of some voxels."""

    confidence: float
    accuracy: float

    @classmethod
    def of(cls, curve: Curve) -> "MeanCalibration":
        """Return those of the voxels of a reliability curve."""
        voxels = int(curve.count.sum())
        if not voxels:
            raise InputError("the cases have no voxel that counts, but a page needs some. Check --ignore.")
        return cls(float(curve.confidence.sum()) / voxels, int(curve.right.sum()) / voxels)

    @property
    def judged(self) -> str:
        """The gap between the two, as "overconfident by 3.1 points"; "" if they agree."""
        return gap_in_words(self.confidence - self.accuracy)

    @property
    def told(self) -> str:
        """Both in a sentence whose subject is the model."""
        pair = f"mean confidence of {_percent(self.confidence)} and was right in {_percent(self.accuracy)} of voxels"
        return f"had a {pair}: {self.judged or 'calibrated on average'}."


@dataclass(frozen=True)
class Change:
    """A metric before and after, and the paired difference."""

    before: float | None
    after: float | None
    difference: Difference

    def effect(self, better: Literal["lower", "higher"] = "lower") -> Effect:
        """Return whether it is better or worse; "same" where there is no difference, or it is not defined."""
        found = self.difference.verdict(better)
        return found if found == "better" or found == "worse" else "same"


@dataclass(frozen=True)
class FlipCount:
    """Harmful, beneficial and neutral flips, of so many voxels."""

    voxels: int
    flips: tuple[int, int, int]

    @property
    def total(self) -> int:
        """All flips."""
        return sum(self.flips)


class PartCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of cases of each use, and of repeats; `seen` tested ones had a part in the fit (None: never)."""

    cal: int
    val: int
    test: int
    repeats: int
    seen: int | None = None


@dataclass(frozen=True)
class Facts:
    """The findings about one calibrator on one task.

    Attributes:
        task: where it was tested.
        calibrator: its name; "identity" if nothing better was found. Outside of code it is called `title`.
        keeps: whether it promises to keep the mask.
        everywhere: all voxels; `boundary` those less than 3 voxels from a boundary of the labels.
        change: by metric, from uncalibrated to calibrated.
        matrix_flips: those of matrix scaling, and `matrix_change` its changes; None and empty if it was not fitted.
    """

    task: str
    calibrator: str
    title: str
    keeps: bool
    everywhere: MeanCalibration
    change: Mapping[str, Change]
    flips: FlipCount
    everywhere_after: MeanCalibration | None = None
    boundary: MeanCalibration | None = None
    boundary_after: MeanCalibration | None = None
    matrix_flips: FlipCount | None = None
    matrix_change: Mapping[str, Change] = field(default_factory=dict)


class Verdict(msgspec.Struct, frozen=True):
    """The sentences on one task, in the order in which they are read, and the effect on each measure they speak of.

    Its tone is "better", "worse", "mixed", "same", or "measured" if nothing was calibrated.
    """

    headline: str
    tone: str
    before: str
    done: str
    changed: list[str] = []
    mask: str = ""
    limits: list[str] = []
    effects: dict[str, Effect] = {}


def temperature_words(temperature: float) -> str:
    """Return a temperature and what it says of the predictions.

    >>> temperature_words(1.84)
    'temperature 1.84 (overconfident before)'
    """
    before = "overconfident" if temperature > 1 else "underconfident"
    return f"temperature {temperature:.2f} ({before} before)"


def calibrator_words(calibrator: Calibrator) -> str:
    """Return the title of a calibrator, with its temperature if it is no more than that."""
    title = calibrator.title or calibrator.name
    if isinstance(calibrator, TemperatureScaling) and calibrator.temperature is not None:
        return f"{title}, {temperature_words(calibrator.temperature)}"
    return title


def make_verdict(
    facts: Facts, division: PartCounts, level: float, why: str = "", shifted: Sequence[Facts] = ()
) -> Verdict:
    """Return the verdict on a task, with intervals of this level.

    `why` says how the calibrator was chosen; `shifted` are facts of the same calibrator on other tasks.
    """
    found = facts.calibrator != "identity"
    effects = {name: facts.change[name].effect() for name in MEASURED if found and name in facts.change}
    told = {*effects.values()} - {"same"}
    tone = "mixed" if len(told) > 1 else next(iter(told), "same")
    near = f" Less than 3 voxels from the edge of a structure it {facts.boundary.told}" if facts.boundary else ""
    return Verdict(
        headline=SEEN if division.seen else _headline(tone, facts, "same" in effects.values()),
        tone="measured" if division.seen else tone,
        before=f"Before calibration the model {facts.everywhere.told}{near}",
        done=_done(facts, division, why),
        changed=_changed(facts, level, division.repeats) if found else [],
        mask=_mask(facts),
        limits=_limits(facts, division, shifted),
        effects=effects,
    )


def measured_verdict(before: MeanCalibration, cases: int) -> Verdict:
    """Return the verdict on confidences that were measured and not calibrated."""
    told = f"The model is {before.judged} on average."
    headline = told if before.judged else "The model is calibrated on average."
    done = f"Nothing was changed: {cases} cases with known truth were measured. segcal fit fits a calibrator."
    return Verdict(headline, "measured", f"The model {before.told}", done, limits=[ON_AVERAGE, SPREAD])


def _headline(tone: str, facts: Facts, partly: bool) -> str:
    if facts.calibrator == "identity":
        return "Nothing better was found: on validation cases no calibrator was measurably better than none."
    some = " by some measures" if partly else ""
    text = {
        "better": f"The confidences became better calibrated{some}",
        "worse": f"Calibration made the confidences worse{some}",
        "mixed": "Calibration helped by some measures and hurt by others",
        "same": "Calibration made no measurable difference",
    }[tone]
    flips = facts.flips
    mask = f"changed in {_percent(flips.total / flips.voxels)} of the voxels" if flips.total else "did not change"
    return f"{text}, and the mask {mask}."


def _done(facts: Facts, division: PartCounts, why: str) -> str:
    if facts.calibrator == "identity":
        return f"Calibrators were fitted on {division.cal} cases and compared on {division.val} others."
    chosen = f" It was chosen {why}." if why else ""
    again = f", {division.repeats} times over with other splits" if division.repeats > 1 else ""
    tested = f"{division.test} test cases that had no part in the fit they judge{again}"
    if division.seen:
        tested = f"{division.test} cases, of which {division.seen} had a part in the fit: hold cases out to judge it"
    return (
        f"A calibrator, {facts.title} ({facts.calibrator}), was fitted on {division.cal} cases with known truth."
        f"{chosen} Everything below was measured on {tested}."
    )


def _changed(facts: Facts, level: float, repeats: int) -> list[str]:
    sentences = [_change(name, facts.change[name], level, repeats) for name in MEASURED if name in facts.change]
    after, before = facts.everywhere_after, facts.everywhere
    if after is not None:
        sentences.append(
            f"The calibrated model has a mean confidence of {_percent(after.confidence)} (before: "
            f"{_percent(before.confidence)}) and is right in {_percent(after.accuracy)} of the voxels: "
            f"{after.judged or 'calibrated on average'}."
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
        return f"{text} ({counts}; {TOO_FEW})."
    low = _shown(name, gap.low, True).removesuffix(f"{GLUE}points")
    ends = f"{low} to {_shown(name, gap.high, True)}"
    return f"{text} (change {_shown(name, gap.value, True)}; {100 * level:g} % interval {ends}; {counts})."


def _mask(facts: Facts) -> str:
    flips, of = facts.flips, f"of {facts.flips.voxels:,} voxels"
    if flips.total:
        harmful, beneficial, neutral = flips.flips
        return (
            f"The mask changed in {flips.total:,} {of} ({_percent(flips.total / flips.voxels)}): {beneficial:,} became "
            f"right, {harmful:,} became wrong, {neutral:,} stayed wrong. This calibrator does not promise to keep the "
            "mask."
        )
    if facts.keeps:
        built = "With this calibrator it cannot change, whatever the input: that is built into its formula."
        return f"The mask did not change: 0 {of}. {built}"
    return f"The mask did not change here: 0 {of}. This calibrator does not promise it."


def _limits(facts: Facts, division: PartCounts, shifted: Sequence[Facts]) -> list[str]:
    limits = [ON_AVERAGE]
    after = facts.boundary_after
    if after is not None and after.judged:
        limits.append(f"Less than 3 voxels from the edge of a structure, the model after calibration {after.told}")
    for each in shifted:
        change = each.change.get("ece")
        if change is not None and change.before is not None and change.after is not None:
            limits.append(
                f"On {each.task}, without fitting again, the calibration error is {_shown('ece', change.after)} "
                f"({_shown('ece', change.before)} without calibration): there, calibration {SHIFTED[change.effect()]}."
            )
    limits += [] if shifted else [ELSEWHERE]
    limits += [FEW.format(division.test)] if division.test < FEW_GROUPS else []
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
