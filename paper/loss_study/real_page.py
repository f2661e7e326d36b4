"""The page of the study of losses on real data: ``docs/losses_real.md``, from the lines of the study and nothing else.

Values of one patient, or of neighbouring frames, are averaged first; means have intervals over seeds and these groups,
which are the same for all seeds and are drawn so (:class:`paper.loss_study.draws.SharedDraws`).
A difference is clear where its interval leaves out zero. What losses differ by is the standard deviation of their
means, and a calibrator takes a share of it away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from paper.loss_study.draws import shared_draws
from paper.loss_study.measure import NONE
from paper.loss_study.real import LOSSES, POST_HOC, SHOWN, SIZES, WITH_DICE, RealRow
from paper.loss_study.rows import read_lines
from segcal.atomic import write_text
from segcal.metrics import METRICS
from segcal.summary import Interval, difference, estimate

LINES = "real_losses.jsonl"
PAGE = "losses_real.md"
BASELINE = "ce_dice"
CALIBRATION = ("nll", "ece", "ba_ece")
# How the columns call a network without a calibrator.
WHEN = {NONE: "as trained"} | {name: name for name in POST_HOC}
TITLES = {"cardiac": "cardiac volumes", "camvid": "street scenes"}


class Facts(msgspec.Struct, frozen=True):
    """What made the numbers."""

    device: str
    torch: str
    seconds: int
    missing: int
    recorded: bool


@dataclass(frozen=True)
class Table:
    """The networks of one task and size.

    Attributes:
        task: its name.
        size: of the networks.
        rows: by loss and seed.
    """

    task: str
    size: str
    rows: Mapping[tuple[str, int], RealRow]
    _columns: dict[tuple[str, ...], list[np.ndarray]] = field(default_factory=dict, repr=False)
    _intervals: dict[tuple[str, ...], Interval] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """Return what the table is called."""
        return f"{TITLES[self.task].capitalize()}, {self.size} networks"

    @cached_property
    def seeds(self) -> list[int]:
        """Return the seeds that all losses of the table have."""
        losses = {loss for loss, _ in self.rows}
        every = sorted({seed for _, seed in self.rows})
        return [seed for seed in every if all((loss, seed) in self.rows for loss in losses)]

    @cached_property
    def losses(self) -> list[str]:
        """Return the losses that have every seed, in the order of the study."""
        return [loss for loss in LOSSES if all((loss, seed) in self.rows for seed in self.seeds)]

    def columns(self, loss: str, pipeline: str, metric: str) -> list[np.ndarray]:
        """Return the means of the groups, one array per seed."""
        key = (loss, pipeline, metric)
        if key not in self._columns:
            rows = [self.rows[loss, seed] for seed in self.seeds]
            self._columns[key] = [_group_means(row, pipeline, metric) for row in rows]
        return self._columns[key]

    def mean(self, loss: str, pipeline: str, metric: str) -> Interval:
        """Return the mean of a loss."""
        key = (loss, pipeline, metric)
        if key not in self._intervals:
            values = self.columns(*key)
            self._intervals[key] = estimate(values, shared_draws(values))
        return self._intervals[key]

    def gap(self, loss: str, base: str, pipeline: str, metric: str) -> Interval:
        """Return the paired difference of two losses."""
        key = (loss, base, pipeline, metric)
        if key not in self._intervals:
            first, second = (self.columns(each, pipeline, metric) for each in (base, loss))
            self._intervals[key] = _gap(first, second, metric)
        return self._intervals[key]

    def spread(self, pipeline: str, metric: str) -> float:
        """Return the standard deviation of the losses' means."""
        means = [self.mean(loss, pipeline, metric).value for loss in self.losses]
        return float(np.std([value for value in means if value is not None]))


def read_real(sources: Sequence[Path]) -> tuple[list[RealRow], list[Facts]]:
    """Return the networks of files of lines and what made them; the first of equal names counts."""
    rows, facts = read_lines(sources)
    return msgspec.convert(rows, list[RealRow]), msgspec.convert(facts, list[Facts])


def tables_of(rows: Sequence[RealRow]) -> list[Table]:
    """Return the tables for which the baseline is there, small networks first."""
    found = []
    for size in SIZES:
        for task in TITLES:
            mine = {(r.unit.loss, r.unit.seed): r for r in rows if (r.unit.task, r.unit.size) == (task, size)}
            if any(loss == BASELINE for loss, _ in mine):
                found.append(Table(task, size, _complete(mine)))
    return found


def _complete(rows: dict[tuple[str, int], RealRow]) -> dict[tuple[str, int], RealRow]:
    """Leave out what would cost a seed of the others: losses with fewer seeds than the baseline has."""
    seeds = {seed for loss, seed in rows if loss == BASELINE}
    full = {loss for loss, _ in rows if all((loss, seed) in rows for seed in seeds)}
    return {key: row for key, row in rows.items() if key[0] in full and key[1] in seeds}


