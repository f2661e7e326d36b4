"""One verdict per case: never against its rows, in every file; and the order of the list."""

import csv
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

import segcal
from segcal.report.evaluated import section_of
from segcal.trust.result import WORKLIST_SIGNATURE, Trust
from segcal.trust.rows import TrustRow
from segcal.trust.worklist import case_rows

ROWS = some.tuples(some.booleans(), some.none() | some.floats(0, 1), some.floats(0, 1))


def row(case, structure, review, chance, dice=0.5):
    found = dict.fromkeys(TrustRow.__annotations__, 0.5)
    return found | {"case": case, "structure": structure, "unit": "ml", "review": review, "dice_below_tau": chance,
                    "expected_dice": dice, "reason": f"why {structure}" if review else "a note"}  # fmt: skip


@given(some.dictionaries(some.sampled_from("abcdefgh"), some.lists(ROWS, min_size=1, max_size=4)))
def test_a_case_never_contradicts_its_rows(drawn):
    rows = [row(case, f"s{k}", *each) for case, some_rows in drawn.items() for k, each in enumerate(some_rows)]
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
        row("calm", "s", False, 0.1), row("odd", "s", True, 0.1), row("bad", "s", True, 0.6),
        row("worse", "s", True, 0.6, 0.2), row("empty", "s", True, None), row("also calm", "s", False, 0.1),
    ]  # fmt: skip
    assert [case["case"] for case in case_rows(rows)] == ["empty", "worse", "bad", "odd", "also calm", "calm"]
    assert [case["score"] for case in case_rows(rows)] == pytest.approx([1, 0.8, 0.8, 0.55, 0.05, 0.05])


def test_table_json_csv_and_page_have_the_same_verdicts(fitted, make_cases, tmp_path):
    cases = make_cases(9, seed=5, prefix="new")
    result = segcal.trust(fitted, cases, tau={"wall": 0.3, "core": 0.7})
    verdicts = {case["case"]: case["review"] for case in result.cases()}
    assert set(verdicts.values()) == {True, False}
    assert verdicts == {name: any(each["review"] for each in result.rows if each["case"] == name) for name in cases.ids}
    result.to_json(tmp_path / "trust.json")
    plain = json.loads((tmp_path / "trust.json").read_text("utf-8"))["cases"]
    assert plain == result.cases()
    result.to_worklist(tmp_path / "list.csv", {"new00": "images/new00.png"})
    assert WORKLIST_SIGNATURE.match((tmp_path / "list.csv").read_bytes())
    with (tmp_path / "list.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [(each["case"], each["review"]) for each in listed] == [
        (name, str(review)) for name, review in verdicts.items()
    ]
    assert {each["case"]: each["image"] for each in listed}["new00"] == "images/new00.png"
    assert {each["image"] for each in listed} == {"", "images/new00.png"}
    assert all(math.isclose(float(each["score"]), case["score"]) for each, case in zip(listed, plain, strict=True))
    section = section_of(result, fitted, cases)
    assert (section.cases, section.of_cases, section.flagged_cases) == (plain, 9, sum(verdicts.values()))
    to_review = [name for name, review in verdicts.items() if review]
    assert f"{len(to_review)} of 9 cases to review: {', '.join(to_review)}\n" in str(result)


def test_of_many_cases_to_review_the_first_are_named():
    rows = [row(f"c{k:02d}", "s", True, 0.5) for k in range(12)]
    text = str(Trust(rows, [], [], 0.9, 0.7, "held out", 30, "A promise."))
    assert "12 of 12 cases to review: c00, c01, c02, c03, c04, c05, c06, c07, c08, c09, ...\n" in text
    calm = str(Trust([row("a", "s", False, 0.1)], [], [], 0.9, 0.7, "held out", 30, "A promise."))
    assert "0 of 1 cases to review\n" in calm
