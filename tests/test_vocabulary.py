"""Pages, docstrings, comments, messages and names use the words of docs/internals/glossary.md."""

import re

from benchmarks import words

GLOSSARY = words.ROOT / "docs" / "internals" / "glossary.md"


def test_pages_texts_and_names_have_no_forbidden_word():
    assert words.found(words.forbidden()) == []


def test_docstrings_say_the_noun_first():
    paths = [path for group in words.modules().values() for path in group]
    assert [text for path in paths for text in words.docstrings(path) if text.startswith(words.QUESTIONS)] == []


def test_the_glossary_is_short_and_says_each_word_once():
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text("utf-8").split("## Forbidden words")[0], re.MULTILINE)
    terms = [term.strip() for row in rows[1:] for term in row.split(",")]
    assert len(rows) - 1 <= 30
    assert len(set(terms)) == len(terms)


def test_words_are_found_in_comments_docstrings_messages_and_names(tmp_path):
    (tmp_path / "src" / "segcal" / "cases").mkdir(parents=True)
    (tmp_path / "docs" / "internals").mkdir(parents=True)
    module = tmp_path / "src" / "segcal" / "cases" / "sweep.py"
    module.write_text(
        '"""Sifted."""\n# a glance\nname = "glance"\nraise ValueError(f"{name} is strewn")\n'
        'class TimidCase:\n    def doubt(self):\n        """Deprecated: the old name."""\n    def in_doubt(self): ...\n'
    )
    (tmp_path / "docs" / "page.md").write_text("A glance, `glance`, [x](glance.md).\n\n```\nglance\n```\n")
    found = [(line.split(": ")[0], line.split(": ")[1]) for line in words.found(words.forbidden(), tmp_path)]
    file = "src/segcal/cases/sweep.py"
    expected = [(2, "glance"), (4, "strewn"), (1, "sweep"), (5, "Timid"), (8, "doubt")]
    # a name is no message, and one word is no text
    assert sorted(found) == sorted([(f"{file}:{line}", word) for line, word in expected] + [("docs/page.md", "glance")])


def test_sentences_are_counted_without_tables_headings_and_doctests():
    long = " ".join(["word"] * 26) + "."
    assert words.long_sentences(f"# {long}\n\n| {long} |\n\nShort. {long}\n\n- {long}") == 2
    assert words.long_sentences(f">>> x = [\n...     {long}\n{long}\n\n=== ===\n{long}\n=== ===\n\nShort.") == 0
    assert words.long_sentences(f"Code counts once: `{long}`, and so does :math:`{long}`.") == 0


def test_a_word_with_several_meanings_counts_where_its_use_is_not_clear():
    assert words.ambiguous("Voxels are drawn at random, in place, as a part of it; in the place of logits.") == []
    assert words.ambiguous("Each part has draws; another\nplace, 20 divisions.") == [
        "part",
        "draws",
        "place",
        "divisions",
    ]