def write_real_page(sources: Sequence[Path], docs: Path) -> Path:
    """Write the page; what its numbers say in words stands beside the first file, with the end .md."""
    rows, facts = read_real(sources)
    path, words = docs / PAGE, sources[0].with_suffix(".md")
    write_text(path, real_page(rows, facts, words.read_text("utf-8").strip() if words.exists() else ""))
    return path


def real_page(rows: Sequence[RealRow], facts: Sequence[Facts], words: str = "") -> str:
    """Return the page."""
    tables = tables_of(rows)
    parts = ["# Losses on real data", *([words] if words else []), "## What was done", _introduction(rows, facts)]
    parts += ["## Counted over all tables", *_advice(tables)]
    parts += ["## How much of the difference calibration takes away", _spreads(tables)]
    parts += ["## What the Dice term does", _dice_terms(tables)]
    sizes = _sizes(tables)
    parts += ["## Large networks beside small ones", sizes] if sizes else []
    for table in tables:
        parts += [f"## {table.title}", _losses(table)]
    return "\n\n".join(parts) + "\n"


def _introduction(rows: Sequence[RealRow], facts: Sequence[Facts]) -> str:
    steps = {task: max((r.steps for r in rows if r.unit.task == task), default=0) for task in TITLES}
    cases = {task: max((len(r.groups) for r in rows if r.unit.task == task), default=0) for task in TITLES}
    groups = {task: max((len(set(r.groups)) for r in rows if r.unit.task == task), default=0) for task in TITLES}
    made = " and ".join(f"{one.seconds / 60:.0f} minutes on {one.device}" for one in facts)
    failed, missing = sum(bool(row.failed) for row in rows), sum(one.missing for one in facts)
    lacking = f"""Of {missing + len(rows)} networks {missing} were not finished in the time; a loss that
lacks a seed of the baseline is left out of its table."""
    return f"""Written by `python -m paper.loss_study real-page`, from {len(rows)} networks that were trained and
measured in {made or "an unknown time"}. The losses are those of [the study on embedded tasks](losses.md); each that
has no Dice term is here without and with one, because Dice is what most people add to get better masks.

- **Cardiac volumes**: slices of magnetic resonance images, divided by patient; {cases["cardiac"]} test volumes of
  {groups["cardiac"]} patients. **Street scenes**: trained on two videos and tested on a third, a place that no network
  saw; {cases["camvid"]} frames, of which neighbours say nearly the same, so that intervals draw blocks of ten.
- Calibrators are fitted to other patients, and to an earlier stretch of the third video: `ts` (one temperature) and
  `conic`. Masks stay as they are under both: one column of Dice.
- U-Nets in two sizes, {steps["cardiac"]} and {steps["camvid"]} steps of AdamW on batches of 8, last weights, settings
  of the losses as published{f"; in {failed} networks a calibrator could not be fitted" if failed else ""}.

**Limits.** Trainings are short and pictures small (the middle 144 x 144 of slices, frames of 240 x 180), to have every
loss with several seeds in minutes: large networks need more steps than that, and masks of the street scenes are far
from what full trainings reach. {lacking if missing else "No network of the study is missing."}
No loss was tuned. Frames of one video are one place, not many.
Intervals cover seeds and patients or blocks of frames, not other datasets, and are not corrected for their number: one
in twenty is clear by chance. A draw has the same patients or blocks for all seeds; with so few of both, intervals are
still rather too narrow. Dice is the mean over classes, without the background of the cardiac volumes."""


def _advice(tables: Sequence[Table]) -> list[str]:
    """Return the answers in sentences, counted over all tables, and who differs clearly from the baseline."""
    pairs = [(t, loss) for t in tables for loss in t.losses if loss.removesuffix(WITH_DICE) != loss]
    pairs = [(table, loss) for table, loss in pairs if loss.removesuffix(WITH_DICE) in table.losses]
    others = [(table, loss) for table in tables for loss in table.losses if loss != BASELINE]
    last = POST_HOC[-1]
    counts = " ".join(_counted(pairs, *what) for what in (("dice", NONE), ("ba_ece", NONE), ("ba_ece", last)))
    differ = "; ".join(
        f"{SHOWN[metric]} " + ", ".join(f"{_differing(others, p, metric)} ({WHEN[p]})" for p in WHEN)
        for metric in CALIBRATION
    )
    said = [
        f"- **The Dice term.** {counts} Counted are the {len(pairs)} pairs of a loss with and without the term.",
        f"- **The loss.** Of {len(others)} losses beside `{BASELINE}`, counted over all tables, so many differ clearly "
        f"from it: {differ}.",
        f"- **Never worse.** Losses that no column of any table has clearly worse than `{BASELINE}`: {_safe(tables)}.",
        f"- **Train, or calibrate?** `{BASELINE}` with `{last}` afterwards minus the loss that is best as trained:",
    ]
    for table in tables:
        said.append(f"    - {table.title}: {_against_best(table, 'nll')}; {_against_best(table, 'ba_ece')}.")
    head = ["networks", "metric", f"clearly better than {BASELINE}", "clearly worse"]
    lines = [_line(head), "|---" * len(head) + "|"]
    for table in tables:
        for metric, pipeline in (("dice", NONE), *((m, p) for m in ("nll", "ba_ece") for p in (NONE, last))):
            better, worse = _clear(table, pipeline, metric)
            title = SHOWN[metric] if metric == "dice" else f"{SHOWN[metric]} {WHEN[pipeline]}"
            lines.append(_line([table.title, title, _named(better), _named(worse)]))
    return ["\n".join(said), "\n".join(lines)]


