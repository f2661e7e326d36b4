"""Rows on paper: sorted, as CSV, as JSON, in a table; names of others are kept harmless."""

import csv
import json
from dataclasses import replace

import pytest

from segcal.trust.result import CSV_SIGNATURE, JSON_SIGNATURE, WORKLIST_SIGNATURE, Trust, write_trust
from segcal.trust.rows import TrustRow


def row(case, review, chance, **more):
    found = dict.fromkeys(TrustRow.__annotations__, 0.5)
    return found | {"case": case, "structure": "s", "unit": "ml", "review": review, "dice_below_tau": chance,
                    "reason": "why" if review else ""} | more  # fmt: skip


@pytest.fixture
def result():
    rows = [row("calm", False, 0.1), row("=worse", True, 0.6), row("empty", True, None, dice_low=None)]
    found = [
        {"subject": "p", "biomarker": "ef", "value": 50.0, "low": 40.0, "high": None, "mask_value": 51.0, "reason": ""}
    ]
    return Trust(rows, found, [], 0.9, 0.7, "held out", 30, "A promise.")


def test_what_is_to_be_reviewed_stands_first(result):
    assert [each["case"] for each in result.first()] == ["empty", "=worse", "calm"]
    assert [each["case"] for each in result.rows] == ["calm", "=worse", "empty"]


def test_files_hold_every_row_and_are_known_again(result, tmp_path):
    signatures = (JSON_SIGNATURE, CSV_SIGNATURE, WORKLIST_SIGNATURE)
    for path, signature in zip(write_trust(result, tmp_path), signatures, strict=True):
        assert signature.match(path.read_bytes())
    with (tmp_path / "trust.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [each["case"] for each in rows] == ["calm", "'=worse", "empty"]
    assert rows[2]["dice_low"] == ""
    document = json.loads((tmp_path / "trust.json").read_text("utf-8"))
    assert document["rows"][2]["dice_low"] is None
    assert document["promise"] == "A promise."


def test_of_many_rows_the_first_are_printed(result):
    many = replace(result, rows=[row(f"c{k:03d}", False, k / 200) for k in range(100)])
    text = str(many)
    assert "... and 40 more rows" in text
    assert "c099" in text
    assert "c001" not in text


def test_the_table_says_how_many_to_review(result):
    text = str(result)
    assert "2 of 3 structures to review. A promise." in text
    assert text.index("empty") < text.index("=worse") < text.index("calm")
    assert "–" in text
    assert "ef" in text


def test_a_tau_of_its_own_stands_beside_the_chance(result):
    own = replace(result, tau={"s": 0.5})
    assert "Dice < tau" in str(own)
    assert "0.60 (tau 0.5)" in str(own)
    assert "Dice < 0.7" in str(result)
    assert own.to_plain()["tau"] == {"s": 0.5}
