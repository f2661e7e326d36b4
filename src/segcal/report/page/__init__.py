"""From a document to one HTML file.

The document (:mod:`segcal.report.document`) is embedded as JSON, and the page's own script draws everything from
it. Names in it may come from anywhere: in the JSON every character that could end a script or begin a tag is escaped,
the script only ever sets text, and the file's content security policy allows its own script and style by their digests
and nothing else, from nowhere else.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from msgspec import UNSET, Struct, structs, to_builtins

from segcal import documents
from segcal.atomic import write_text
from segcal.report.document import CaseExamples, Document

# How the page of each command begins: what begins otherwise was written by something else.
EVALUATION_PAGE, TRUST_PAGE, BENCHMARK_PAGE = (
    re.compile(rb"<!doctype html>.{1,2000}<title>segcal report: " + title, re.DOTALL)
    for title in (b"evaluation of ", b"trust in ", b"(?!evaluation of |trust in )")
)
# The page's script, in the order in which its parts need each other.
SCRIPTS = (
    "dom.js", "colours.js", "format.js", "verdict.js", "chart.js", "reliability.js", "table.js", "maps.js", "cases.js",
    "panels.js", "scatter.js", "trust.js", "provenance.js", "main.js",
)  # fmt: skip
# Characters of pictures of cases in one page; cases beyond it are left out, the worst are kept.
MOST_PICTURES = 2_400_000
MOST_FIGURES = 1_700_000
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class PageFigure(Struct):
    """A figure of a study, as SVG, with its words; with a task it is shown in that task's section only."""

    name: str
    task: str
    title: str
    text: str
    svg: str


def render_page(document: Document, figures: Sequence[PageFigure] = ()) -> str:
    """Return the page of a document, with figures of studies."""
    shown = structs.replace(document, examples=bounded_examples(document.examples))
    script = "\n".join(["'use strict';", *(asset(name) for name in SCRIPTS)])
    style = asset("page.css")
    parts = {
        "title": html.escape(f"segcal report: {_shortened(document.title)}"),
        "policy": html.escape(content_policy(style, script)),
        "style": style,
        "script": script,
        "plain": _plain_verdicts(document),
        "figures": json_text(bounded_figures(figures)),
        "data": json_text(shown),
    }
    # One pass over the template: what the parts hold is not looked at.
    return re.sub(r"%%(\w+)%%", lambda found: parts[found[1]], asset("page.html"))


def write_page(path: str | os.PathLike[str], document: Document, figures: Sequence[PageFigure] = ()) -> Path:
    """Write the page of a document and return its path."""
    return write_text(path, render_page(document, figures))


def content_policy(style: str, script: str | None = None) -> str:
    """Return the policy that allows a page its own style and script, and nothing else."""
    allowed = "'none'" if script is None else f"'{_digest(script)}'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src '{_digest(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> str:
    """Return a file of the page's own."""
    return (files("segcal.report.page") / "assets" / name).read_text("utf-8")


def json_text(data: object) -> str:
    """Return JSON that can stand inside a script element whatever it holds.

    >>> documents.parse_json(json_text("</script>")), "<" in json_text("</script>")
    ('</script>', False)
    """
    text = documents.json_text(to_builtins(data))
    for character, escaped in ESCAPED.items():
        text = text.replace(character, escaped)
    return text


def bounded_examples(examples: Mapping[str, CaseExamples], most: int = MOST_PICTURES) -> dict[str, CaseExamples]:
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
    return "".join(f"<p><b>{html.escape(name)}</b>: {html.escape(text)}</p>" for name, text in found)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