def _safe(tables: Sequence[Table]) -> str:
    """Return the losses of all tables that are nowhere clearly worse than the baseline, and how often better."""
    columns = [(t, p, m) for t in tables for m, p in (("dice", NONE), *((m, p) for m in CALIBRATION for p in WHEN))]
    named = []
    for loss in (one for one in LOSSES if one != BASELINE and all(one in table.losses for table in tables)):
        judged = [_judged(table, loss, BASELINE, pipeline, metric) for table, pipeline, metric in columns]
        if "worse" not in judged:
            named.append(f"`{loss}` (clearly better in {judged.count('better')} of {len(judged)})")
    return ", ".join(named) or "none"


def _differing(others: Sequence[tuple[Table, str]], pipeline: str, metric: str) -> int:
    return sum(_judged(table, loss, BASELINE, pipeline, metric) is not None for table, loss in others)


def _counted(pairs: Sequence[tuple[Table, str]], metric: str, pipeline: str) -> str:
    found = [_judged(table, loss, loss.removesuffix(WITH_DICE), pipeline, metric) for table, loss in pairs]
    when = "" if metric == "dice" else " as trained" if pipeline == NONE else f" after `{pipeline}`"
    return f"{SHOWN[metric]}{when}: clearly better in {found.count('better')}, clearly worse in {found.count('worse')}."


def _against_best(table: Table, metric: str) -> str:
    value = {loss: table.mean(loss, NONE, metric).value for loss in table.losses}
    best = min((loss for loss in table.losses if value[loss] is not None), key=lambda loss: value[loss] or 0.0)
    gap = _gap(table.columns(best, NONE, metric), table.columns(BASELINE, POST_HOC[-1], metric), metric)
    return f"{SHOWN[metric]} {_change(gap)} (`{best}`)"


def _judged(table: Table, loss: str, base: str, pipeline: str, metric: str) -> str | None:
    """Return "better" or "worse" where a loss differs clearly from another."""
    gap = table.gap(loss, base, pipeline, metric)
    if not is_clear(gap) or gap.value is None:
        return None
    return "better" if (gap.value > 0) == (METRICS[metric].better == "higher") else "worse"


def _clear(table: Table, pipeline: str, metric: str) -> tuple[list[str], list[str]]:
    judged = {loss: _judged(table, loss, BASELINE, pipeline, metric) for loss in table.losses if loss != BASELINE}
    return [k for k, v in judged.items() if v == "better"], [k for k, v in judged.items() if v == "worse"]


def _spreads(tables: Sequence[Table]) -> str:
    lines = [
        "The standard deviation of the losses' means, and in brackets what is left of it.",
        "",
        _line(["networks", *(f"{SHOWN[m]} {p}" for m in CALIBRATION for p in WHEN.values())]),
        "|---" * (1 + len(CALIBRATION) * (1 + len(POST_HOC))) + "|",
    ]
    for table in tables:
        cells = [table.title]
        for metric in CALIBRATION:
            before = table.spread(NONE, metric)
            cells.append(f"{before:.4f}")
            cells += [f"{table.spread(p, metric):.4f} ({table.spread(p, metric) / before:.0%})" for p in POST_HOC]
        lines.append(_line(cells))
    return "\n".join(lines)


def _dice_terms(tables: Sequence[Table]) -> str:
    shown: list[tuple[str, str]] = [
        ("dice", NONE),
        ("nll", NONE),
        ("nll", "conic"),
        ("ba_ece", NONE),
        ("ba_ece", "conic"),
    ]
    lines = [
        "The loss with a Dice term minus the same loss without; **bold** where the interval leaves out zero.",
        "",
        _line(["networks", "loss", *(SHOWN[m] if m == "dice" else f"{SHOWN[m]} {WHEN[p]}" for m, p in shown)]),
        "|---" * (2 + len(shown)) + "|",
    ]
    for table in tables:
        for loss in table.losses:
            plain = loss.removesuffix(WITH_DICE)
            if plain != loss and plain in table.losses:
                cells = [_change(table.gap(loss, plain, pipeline, metric)) for metric, pipeline in shown]
                lines.append(_line([table.title, plain, *cells]))
    return "\n".join(lines)


