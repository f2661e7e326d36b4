"""The whole way: fit, learn, judge; coverage by counting, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import segcal


def test_rows_have_the_keys_of_the_specification(fitted, make_cases):
    found = segcal.trust(fitted, make_cases(3, seed=40, labelled=False))
    assert len(found.rows) == 3 * 2
    keys = {"case", "structure", "expected_dice", "dice_low", "dice_high", "volume", "volume_low", "volume_high"}
    for row in found.rows:
        assert keys | {"review", "reason"} <= set(row)
        assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
        assert row["unit"] == "voxels"
    assert (found.level, found.source, found.draws) == (0.9, "held out", 30)
    assert found.promise == (
        "On average over cases like the reference, at least 90 % of the intervals hold what they bound."
    )
    assert {row["structure"] for row in segcal.trust(fitted, make_cases(1, seed=40), background=False).rows} == {
        "outside", "wall", "core"
    }  # fmt: skip


def test_over_re_divisions_intervals_hold_what_they_bound(make_cases):
    cases = make_cases(90, seed=41, members=1)
    truth = {}
    for case in cases:
        y, m = case.labels.numpy(), case.logits.numpy().argmax(0)
        for name, number in (("wall", 1), ("core", 2)):
            overlap = 2 * ((y == number) & (m == number)).sum() / ((y == number).sum() + (m == number).sum())
            truth[case.id, name] = overlap, (y == number).sum()
    plain = segcal.fit("ts", make_cases(6, seed=42, members=1, prefix="fit"))
    dice, volume = [], []
    for seed in range(12):
        split = cases.split(cal=25, seed=seed)
        found = segcal.trust(segcal.learn_trust(plain, split.cal), split.test, level=0.8)
        for row in found.rows:
            own = truth[row["case"], row["structure"]]
            dice.append(row["dice_low"] <= own[0] <= row["dice_high"])
            volume.append(row["volume_low"] <= own[1] <= row["volume_high"])
    assert 0.8 - 0.04 < np.mean(dice) < 0.8 + 1 / 26 + 0.04
    assert 0.8 - 0.04 < np.mean(volume) < 0.8 + 1 / 26 + 0.04


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
    for judge in (segcal.trust, segcal.monitor):
        with pytest.raises(
            segcal.InputError, match=r"is for regions, but trust and monitor are for classes .* evaluate"
        ):
            judge(segcal.fit("ts", regions), regions)
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


def test_few_masks_that_are_bad_by_their_own_tau_pass(make_cases):
    cases, taus = make_cases(160, seed=52, members=1), {"wall": 0.55, "core": 0.65}
    bad = set()
    for case in cases:
        y, m = case.labels.numpy(), case.logits.numpy().argmax(0)
        for number, (name, tau) in enumerate(taus.items(), start=1):
            overlap = 2 * ((y == number) & (m == number)).sum() / ((y == number).sum() + (m == number).sum())
            bad |= {(case.id, name)} if overlap < tau else set()
    plain = segcal.fit("ts", make_cases(6, seed=53, members=1, prefix="fit"))
    passed: dict[str, list[bool]] = {name: [] for name in taus}
    for seed in range(8):
        split = cases.split(cal=60, seed=seed)
        for row in segcal.trust(segcal.learn_trust(plain, split.cal), split.test, level=0.8, tau=taus).rows:
            if (row["case"], row["structure"]) in bad:
                passed[row["structure"]].append(not row["review"])
    assert all(len(found) > 80 for found in passed.values())
    assert all(np.mean(found) < 0.2 + 0.06 for found in passed.values())


@pytest.mark.parametrize(("tau", "text"), [
    ({"kernel": 0.5}, r"tau names the structure 'kernel', but there are outside, wall, core. Correct the name."),
    ({"core": 1.5}, r"tau of core is 1.5, but a Dice between 0 and 1 is needed. Use 0.7 if in doubt."),
    ({"core": "high"}, r"tau is .* but a finite number or a dictionary from text to a finite number is needed"),
])  # fmt: skip
def test_a_tau_of_no_structure_is_refused(fitted, make_cases, tau, text):
    with pytest.raises(segcal.InputError, match=text):
        segcal.trust(fitted, make_cases(1), tau=tau)
