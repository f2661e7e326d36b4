"""Results as one HTML file: the page of a document (:mod:`segcal.report.document`), and a worklist of objects.

The document is embedded as JSON, and the page's own script makes everything from it. Names may come from anywhere. In
the JSON every character that could end a script or begin a tag is escaped; the script only ever sets text; markup is
escaped. The file's content security policy allows its own script and style by their digests, and nothing else from
anywhere.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from msgspec import UNSET, structs, to_builtins

from segcal import documents
from segcal.atomic import write_text
from segcal.report.document import CaseExamples, Document
from segcal.report.figures import PageFigure
from segcal.trust.objects import ObjectRow, Objects, yes_no
from segcal.trust.result import number_cell, span_cell

# How the file of each command begins: what begins otherwise was written by something else.
EVALUATION_PAGE, TRUST_PAGE, BENCHMARK_PAGE, WORKLIST = (
    re.compile(rb"<!doctype html>.{1,2000}<title>segcal " + title, re.DOTALL)
    for title in (b"report: evaluation of ", b"report: trust in ", b"report: (?!evaluation of |trust in )", b"objects")
)
# The page's script, in the order in which its files need each other.
SCRIPTS = (
    "dom.js", "colours.js", "format.js", "verdict.js", "chart.js", "reliability.js", "table.js", "maps.js", "cases.js",
    "panels.js", "scatter.js", "trust.js", "provenance.js", "main.js",
)  # fmt: skip
# Characters of images of cases in one page; cases beyond it are left out, the worst are kept.
MOST_IMAGES = 2_400_000
MOST_FIGURES = 1_700_000
MOST_TITLE = 80
# Rows of a worklist.
MOST_ROWS = 1000
HEADINGS = ("Case and structure", "Object", "Real", "Listed", "Size", "Expected Dice", "Centre (voxels)", "Centre (mm)")
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def asset(name: str, **parts: str) -> str:
    """Return a file of the page's own, with these parts in their places."""
    text = (files("segcal.report.page") / "assets" / name).read_text("utf-8")
    # One pass over the file: what the texts hold is not looked at.
    return re.sub(r"%%(\w+)%%", lambda found: parts[found[1]], text) if parts else text


def html_file(title: str, style: str, body: str, script: str | None = None, mark: str = "") -> str:
    """Return an HTML file that may run its own script and use its own style, and nothing else."""
    allowed, own = ("'none'", "") if script is None else (f"'{_digest(script)}'", f"<script>{script}</script>\n")
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src '{_digest(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return asset("file.html", title=escape(title), policy=escape(policy), style=style, body=body + own, mark=mark)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def render_page(document: Document, figures: Sequence[PageFigure] = ()) -> str:
    """Return the page of a document, with figures of studies."""
    shown = structs.replace(document, examples=bounded_examples(document.examples))
    data, drawn = json_text(shown), json_text(bounded_figures(figures))
    body = asset("page.html", plain=_plain_verdicts(document), figures=drawn, data=data)
    title = document.title if len(document.title) <= MOST_TITLE else f"{document.title[: MOST_TITLE - 1]}…"
    script = "\n".join(["'use strict';", *(asset(name) for name in SCRIPTS)])
    return html_file(f"segcal report: {title}", asset("page.css"), body, script)


def write_page(path: str | os.PathLike[str], document: Document, figures: Sequence[PageFigure] = ()) -> Path:
    """Write the page of a document and return its path."""
    return write_text(path, render_page(document, figures))


def json_text(data: object) -> str:
    """Return JSON that can stand inside a script element whatever it holds.

    >>> documents.parse_json(json_text("</script>")), "<" in json_text("</script>")
    ('</script>', False)
    """
    text = documents.json_text(to_builtins(data))
    for character, escaped in ESCAPED.items():
        text = text.replace(character, escaped)
    return text


def bounded_examples(examples: Mapping[str, CaseExamples], most: int = MOST_IMAGES) -> dict[str, CaseExamples]:
    """Return the examples of all tasks with as many cases as fit: first the worst of every task, then the next ones."""
    kept = {task: structs.replace(found, cases=[]) for task, found in examples.items()}
    used = 0
    for rank in range(max((len(found.cases) for found in examples.values()), default=0)):
        for task, found in examples.items():
            if rank < len(found.cases):
                used += len(json.dumps(to_builtins(found.cases[rank])))
                if used <= most or not any(each.cases for each in kept.values()):
                    kept[task].cases.append(found.cases[rank])
    return kept


def bounded_figures(figures: Sequence[PageFigure], most: int = MOST_FIGURES) -> list[PageFigure]:
    """Return the figures that fit, small ones first where there is not room for all, in their own order."""
    kept, used = set(), 0
    for number in sorted(range(len(figures)), key=lambda number: len(figures[number].svg)):
        used += len(figures[number].svg)
        if used <= most:
            kept.add(number)
    return [figure for number, figure in enumerate(figures) if number in kept]


def _plain_verdicts(document: Document) -> str:
    """Return the headlines as HTML, for readers whose browser runs no script."""
    found = [(each.id, each.verdict.headline) for each in document.sections if each.verdict is not None]
    if document.trust is not UNSET:
        trust = document.trust
        cases = f"{trust.flagged_cases} of {trust.of_cases} cases to review."
        found.append(("trust", f"{cases} {trust.flagged} of {trust.of} structures to review. {trust.promise}"))
    return "".join(f"<p><b>{escape(name)}</b>: {escape(text)}</p>" for name, text in found)


def write_worklist(path: Path, result: Objects) -> Path:
    """Write the worklist of :func:`segcal.objects`, what to look at first on top; the CSV file beside it has all."""
    rows = result.first()
    more = f"<p class=small>The first {MOST_ROWS} of {len(rows)}; objects.csv has all.</p>"
    body = asset(
        "worklist.html",
        summary=escape(result.summary()),
        promise=escape(result.promise),
        heads="".join(f"<th scope=col>{escape(each)}</th>" for each in HEADINGS),
        rows="".join(_row(row) for row in rows[:MOST_ROWS]),
        more=more if len(rows) > MOST_ROWS else "",
    )
    cases = len({row.case for row in result.cases})
    return write_text(path, html_file(f"segcal objects of {cases} cases", asset("page.css"), body))


def _row(row: ObjectRow) -> str:
    name = f"<bdi>{escape(row.case)}</bdi><span class=sub><bdi>{escape(row.structure)}</bdi></span>"
    size = f"{row.size:.4g} {row.unit}<span class=sub>{span_cell(row.size_low, row.size_high, '.4g')}</span>"
    real, dice = (number_cell(each, ".2f") for each in (row.p_real, row.expected_dice))
    places = ("–" if each is None else " ".join(f"{x:.0f}" for x in each) for each in (row.centroid, row.world))
    cells = (row.object, real, yes_no(row.listed), size, dice, *places)
    return f"<tr><th scope=row>{name}</th>{''.join(f'<td>{each}</td>' for each in cells)}</tr>\n"