def _sizes(tables: Sequence[Table]) -> str | None:
    by_key = {(table.task, table.size): table for table in tables}
    shown = {"Dice": ("dice", NONE), "ECE as trained": ("ece", NONE)}
    shown |= {f"BA-ECE {WHEN[p]}": ("ba_ece", p) for p in WHEN}
    said = ["Means, small → large; **bold** where the interval of the difference leaves out zero."]
    lines = []
    for task in TITLES:
        pair = [by_key.get((task, size)) for size in SIZES]
        small, large = pair[0], pair[-1]
        if small is None or large is None or small.seeds != large.seeds:
            continue
        losses = [loss for loss in large.losses if loss in small.losses]
        gaps = {
            (loss, title): _gap(small.columns(loss, p, m), large.columns(loss, p, m), m)
            for loss in losses
            for title, (m, p) in shown.items()
        }
        for loss in losses:
            cells = [f"{_values(small, loss, p, m)} → {_values(large, loss, p, m)}" for m, p in shown.values()]
            marked = [
                f"**{cell}**" if is_clear(gaps[loss, title]) else cell for title, cell in zip(shown, cells, strict=True)
            ]
            lines.append(_line([TITLES[task], loss, *marked]))
        counts = "; ".join(f"{title} {_moved([gaps[loss, title] for loss in losses])}" for title in shown)
        said.append(f"- {TITLES[task].capitalize()}, {len(losses)} losses, with large networks: {counts}.")
    head = ["data", "loss", *shown]
    return "\n".join([said[0], "", *said[1:], "", _line(head), "|---" * len(head) + "|", *lines]) if lines else None


def _moved(gaps: Sequence[Interval]) -> str:
    """Return how many gaps are above and below zero, and how many of these clearly."""
    up, down = ([gap for gap in gaps if gap.value is not None and sign * gap.value > 0] for sign in (1, -1))
    return " and ".join(
        f"{word} in {len(found)} ({sum(map(is_clear, found))} clearly)"
        for word, found in (("higher", up), ("lower", down))
    )


def _values(table: Table, loss: str, pipeline: str, metric: str) -> str:
    value = table.mean(loss, pipeline, metric).value
    return "–" if value is None else f"{value:.4f}"


def _losses(table: Table) -> str:
    head = ["loss", "Dice", *(f"{SHOWN[m]} {p}" for p in WHEN.values() for m in CALIBRATION)]
    lines = [_line(head), "|---" * len(head) + "|"]
    for loss in table.losses:
        cells = [_cell(table, loss, NONE, "dice")]
        cells += [_cell(table, loss, pipeline, m) for pipeline in (NONE, *POST_HOC) for m in CALIBRATION]
        lines.append(_line([loss, *cells]))
    noun = "seed" if len(table.seeds) == 1 else "seeds"
    note = f"Mean [95 % interval over {len(table.seeds)} {noun} and groups of test cases]; in brackets the paired"
    return "\n".join([*lines, "", f"{note} difference from `{BASELINE}`, **bold** where its interval leaves out zero."])


def _cell(table: Table, loss: str, pipeline: str, metric: str) -> str:
    text = _text(table.mean(loss, pipeline, metric))
    return text if loss == BASELINE else f"{text} ({_change(table.gap(loss, BASELINE, pipeline, metric), short=True)})"


def _gap(first: Sequence[np.ndarray], second: Sequence[np.ndarray], metric: str) -> Interval:
    """Return the paired difference, the second minus the first."""
    return difference(first, second, shared_draws(first), METRICS[metric].better)


def is_clear(gap: Interval) -> bool:
    """Return whether an interval leaves out zero."""
    return gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0)


def _change(gap: Interval, short: bool = False) -> str:
    if gap.value is None:
        return "–"
    text = f"{gap.value:+.4f}" if short else f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
    return f"**{text}**" if is_clear(gap) else text


def _text(one: Interval) -> str:
    return "–" if one.value is None else f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]"


def _named(losses: Sequence[str]) -> str:
    return ", ".join(f"`{loss}`" for loss in losses) or "none"


def _group_means(row: RealRow, pipeline: str, metric: str) -> np.ndarray:
    values, groups = np.array(row.values.get(pipeline, row.values[NONE])[metric], float), np.array(row.groups)
    return np.array([_mean(values[groups == group]) for group in sorted(set(row.groups))])


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
