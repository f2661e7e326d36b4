"""HTML files: what is escaped, what is allowed, and how large they may become."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace

from msgspec import to_builtins

from segcal.report import page as module
from segcal.report.document import CaseColumns, CaseExamples, Document, Provenance, TaskSection
from segcal.report.figures import PageFigure
from segcal.report.images import SeenCase
from segcal.report.page import (
    asset,
    bounded_examples,
    bounded_figures,
    json_text,
    render_page,
    write_page,
    write_worklist,
)
from segcal.report.verdict import PartCounts, Verdict
from segcal.trust.objects import ObjectCaseRow, ObjectRow, Objects

HARM = "</title><script>harm()</script>"
EVIL = "<script>alert('x')</script>&\""


def document(notes=()):
    section = TaskSection(
        id=HARM, task="a", classes=[], background=True, baseline=None, chosen=None, rows=[], curves={},
        verdict=Verdict("<b>All</b> is well.", "same", "", ""), division=PartCounts(1, 1, 1, 1),
        cases=CaseColumns([], 0, {}, {}, {}),
    )  # fmt: skip
    provenance = Provenance(segcal="1", fingerprints={})
    return Document(
        kind="evaluation", title=HARM, level=0.95, notes=list(notes), sections=[section], provenance=provenance
    )


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
    for name in module.SCRIPTS:
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


def objects(count=2):
    place = ([1.0, 2.0], [0, 0, 2, 3], None, None, None, None)
    rows = [
        ObjectRow(f"{EVIL}{k}", EVIL, k, 0.5 + k / 10, True, 0.5, 7, None, None, "voxels", 7, 0.9, 0.9, None, *place)
        for k in reversed(range(count))
    ]
    cases = [ObjectCaseRow("a", EVIL, count, 1.0, 1, 0.25, None, None, None)]
    return Objects(rows, cases, [], 0.9, 0.1, "iou", 0.1, "held out", EVIL)


def test_a_worklist_is_one_file_with_escaped_names(tmp_path):
    text = write_worklist(tmp_path / "w.html", objects()).read_text("utf-8")
    assert module.WORKLIST.match(text.encode())
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2 * 2 + 1
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert "script-src &#x27;none&#x27;" in text
    assert text.index("&quot;0</bdi>") < text.index("&quot;1</bdi>")


def test_a_long_list_is_cut_and_says_so_and_an_empty_one_is_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 1)
    text = write_worklist(tmp_path / "w.html", objects()).read_text("utf-8")
    assert "The first 1 of 2; objects.csv has all." in text
    assert text.count("<tr>") == 2
    monkeypatch.undo()
    text = write_worklist(tmp_path / "w.html", replace(objects(), rows=[])).read_text("utf-8")
    assert "0 objects, 0 listed" in text
