from pathlib import Path

from segcal import CALIBRATORS
from segcal.calibrators.table import calibrator_table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_in_the_docs_is_the_generated_one():
    assert calibrator_table() in (DOCS / "calibrators.md").read_text("utf-8")


def test_every_calibrator_has_a_row_and_a_formula():
    text = (DOCS / "calibrators.md").read_text("utf-8")
    formulas = text.split("## What each one computes")[1]
    for name in CALIBRATORS:
        assert f"| `{name}` |" in text
        assert f"`{name}`" in formulas
