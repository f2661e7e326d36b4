"""A calibration card as text: Markdown with the metadata of a Hugging Face model card, one HTML page, or JSON."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import msgspec

from segcal.documents import json_text
from segcal.names import clean_lines
from segcal.report.card_document import Card, CardMetric, Performance
from segcal.resample import FEWEST_GROUPS
from segcal.summary import TOO_FEW, Interval

TITLE = "Calibration card"
MONITORED = "segcal monitor says when new cases are no longer like them; then this card does not apply."
STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #8886;padding:.25rem .6rem;"
    "text-align:left;vertical-align:top}h2{margin-top:2rem}code{overflow-wrap:anywhere}"
)


class CardBlock(NamedTuple):
    """A part of the card: lines, each an item of a list, and a table whose first row is its head."""

    title: str
    lines: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def blocks(card: Card) -> list[CardBlock]:
    """Return the parts in the order in which they are read."""
    what = card.description
    facts = [
        ("calibrator", f"{what.calibrator}, parameters: {what.parameters:,}, classes: {what.num_classes}"),
        ("classes", ", ".join(what.class_names or ()) or "not named"),
        ("input", f"{what.input_kind}, pooling {what.pooling or 'not known'}"),
        ("fit", f"{what.fit_method}, {what.voxels:,} of {what.voxels_available:,} voxels"),
        ("optimum", _optimum(card)),
        ("data fingerprint", what.data_fingerprint),
        ("calibrator digest", what.digest),
        ("segcal", card.segcal),
    ]
    data = [
        (role, str(cases.cases), " ".join(cases.case_sha256))
        for role, cases in (
            ("calibration", card.calibration_data),
            ("tuning", card.tuning_data),
            ("evaluation", card.evaluation_data),
        )
    ]
    promises = [
        (
            one.promise,
            "not made" if not one.promised else "holds" if one.holds else "BROKEN",
            one.evidence,
            one.statement,
        )
        for one in card.promises
    ]
    return [
        CardBlock("Description", rows=[("fact", "value"), *facts]),
        CardBlock("Intended use", [card.intended_use]),
        CardBlock("Not valid for", card.not_valid_for),
        CardBlock("Data", rows=[("role", "cases", "hashes of the cases"), *data]),
        *([_evidence(card)] if card.description.classes else []),
        CardBlock("Promises", rows=[("promise", "state", "known by", "finding"), *promises]),
        *(_performance(each, card.level) for each in card.performance),
        *([CardBlock("Notes", card.notes)] if card.notes else []),
        CardBlock("Trust and monitoring", _monitoring(card)),
    ]


def _evidence(card: Card) -> CardBlock:
    what = card.description
    rows = [(one.name, f"{one.groups:,} of {what.groups:,}", f"{one.voxels:,}") for one in what.classes]
    parts = ", ".join(map(str, what.held_out_parts))
    how = "declared sites" if what.sites_declared else "clusters of groups with like predictions"
    lines = [f"In the choice, {how} were held out in turn, of so many groups: {parts}."] if parts else []
    return CardBlock("Evidence per class", lines, [("class", "groups that have it", "voxels, about"), *rows])


def as_json(card: Card) -> str:
    """Return the card as JSON."""
    return json_text({"card": "segcal"} | msgspec.to_builtins(card), indent=1) + "\n"


def as_markdown(card: Card) -> str:
    """Return the card as Markdown; the metadata at its top is what a Hugging Face model card has."""
    parts = [_metadata(card), f"# {TITLE}"]
    for block in blocks(card):
        parts.append(f"## {block.title}")
        if block.lines:
            parts.append("\n".join(f"- {clean_lines(line)}" for line in block.lines))
        if block.rows:
            head, *rows = [[_cell(cell) for cell in row] for row in block.rows]
            lines = [head, ["---"] * len(head), *rows]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in lines))
    return "\n\n".join(parts) + "\n"


def as_html(card: Card) -> str:
    """Return the card as one page that needs no network."""
    parts = [f"<!doctype html>\n<!-- segcal card -->\n<html lang=en><meta charset=utf-8><title>{TITLE}</title>"]
    parts.append(f"<meta name=viewport content='width=device-width'><style>{STYLE}</style><h1>{TITLE}</h1>")
    for block in blocks(card):
        parts.append(f"<h2>{escape(block.title)}</h2>")
        if block.lines:
            parts.append("<ul>" + "".join(f"<li>{escape(clean_lines(line))}" for line in block.lines) + "</ul>")
        if block.rows:
            head, *rows = block.rows
            cells = "".join(f"<th>{escape(cell)}" for cell in head)
            body = "".join("<tr>" + "".join(f"<td>{escape(clean_lines(cell))}" for cell in row) for row in rows)
            parts.append(f"<table><tr>{cells}{body}</table>")
    return "\n".join(parts) + "</html>\n"


def _metadata(card: Card) -> str:
    """Return the YAML of a model card; texts are written as JSON, which YAML reads."""
    lines = ["---", "# segcal card", "library_name: segcal", "tags: [calibration, image-segmentation]"]
    if card.performance:
        lines += ["model-index:", f"- name: {json_text(card.description.calibrator)}", "  results:"]
    for group in card.performance:
        dataset = card.dataset if group is card.performance[0] else f"{card.dataset}, {group.subgroup}"
        lines += ["  - task: {type: image-segmentation}", f"    dataset: {{type: segcal, name: {json_text(dataset)}}}"]
        lines.append("    metrics:")
        for one in group.metrics:
            lines.append(
                f"    - {{type: {one.type}, name: {json_text(one.name)}, value: {json_text(one.after.value)}}}"
            )
    return "\n".join([*lines, "---"])


def _performance(group: Performance, level: float) -> CardBlock:
    head = ("metric", "before", "after", "change", "cases without a value")
    groups = group.cases if group.groups is None else group.groups
    few = groups < FEWEST_GROUPS
    rows = [
        (_named(one), *(_text(each, sign, few) for each, sign in _numbers(one)), str(one.after.undefined))
        for one in group.metrics
    ]
    title = f"Performance: {group.subgroup}, {group.cases} {'case' if group.cases == 1 else 'cases'}"
    over = "cases" if groups == group.cases else f"{groups} groups"
    said = f"Means ({TOO_FEW})." if few else f"Means with {100 * level:g} % intervals, bootstrap over {over}."
    return CardBlock(title, [said], [head, *rows])


def _numbers(one: CardMetric) -> tuple[tuple[Interval, str], ...]:
    return (one.before, ""), (one.after, ""), (one.change, "+")


def _named(one: CardMetric) -> str:
    arrow = {"lower": " (lower is better)", "higher": " (higher is better)", None: ""}[one.better]
    return f"{one.type}: {one.name}{arrow}"


def _text(one: Interval, sign: str, said: bool) -> str:
    if one.value is None:
        return "not defined"
    if one.low is None or one.high is None:
        return f"{one.value:{sign}.4g}" + ("" if said else f" ({TOO_FEW})")
    return f"{one.value:{sign}.4g} [{one.low:{sign}.4g}, {one.high:{sign}.4g}]"


def _optimum(card: Card) -> str:
    what = card.description
    state = "reached its tolerance" if what.converged else "did not reach its tolerance"
    return state if what.kkt_residual is None else f"{state}, residual {what.kkt_residual:.1e}"


def _monitoring(card: Card) -> list[str]:
    found = card.monitoring
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


def _cell(text: str) -> str:
    return clean_lines(text).replace("|", "\\|")
