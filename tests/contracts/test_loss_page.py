"""The generated parts of docs/losses.md are what the results of the study say."""

import importlib.util
from pathlib import Path

import pytest

from segcal.demo.loss_study.results import Results
from segcal.demo.loss_study.rows import read_rows

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "benchmarks" / "results" / "losses.zip"


@pytest.fixture
def figures():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    if not ARCHIVE.exists():
        pytest.skip("the results of the study are not part of this copy")
    spec = importlib.util.spec_from_file_location("loss_figures", ROOT / "benchmarks" / "loss_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_was_measured(figures):
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    parts = figures.make_texts(Results(read_rows([ARCHIVE])))
    assert all(f"<!-- begin {name} -->" in page for name in parts)
    assert figures.replace_parts(page, parts) == page


def test_only_what_stands_between_marks_is_replaced(figures):
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb"
    assert figures.replace_parts(page, {"x": "new", "y": "-"}) == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb"
