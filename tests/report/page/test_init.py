"""The page as text: what is escaped, what is allowed, and how large it may become."""

import base64
import hashlib
import html
import json
import re

from msgspec import to_builtins
from segcal.report.case_maps import SeenCase

from segcal.report.document import CaseColumns, CaseExamples, Document, Provenance, TaskSection
from segcal.report.page import (
    SCRIPTS,
    PageFigure,
    asset,
    bounded_examples,
    bounded_figures,
    json_text,
    render_page,
    write_page,
)
from segcal.report.verdict import PartCounts, Verdict

HARM = "</title><script>harm()</script>"


def document(notes=()):
    section = TaskSection(
        id=HARM, task="a", classes=[], shown_classes=[], background=True, baseline=None, chosen=None,
        verdict=Verdict("<b>All</b> is well.", "same", "", ""), division=PartCounts(1, 1, 1, 1), rows=[], curves={},
        per_class={}, bands={}, cases=CaseColumns([], 0, {}, {}, {}),
    )  # fmt: skip
    return Document(
        kind="evaluation", title=HARM, level=0.95, notes=list(notes), metrics={}, calibrators={}, sections=[section],
        examples={}, rule="", provenance=Provenance(segcal="1", fingerprints={}),
    )  # fmt: skip


def figure(name, svg):
    return PageFigure(name, "", "", "", svg)


def embedded(page, name):
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def test_the_document_comes_back_from_the_page_whatever_it_holds():
    nasty = "</script><!--<script>\u2028'\"&%%data%%%%script%%"
    page = render_page(document(notes=[nasty]), [figure("a", f"<svg>{nasty}</svg>")])
    assert embedded(page, "data")["notes"] == [nasty]
    assert embedded(page, "figures")[0]["svg"] == f"<svg>{nasty}</svg>"


def test_names_in_the_markup_are_escaped():
    page = render_page(document())
    assert "<script>harm()" not in page
    assert "&lt;b&gt;All&lt;/b&gt; is well." in page


def test_the_policy_allows_this_script_and_this_style_and_nothing_else():
    page = render_page(document())
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_the_script_never_writes_markup_and_never_asks_for_anything():
    for name in SCRIPTS:
        text = asset(name)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "XMLHttp"):
            assert word not in text, (name, word)


def test_json_has_no_character_that_could_end_a_script():
    text = json_text({"a": "<>&\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": "<>&\u2028\u2029"}


def test_examples_are_bounded_and_every_task_keeps_its_worst():
    case = SeenCase("x" * 1000, [], [], [], [], 0, None, [], None, 1, [])
    size = len(json.dumps(to_builtins(case)))
    examples = {task: CaseExamples([case] * 5, 90, "") for task in ("a", "b")}
    kept = bounded_examples(examples, most=4 * size)
    assert [len(kept[task].cases) for task in ("a", "b")] == [2, 2]
    assert (kept["a"].of, len(examples["a"].cases)) == (90, 5)
    assert len(bounded_examples(examples, most=1)["a"].cases) == 1


def test_figures_are_bounded_and_keep_their_order():
    figures = [figure(str(size), "x" * size) for size in (500, 10, 300, 20)]
    assert [each.name for each in bounded_figures(figures, most=350)] == ["10", "300", "20"]


def test_the_page_is_written_beside_and_renamed(tmp_path):
    path = write_page(tmp_path / "page.html", document())
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
