"""Pages, docstrings, comments and messages use the words of docs/internals/glossary.md."""

import re
import tomllib

import pytest

from benchmarks import words

FOUND = words.counts(words.forbidden())
BOUNDS = tomllib.loads(words.BOUNDS.read_text("utf-8"))
GLOSSARY = words.ROOT / "docs" / "internals" / "glossary.md"


@pytest.mark.parametrize("package", FOUND["packages"])
def test_a_package_has_no_more_forbidden_words_than_before(package):
    now, bound = FOUND["packages"][package], BOUNDS["packages"].get(package, 0)
    assert now <= bound, "see: python -m benchmarks.words --list"


def test_pages_have_no_forbidden_words_but_those_that_are_left():
    more = {page: count for page, count in FOUND["pages"].items() if count > BOUNDS["pages"].get(page, 0)}
    assert not more, "see: python -m benchmarks.words --list"


def test_bounds_are_only_lowered(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "BOUNDS", tmp_path / "words.toml")
    words._write({"packages": {"a": 3, "b": 2}, "pages": {"x.md": 1}})
    words._write({"packages": {"a": 5, "b": 1, "c": 4}, "pages": {"y.md": 2}})
    assert tomllib.loads(words.BOUNDS.read_text("utf-8")) == {"packages": {"a": 3, "b": 1, "c": 0}, "pages": {}}


def test_the_glossary_is_short_and_says_each_word_once():
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text("utf-8").split("## Forbidden words")[0], re.MULTILINE)
    terms = [term.strip() for row in rows[1:] for term in row.split(",")]
    assert len(rows) - 1 <= 30
    assert len(set(terms)) == len(terms)


def test_words_are_found_in_comments_docstrings_and_messages(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""Sifted."""\n# a glance\nname = "glance"\nraise ValueError(f"{name} is strewn")\n')
    pattern = words.forbidden()
    found = [match for _, text in words.texts(path) for match in pattern.findall(text)]
    assert sorted(found) == ["glance", "strewn"]  # a name is no message, and one word is no text
    path.with_suffix(".md").write_text("A glance, `glance`, [x](glance.md).\n\n```\nglance\n```\n")
    assert pattern.findall(words.prose(path.with_suffix(".md"))) == ["glance"]


def test_sentences_are_counted_without_tables_and_headings():
    long = " ".join(["word"] * 26) + "."
    assert words.long_sentences(f"# {long}\n\n| {long} |\n\nShort. {long}\n\n- {long}") == 2
