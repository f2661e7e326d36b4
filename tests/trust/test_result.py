"""Rows on paper: sorted, as CSV, as JSON, in a table; one verdict per case; names of others are kept harmless."""

import csv
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

import segcal
from segcal.report.evaluated import section_of
from segcal.trust.objects import ObjectCaseRow, ObjectRow, Objects
from segcal.trust.result import (
    WORKLIST_SIGNATURE,
    BiomarkerRow,
    BoundRow,
    CaseVerdict,
    Trust,
    TrustRow,
    case_rows,
    number_cell,
    span_cell,
)

ROWS = some.tuples(some.booleans(), some.none() | some.floats(0, 1), some.floats(0, 1))


def row(case, review, chance, dice=0.5, structure="s", **more):
    found = dict.fromkeys(TrustRow.__annotations__, 0.5)
    return found | {"case": case, "structure": structure, "unit": "ml", "review": review, "dice_below_tau": chance,
                    "expected_dice": dice, "reason": f"why {structure}" if review else ""} | more  # fmt: skip


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def trusted():
    rows = [row("calm", False, 0.1), row("=worse", True, 0.6), row("empty", True, None, dice_low=None)]
    marker = dict.fromkeys(BiomarkerRow.__annotations__, 50.0) | {"subject": "p", "biomarker": "ef", "reason": ""}
    return Trust(rows, [marker | {"high": None}], [], 0.9, 0.7, "held out", 30, "A promise.")


def test_files_hold_every_row_and_are_known_again(trusted, tmp_path):
    trusted.write(tmp_path)
    trusted.to_worklist(tmp_path / "worklist.csv")
    for name, signature in (Trust.signatures() | {"worklist.csv": WORKLIST_SIGNATURE}).items():
        assert signature.match((tmp_path / name).read_bytes())
    assert not Objects.signatures()["objects.csv"].match((tmp_path / "trust.csv").read_bytes())
    assert not Objects.signatures()["objects.json"].match((tmp_path / "trust.json").read_bytes())
    rows = read_csv(tmp_path / "trust.csv")
    assert [each["case"] for each in rows] == ["calm", "'=worse", "empty"]
    assert rows[2]["dice_low"] == ""
    document = json.loads((tmp_path / "trust.json").read_text("utf-8"))
    assert document["rows"][2]["dice_low"] is None
    assert document["promise"] == "A promise."


def test_what_is_to_be_reviewed_is_printed_first(trusted):
    assert [each["case"] for each in trusted.first()] == ["empty", "=worse", "calm"]
    text = str(trusted)
    assert "2 of 3 structures to review. A promise." in text
    assert text.index("empty") < text.index("=worse") < text.index("calm")
    assert "–" in text
    assert "ef" in text
    assert "Dice < 0.7" in text
    own = replace(trusted, tau={"s": 0.5})
    assert "Dice < tau" in str(own)
    assert "0.60 (tau 0.5)" in str(own)
    assert own.to_plain()["tau"] == {"s": 0.5}


def test_of_many_rows_the_first_are_printed_and_of_many_cases_the_first_are_named(trusted):
    text = str(replace(trusted, rows=[row(f"c{k:03d}", False, k / 200) for k in range(100)]))
    assert "... and 40 more rows" in text
    assert "c099" in text
    assert "c001" not in text
    text = str(replace(trusted, rows=[row(f"c{k:02d}", True, 0.5) for k in range(12)]))
    assert "12 of 12 cases to review: c00, c01, c02, c03, c04, c05, c06, c07, c08, c09, ...\n" in text
    assert "0 of 1 cases to review\n" in str(replace(trusted, rows=[row("a", False, 0.1)]))


@given(some.dictionaries(some.sampled_from("abcdefgh"), some.lists(ROWS, min_size=1, max_size=4)))
def test_a_case_never_contradicts_its_rows(drawn):
    rows = [
        row(case, *each, structure=f"s{k}") for case, some_rows in drawn.items() for k, each in enumerate(some_rows)
    ]
    found = case_rows(rows)
    assert sorted(case["case"] for case in found) == sorted(drawn)
    for case in found:
        own = [each for each in rows if each["case"] == case["case"]]
        flagged = [each for each in own if each["review"]]
        assert case["review"] == any(each["review"] for each in own)
        assert (case["to_review"], case["structures"]) == (len(flagged), len(own))
        assert case["reason"] == " | ".join(f"{each['structure']}: why {each['structure']}" for each in flagged)
        unknown = any(each["dice_below_tau"] is None for each in own)
        assert (case["dice_below_tau"] is None) == unknown
        assert unknown or case["dice_below_tau"] == max(each["dice_below_tau"] for each in own)
        assert case["expected_dice"] == min(each["expected_dice"] for each in own)
        assert 0 <= case["score"] <= 1
        assert case["score"] >= 0.5 if case["review"] else case["score"] <= 0.5
    scores = [case["score"] for case in found]
    assert scores == sorted(scores, reverse=True)
    assert [case["review"] for case in found] == sorted((case["review"] for case in found), reverse=True)


