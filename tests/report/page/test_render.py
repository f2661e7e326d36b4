"""The page as text: what is escaped, what is allowed, and how large it may become."""

import base64
import hashlib
import html
import json
import re

from segcal.report.page import SCHEMA, render_page, write_page
from segcal.report.page.render import SCRIPTS, asset, bounded_examples, bounded_figures, json_text


def document(**changes):
    verdict = {"headline": "<b>All</b> is well."}
    place = {"id": "</title><script>harm()</script>", "verdict": verdict}
    return {"schema": SCHEMA, "title": "</title><script>harm()</script>", "places": [place], "examples": {}, **changes}


def embedded(page, name):
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def test_the_document_comes_back_from_the_page_whatever_it_holds():
    nasty = "</script><!--<script>\u2028'\"&%%data%%%%script%%"
    page = render_page(document(notes=[nasty]), [{"name": "a", "svg": f"<svg>{nasty}</svg>"}])
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
    examples = {task: {"cases": [{"png": "x" * 1000}] * 5, "of": 90} for task in ("a", "b")}
    kept = bounded_examples(examples, most=4200)
    assert [len(kept[task]["cases"]) for task in ("a", "b")] == [2, 2]
    assert kept["a"]["of"] == 90
    assert len(bounded_examples(examples, most=1)["a"]["cases"]) == 1


def test_figures_are_bounded_and_keep_their_order():
    figures = [{"name": str(size), "svg": "x" * size} for size in (500, 10, 300, 20)]
    assert [each["name"] for each in bounded_figures(figures, most=350)] == ["10", "300", "20"]


def test_the_page_is_written_beside_and_renamed(tmp_path):
    path = write_page(tmp_path / "page.html", document())
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
