"""A calibration card: its form, and its text as Markdown, as one HTML page or as JSON.

The sections have the names of a Hugging Face model card, and of that in the FDA's draft guidance of January 2025
(docket FDA-2024-D-4488). They are description, intended use, data (of calibration, tuning and evaluation apart),
performance with intervals and by subgroup, limitations, monitoring. A metric is stated with what Metrics Reloaded asks
for: unit, direction, and how many cases have no value.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from msgspec import Struct, to_builtins

from segcal.documents import json_text
from segcal.names import clean_lines
from segcal.report.document import ClassEvidence
from segcal.report.page import html_file
from segcal.resample import FEWEST_GROUPS
from segcal.summary import TOO_FEW, Difference, Estimate, Interval

SCHEMA = 1
TITLE = "Calibration card"
MONITORED = "segcal monitor says when new cases are no longer like them; then this card does not apply."
STATES = {True: "holds", False: "BROKEN"}
BETTER = {"lower": " (lower is better)", "higher": " (higher is better)", None: ""}
STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #8886;padding:.25rem .6rem;"
    "text-align:left;vertical-align:top}h2{margin-top:2rem}code{overflow-wrap:anywhere}"
)


class CaseSet(Struct, frozen=True):
    """Some cases: how many, and the hash of each, so that only who has the names can look them up."""

    cases: int
    case_sha256: tuple[str, ...]


class CardDescription(Struct, frozen=True):
    """The calibrator and its fit.

    Attributes:
        title: the calibrator in words.
        options: what the calibrator was made with, as Python writes it.
        input_kind: what its inputs are: "logits", "probs" or "sigmoid".
        pooling: how members were pooled before; None if that is not known.
        voxels: how many were used, of `voxels_available` labelled ones.
        kkt_residual: how far from the optimum; None where the method has no such number.
        data_fingerprint: digest of the cases it was fitted to.
        digest: of the calibrator itself; results that were measured with it carry the same.
        groups: how many groups of cases those are; 0 if an older segcal fitted it.
        classes: what the fit rests on, class by class; nothing of regions.
        held_out_parts: groups of each declared site, or else of each cluster of groups, that the choice held out.
        sites_declared: whether those sites were declared.
        raters: several raters who labelled those cases, in words; "" of one.
    """

    calibrator: str
    options: dict[str, str]
    num_classes: int
    class_names: tuple[str, ...] | None
    parameters: int
    input_kind: str
    pooling: str | None
    fit_method: str
    voxels: int
    voxels_available: int
    kkt_residual: float | None
    converged: bool
    data_fingerprint: str
    digest: str = ""
    groups: int = 0
    classes: tuple[ClassEvidence, ...] = ()
    held_out_parts: tuple[int, ...] = ()
    sites_declared: bool = False
    title: str = ""
    raters: str = ""


class Promise(Struct, frozen=True):
    """One promise: whether it is made, whether it holds, and how that is known."""

    promise: str
    promised: bool | str
    holds: bool
    evidence: str
    statement: str


class CardMetric(Struct, frozen=True):
    """One metric of some cases, before and after calibration, and the paired change."""

    type: str
    name: str
    unit: str
    better: str | None
    before: Estimate
    after: Estimate
    change: Difference


class Performance(Struct, frozen=True):
    """The metrics of the cases of a subgroup, and how many groups they belong to."""

    subgroup: str
    cases: int
    metrics: tuple[CardMetric, ...]
    groups: int | None = None


class Monitoring(Struct, frozen=True):
    """The labelled cases that new ones are compared with, and in how many groups they are.

    `trust_levels` are those of intervals that so many groups support, and of recall and precision. Of `regions`
    :func:`segcal.decide` alone makes use; :func:`segcal.objects` compares with `object_cases`.
    """

    reference_cases: int
    reference_draws: int
    reference_source: str
    trust_levels: tuple[float, ...]
    regions: bool = False
    object_cases: int = 0


class Card(Struct, frozen=True):
    """A calibration card.

    Attributes:
        schema: version of this form.
        segcal: version of the library.
        dataset: what the evaluated cases are called.
        description: the calibrator and its fit.
        intended_use: what it is for.
        not_valid_for: what it is not for.
        calibration_data: the cases it was fitted to.
        tuning_data: the cases on which it was chosen.
        evaluation_data: the cases of `performance`; none of them had a part in the fit.
        level: of the intervals.
        promises: what it promises.
        performance: all held-out cases first, then subgroups.
        monitoring: what it remembers for trust and monitoring; None if it was not asked to.
        notes: what a reader should know of the numbers.
        date: on which it was written, as year, month and day.
    """

    schema: int
    segcal: str
    dataset: str
    description: CardDescription
    intended_use: str
    not_valid_for: tuple[str, ...]
    calibration_data: CaseSet
    tuning_data: CaseSet
    evaluation_data: CaseSet
    level: float
    promises: tuple[Promise, ...]
    performance: tuple[Performance, ...]
    monitoring: Monitoring | None
    notes: tuple[str, ...] = ()
    date: str = ""


class CardBlock(NamedTuple):
    """A part of the card: lines, each an item of a list, and a table whose first row is its head."""

    title: str
    lines: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def as_json(card: Card) -> str:
    """Return the card as JSON."""
    return json_text({"card": "segcal"} | to_builtins(card), indent=1) + "\n"


def as_markdown(card: Card) -> str:
    """Return the card as Markdown; the metadata at its top is what a Hugging Face model card has."""
    parts = [_metadata(card), f"# {TITLE}"]
    for block in blocks(card):
        parts.append(f"## {block.title}")
        if block.lines:
            parts.append("\n".join(f"- {clean_lines(line)}" for line in block.lines))
        if block.rows:
            head, *rows = [[clean_lines(cell).replace("|", "\\|") for cell in row] for row in block.rows]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)))
    return "\n\n".join(parts) + "\n"


def as_html(card: Card) -> str:
    """Return the card as one page that needs no network."""
    parts = [f"<h1>{TITLE}</h1>"]
    for block in blocks(card):
        parts.append(f"<h2>{escape(block.title)}</h2>")
        if block.lines:
            parts.append("<ul>" + "".join(f"<li>{escape(clean_lines(line))}" for line in block.lines) + "</ul>")
        if block.rows:
            head, *rows = block.rows
            cells = "".join(f"<th>{escape(cell)}" for cell in head)
            body = "".join("<tr>" + "".join(f"<td>{escape(clean_lines(cell))}" for cell in row) for row in rows)
            parts.append(f"<table><tr>{cells}{body}</table>")
    return html_file(TITLE, STYLE, "\n".join(parts) + "\n", mark="\n<!-- segcal card -->")


def _metadata(card: Card) -> str:
    """Return the YAML of a model card; texts are written as JSON, which YAML reads."""
    lines = ["---", "# segcal card", "library_name: segcal", "tags: [calibration, image-segmentation]"]
    if card.performance:
        lines += ["model-index:", f"- name: {json_text(card.description.calibrator)}", "  results:"]
    for group in card.performance:
        dataset = json_text(card.dataset if group is card.performance[0] else f"{card.dataset}, {group.subgroup}")
        lines += ["  - task: {type: image-segmentation}", f"    dataset: {{type: segcal, name: {dataset}}}"]
        lines.append("    metrics:")
        for one in group.metrics:
            name, value = json_text(one.name), json_text(_rounded(one.after.value))
            lines.append(f"    - {{type: {one.type}, name: {name}, value: {value}}}")
    return "\n".join([*lines, "---"])


def blocks(card: Card) -> Iterator[CardBlock]:
    """Yield the sections in the order in which they are read."""
    what = card.description
    optimum = "reached its tolerance" if what.converged else "did not reach its tolerance"
    data = {"calibration": card.calibration_data, "tuning": card.tuning_data, "evaluation": card.evaluation_data}
    many = "1 parameter" if what.parameters == 1 else f"{what.parameters:,} parameters"
    pooled = "" if what.pooling == "single" else f"; members pooled by {what.pooling or 'a way not known'}"
    facts = {
        "fact": "value",
        "model": f"the one that made the {what.input_kind}" + pooled,
        "classes": f"{what.num_classes}: {', '.join(what.class_names or ()) or 'not named'}",
        "calibrator": f"{what.title} ({what.calibrator}), {many}",
        "data": f"{card.dataset}; {', '.join(f'{own.cases} {role}' for role, own in data.items())} cases",
        "date": card.date,
        "version": f"segcal {card.segcal}",
        "fit": f"{what.fit_method}, {what.voxels:,} of {what.voxels_available:,} voxels"
        f"{what.raters and f', labels of {what.raters}'}",
        "optimum": optimum if what.kkt_residual is None else f"{optimum}, residual {what.kkt_residual:.1e}",
        "data fingerprint": what.data_fingerprint,
        "calibrator digest": what.digest,
    }
    hashes = [(role, " ".join(own.case_sha256)) for role, own in data.items() if own.cases]
    promises = [
        (one.promise, STATES[one.holds] if one.promised else "not made", one.evidence, one.statement)
        for one in card.promises
    ]
    yield CardBlock("Description", rows=[*facts.items()])
    yield CardBlock("Intended use", [card.intended_use])
    yield CardBlock("Not valid for", card.not_valid_for)
    yield from (_performance(each, card.level) for each in card.performance)
    if card.notes:
        yield CardBlock("Notes", card.notes)
    yield CardBlock("Promises", rows=[("promise", "state", "known by", "finding"), *promises])
    if what.classes:
        rows = [(one.name, f"{one.groups:,} of {what.groups:,}", f"{one.voxels:,}") for one in what.classes]
        parts = ", ".join(map(str, what.held_out_parts))
        how = "declared sites" if what.sites_declared else "clusters of groups with like predictions"
        lines = [f"The choice also held {how} out in turn; groups in each: {parts}."] if parts else []
        yield CardBlock("Evidence per class", lines, [("class", "groups that have it", "voxels, about"), *rows])
    yield CardBlock("Trust and monitoring", _monitoring(card.monitoring))
    yield CardBlock("Hashes of the cases", rows=[("cases", "first digits of SHA-256"), *hashes])


def _performance(group: Performance, level: float) -> CardBlock:
    head: tuple[str, ...] = ("metric", "before", "after", "change")
    groups = group.cases if group.groups is None else group.groups
    few = groups < FEWEST_GROUPS
    undefined = any(one.after.undefined for one in group.metrics)
    head += ("cases without a value",) if undefined else ()
    rows = [
        (
            f"{one.type}: {one.name}{BETTER[one.better]}",
            *(_text(each, sign, few) for each, sign in ((one.before, ""), (one.after, ""), (one.change, "+"))),
            *((str(one.after.undefined),) if undefined else ()),
        )
        for one in group.metrics
    ]
    title = f"Performance: {group.subgroup}, {group.cases} {'case' if group.cases == 1 else 'cases'}"
    over = "cases" if groups == group.cases else f"{groups} groups"
    said = f"Means ({TOO_FEW})." if few else f"Means with {100 * level:g} % intervals, bootstrap over {over}."
    return CardBlock(title, [said], [head, *rows])


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _text(one: Interval, sign: str, said: bool) -> str:
    if (one.value, one.low, one.high) == (0, 0, 0):
        return "0"
    note = "" if said or one.value is None or one.low is not None else f" ({TOO_FEW})"
    return one.text(f"{sign}.4f", "not defined") + note


def _monitoring(found: Monitoring | None) -> list[str]:
    if found is None:
        return ["It remembers no labelled cases: segcal trust and segcal monitor need a fit with them."]
    levels = ", ".join(f"{100 * level:g} %" for level in found.trust_levels) or "none of the usual ones"
    objects = f"segcal objects compares connected components with those of {found.object_cases} labelled cases."
    return [
        f"New cases are compared with {found.reference_cases} labelled cases in {found.reference_draws} groups "
        f"({found.reference_source}).",
        f"Levels of intervals, and of recall or precision of segcal decide, that so many groups support: {levels}.",
        *([objects] if found.object_cases else []),
        *([] if found.regions else [MONITORED]),
    ]
