"""The generated parts of docs/losses.md are what the results of the study say."""

import importlib.util
from pathlib import Path

import pytest

from segcal.demo.loss_study.page import sections
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
    drawn = [path.stem for path in (ROOT / "docs" / figures.IMAGES).iterdir()]
    text = sections(Results(read_rows([ARCHIVE])), drawn, figures.IMAGES.as_posix())
    assert figures.replaced(page, text) == page


def test_only_what_stands_between_marks_is_replaced(figures):
    page = f"a\n{figures.BEGIN}\nold\n{figures.END}\nb"
    assert figures.replaced(page, "new\n") == f"a\n{figures.BEGIN}\n\nnew\n\n{figures.END}\nb"
