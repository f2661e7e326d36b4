"""Reasons for a review, one by one; and the whole way: fit, learn, judge, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import segcal
from segcal.trust.estimates import BadMasks, Errors, SumTable
from segcal.trust.judge import Judge
from segcal.trust.learn import Summer


@pytest.fixture(scope="module")
def judge(fitted):
    return Judge.of(fitted, fitted.reference, 0.9, 0.5, True)


@pytest.fixture(scope="module")
def one(fitted, make_cases):
    cases = make_cases(1, seed=30).with_disagreement()
    return SumTable.of(Summer(cases, [fitted.calibrator])("case00"))


def reasons(judge, one, number=2, **columns):
    changed = replace(one, **{name: one.__dict__[name].copy() for name in columns})
    for name, value in columns.items():
        getattr(changed, name)[0, number] = value
    (row,) = [row for row in judge.rows([changed], "voxels") if row["structure"] == judge.titles[number]]
    return row


def test_a_usual_case_passes(judge, one):
    row = reasons(judge, one)
    assert (row["review"], row["reason"]) == (False, "")
    assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
    assert row["volume"] == pytest.approx(one.prob[0, 2])
    assert row["mask_volume"] == one.mask[0, 2]


def test_an_empty_mask_is_shown_where_it_is_not_known_to_be_right(judge, one):
    row = reasons(judge, one, mask=0, hit=0)
    text = "empty, as in 0 of the reference groups; 9 are needed to know whether that is right"
    assert row["reason"].startswith(text)
    assert (row["dice_low"], row["dice_high"], row["dice_below_tau"]) == (0.0, 1.0, None)
    assert not row["corrected"]
    known = judge.reference
    nothing = np.zeros_like(known.mask)
    missed = replace(judge, reference=replace(known, mask=nothing, counted=nothing, found=nothing))
    row = reasons(missed, one, mask=0, hit=0)
    assert row["reason"].startswith("empty, and the structure was there in 100 % of 30 such reference groups")
    assert row["dice_below_tau"] == pytest.approx(30.5 / 31)
    absent = replace(missed, reference=replace(missed.reference, truth=nothing))
    row = reasons(absent, one, mask=0, hit=0)
    assert "empty" not in row["reason"]
    assert row["dice_below_tau"] == pytest.approx(0.5 / 31)


def test_a_low_expected_dice_is_shown(judge, one):
    row = reasons(judge, one, hit=0.2 * one.mask[0, 2])
    assert row["reason"].startswith("low expected Dice (below 0.5 with a chance of 98 %)")
    skewed = Errors(np.repeat([0.0, 0.8], [24, 6]), judge.dice[2].groups)  # a Dice above what was expected, if anything
    row = reasons(replace(judge, dice=(*judge.dice[:2], skewed)), one, hit=0.6 * one.mask[0, 2])
    assert row["dice_below_tau"] < 0.1
    assert row["reason"].startswith(f"low expected Dice (its interval begins at {row['dice_low']:.2f}, below 0.5)")
    bad = BadMasks(np.linspace(0.5, 0.9, 10), tuple("abcdefghij"))
    known = replace(judge, bad=(*judge.bad[:2], bad))
    row = reasons(known, one, hit=0.7 * one.mask[0, 2])
    above = (bad.values >= row["uncorrected_dice"]).sum()
    assert 1 <= above < 10
    assert row["reason"].startswith(f"low expected Dice (as high in {100 * (above + 1) / 11:.0f} % of bad masks)")


def test_members_that_disagree_and_unusual_cases_are_shown(judge, one):
    assert "members disagree (p = 0.032)" in reasons(judge, one, agreement=0.01)["reason"]
    row = reasons(judge, one, edge_prob=1e-3, spread=1.0, prob=0.1)
    assert "unlike the reference cases (p = 0.032)" in row["reason"]


def test_rows_have_what_is_stated_of_them(fitted, make_cases):
    found = segcal.trust(fitted, make_cases(3, seed=40, labelled=False))
    assert len(found.rows) == 3 * 2
    for row in found.rows:
        assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
        assert row["unit"] == "voxels"
    assert (found.level, found.source, found.draws) == (0.9, "held out", 30)
    assert found.promise == (
        "On average over cases like the reference, at least 90 % of the intervals contain the true value."
    )
    every = segcal.trust(fitted, make_cases(1, seed=40), background=False)
    assert [row["structure"] for row in every.rows] == ["outside", "wall", "core"]
    assert [row["structure"] for row in found.bounds] == ["wall", "core"]
    assert all(row["outer_threshold"] <= 0.5 <= row["inner_threshold"] for row in found.bounds)


def test_it_works_from_a_folder_and_with_biomarkers(fitted, make_cases, tmp_path):
    segcal.save(fitted, tmp_path / "cal")
    cases = make_cases(4, seed=43, labelled=False)
    options = {"link": r"(case\d)(\d)", "biomarkers": {"ratio": "{core@1} / {wall@0}"}}
    with pytest.raises(segcal.InputError, match=r"link is .* but no case \(such as 'ref00'\) matches it"):
        segcal.trust(tmp_path / "cal", cases, **options)
    done = []
    one = segcal.trust(tmp_path / "cal", cases, biomarkers={"ratio": "{core} / {wall}"}, progress=done.append)
    two = segcal.trust(fitted, cases, biomarkers={"ratio": "{core} / {wall}"})
    assert one == two
    assert done == list(cases.ids)
    first = one.rows[0], one.rows[1]
    assert one.biomarkers[0]["value"] == pytest.approx(first[1]["volume"] / first[0]["volume"])


def test_what_cannot_be_judged_is_one_sentence(fitted, make_cases):
    cases = make_cases(2, seed=44, labelled=False)
    with pytest.raises(segcal.InputError, match=r"the calibrator has no reference cases, but .* segcal fit"):
        segcal.trust(replace(fitted, reference=None), cases)
    made = np.arange(24.0).reshape(2, 1, 3, 4) - 11
    regions = segcal.ArrayCases(list(made), list(made[:, 0] > 3), kind="logits", regions={"a": [1]})
    with pytest.raises(segcal.InputError, match=r"is for regions, but trust and monitor are for classes .* evaluate"):
        segcal.trust(segcal.fit("ts", regions), regions)
    other = segcal.fit("ts", make_cases(4, seed=45))
    with pytest.raises(segcal.InputError, match="the reference belongs to another calibrator, but its numbers"):
        segcal.trust(replace(other, reference=fitted.reference), cases)
    with pytest.raises(segcal.InputError, match="fitted is Temperature"):
        segcal.trust(fitted.calibrator, cases)
    with pytest.raises(segcal.InputError, match="cases is empty, but at least one case is needed"):
        segcal.trust(fitted, cases.subset([]))


def test_a_tau_of_each_structure_is_that_of_a_run_with_it_alone(fitted, make_cases):
    cases = make_cases(8, seed=51, labelled=False, noise=1.2)
    apart = {"wall": 0.45, "core": 0.85}
    alone = {name: segcal.trust(fitted, cases, tau=value) for name, value in apart.items()}
    found = segcal.trust(fitted, cases, tau=apart)
    assert (found.tau, alone["core"].tau) == (apart, 0.85)
    for tables in ("rows", "bounds"):
        wanted = [
            next(other for other in getattr(alone[row["structure"]], tables)
                 if (other.get("case"), other["structure"]) == (row.get("case"), row["structure"]))
            for row in getattr(found, tables)
        ]  # fmt: skip
        assert getattr(found, tables) == wanted
    assert [row["tau"] for row in found.rows[:2]] == [0.45, 0.85]
    assert found.rows != alone["core"].rows
    other = segcal.trust(fitted, cases, tau={"core": 0.85})
    assert other.tau == {"wall": 0.7, "core": 0.85}
    assert other.rows[1::2] == alone["core"].rows[1::2]


@pytest.mark.parametrize(("given", "text"), [
    ({"tau": {"kernel": 0.5}}, "tau names the structure 'kernel', but there are outside, wall, core. Correct the name"),
    ({"tau": {"core": 1.5}}, "tau of core is 1.5, but a Dice between 0 and 1 is needed. Use 0.7 if nothing else"),
    ({"tau": {"core": "high"}}, "but a finite number or a dictionary from text to a finite number is needed"),
    ({"tau": 70}, "tau is 70, but a Dice between 0 and 1 is needed"),
    ({"level": 0.99}, r"level is 0.99, but the reference has 30 groups .* and 99 are needed. Use level=0.96 or less"),
])  # fmt: skip
def test_levels_and_tau_that_cannot_be_are_refused(fitted, make_cases, given, text):
    with pytest.raises(segcal.InputError, match=text):
        segcal.trust(fitted, make_cases(1), **given)