def test_the_order_is_verdict_then_chance_then_dice_then_name():
    rows = [
        row("calm", False, 0.1), row("odd", True, 0.1), row("bad", True, 0.6),
        row("worse", True, 0.6, 0.2), row("empty", True, None), row("also calm", False, 0.1),
    ]  # fmt: skip
    assert [case["case"] for case in case_rows(rows)] == ["empty", "worse", "bad", "odd", "also calm", "calm"]
    assert [case["score"] for case in case_rows(rows)] == pytest.approx([1, 0.8, 0.8, 0.55, 0.05, 0.05])


def test_table_json_csv_and_page_have_the_same_verdicts_and_their_columns(fitted, make_cases, tmp_path):
    cases = make_cases(9, seed=5, prefix="new")
    options = {"tau": {"wall": 0.3, "core": 0.7}, "biomarkers": {"ratio": "{core} / {wall}"}}
    found = segcal.trust(fitted, cases, **options)
    tables = {TrustRow: found.rows, CaseVerdict: found.cases(), BiomarkerRow: found.biomarkers, BoundRow: found.bounds}
    for kind, rows in tables.items():
        assert rows
        assert all(list(row) == list(kind.__annotations__) for row in rows)
    verdicts = {case["case"]: case["review"] for case in found.cases()}
    assert set(verdicts.values()) == {True, False}
    assert verdicts == {name: any(each["review"] for each in found.rows if each["case"] == name) for name in cases.ids}
    found.to_json(tmp_path / "trust.json")
    assert json.loads((tmp_path / "trust.json").read_text("utf-8"))["cases"] == found.cases()
    found.to_worklist(tmp_path / "list.csv", {"new00": "images/new00.png"})
    listed = read_csv(tmp_path / "list.csv")
    assert {each["case"]: each["review"] for each in listed} == {name: str(said) for name, said in verdicts.items()}
    assert [each["image"] for each in listed if each["image"] or each["case"] == "new00"] == ["images/new00.png"]
    assert [float(each["score"]) for each in listed] == pytest.approx([case["score"] for case in found.cases()])
    section = section_of(found, fitted, cases)
    assert (section.cases, section.of_cases, section.flagged_cases) == (found.cases(), 9, sum(verdicts.values()))
    to_review = [name for name, review in verdicts.items() if review]
    assert f"{len(to_review)} of 9 cases to review: {', '.join(to_review)}\n" in str(found)


def object_row(case, number, p, listed=True, voxels=7):
    place = ([1.0, 2.5], [0, 1, 3, 5], [1.0, 2.0, 3.0], None)
    return ObjectRow(
        case, "sign", number, p, listed, 0.5, 7.0, 3.0, None, "ml", voxels, 0.9, 0.99, None, *place, None, None
    )


@pytest.fixture
def found():
    given = [("=a", 1, 0.99), ("b", 1, 0.4, False), ("b", 2, None, None), ("b", 3, 0.6, True, 9)]
    rows = [object_row(*each) for each in given]
    cases = [
        ObjectCaseRow("=a", "sign", 1, 0.99, 1, 0.5, 2.0, None, None),
        ObjectCaseRow("b", "sign", 3, 1, 1, 0.5, 2.0, 3, 1),
    ]
    return Objects(rows, cases, [], 0.9, 0.1, "iou", 0.1, "held out", "All is well.")


def test_what_is_least_sure_stands_first_and_large_ones_before_small_ones(found):
    assert [(each.case, each.object) for each in found.first()] == [("b", 2), ("b", 3), ("b", 1), ("=a", 1)]


def test_files_of_objects_hold_every_row(found, tmp_path):
    found.write(tmp_path)
    read = read_csv(tmp_path / "objects.csv")
    assert (read[0]["case"], read[0]["box"], read[0]["size_high"]) == ("'=a", "0 1 3 5", "")
    for name, signature in Objects.signatures().items():
        assert signature.match((tmp_path / name).read_bytes())
    plain = json.loads((tmp_path / "objects.json").read_text("utf-8"))
    assert plain["rows"][2]["p_real"] is None
    assert plain["cases"][1]["missed"] == 1


def test_objects_print_counts_and_the_promise(found):
    assert "4 objects, 2 listed; about 2.0 are real and 0.50 are missed in a case.\nAll is well." in str(found)


def test_large_sizes_are_printed_without_an_exponent():
    assert number_cell(18520.4, ".4g") == "18,520"
    assert span_cell(980.26, 10123.0, ".4g") == "[980.3, 10,123]"
    assert number_cell(0.51, ".2f") == "0.51"
