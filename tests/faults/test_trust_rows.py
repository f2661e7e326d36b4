"""Rows of trust that said more than was known: verdicts against their chance, empty masks, intervals called proved."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.errors import ArtifactError
from segcal.fitting.division import equal_folds
from segcal.fitting.reference import fold_calibrators
from segcal.trust.estimates import SumTable
from segcal.trust.judge import Judge
from segcal.trust.learn import Summer

TITLES = ("background", "organ", "vessel")
SPACE = (7, 6)


def table_of(rng, groups, good, empty=0.2):
    """Return labelled cases of three classes; `good` is about the Dice of their masks, whatever is expected."""
    count = len(groups)
    shape = (count, 3)
    mask = 40.0 * (rng.random(shape) > empty) * rng.uniform(0.2, 1, shape)
    soft, dice = np.clip(rng.normal(0.8, 0.15, shape), 0.05, 0.99), np.clip(rng.normal(good, 0.2, shape), 0, 1)
    truth = np.where(mask > 0, mask, 30.0 * (rng.random(shape) < 0.3))
    return SumTable(
        ids=tuple(f"c{number}" for number in range(count)), groups=tuple(groups), voxels=np.full(count, 99.0),
        size=np.ones(count), entropy=np.zeros(count), disagreement=np.full(count, np.nan), mask=mask, prob=mask + 1,
        hit=mask * soft, spread=mask + 1, edge=mask, edge_prob=mask, agreement=rng.uniform(0.5, 1, shape), truth=truth,
        found=dice * mask, counted=mask, beside=np.full(shape, np.nan),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_no_verdict_contradicts_its_own_chance(seed):
    rng = np.random.default_rng(seed)
    draws, level = int(rng.integers(10, 40)), float(rng.choice([0.6, 0.8, 0.9]))
    groups = [f"g{int(k)}" for k in np.repeat(np.arange(draws), rng.integers(1, 4, draws))]
    reference = table_of(rng, groups, rng.uniform(0.1, 1), rng.uniform(0, 0.9))
    folds = tuple(int(name[1:]) % 3 for name in groups) if seed % 2 else ()
    new = [table_of(np.random.default_rng(seed), [f"n{k}" for k in range(12)], 0.5, 0.4) for _ in range(4)]
    for place, each in enumerate(new[:3]):  # calibrators of folds differ
        each.hit[:] *= 1 - 0.1 * place
    judge = Judge.on(reference, TITLES, level, float(rng.uniform(0.3, 0.9)), True, folds)
    rows = judge.rows(new if folds else new[3:], "voxels")
    passed = [row for row in rows if not row["review"]]
    assert all(row["dice_below_tau"] is not None and row["dice_below_tau"] <= 1 - level + 1e-9 for row in passed)
    for row in rows:
        if row["dice_low"] is not None:
            assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
        if row["dice_below_tau"] is not None and row["dice_below_tau"] > 1 - level + 1e-9:
            assert row["reason"]


def overconfident(count, seed, flip=0.25, radius=(0.3, 0.9), prefix="c", groups=None):
    """Return cases of two classes whose masks are worse than their probabilities say."""
    rng = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in SPACE), indexing="ij"))
    logits, labels = [], []
    for _ in range(count):
        inside = np.sqrt((place**2).sum(0)) < rng.uniform(*radius)
        scores = np.where(inside, 1.0, -1.0) * rng.uniform(3, 5)
        logits.append(np.stack([-scores / 2, scores / 2]).astype("float32"))
        labels.append(np.where(rng.random(SPACE) < flip * rng.uniform(0.5, 1.5), ~inside, inside).astype(int))
    ids = [f"{prefix}{number:02d}" for number in range(count)]
    return segcal.ArrayCases(logits, labels, ids=ids, kind="logits", groups=groups, class_names=["outside", "organ"])


@pytest.fixture(scope="module")
def plain():
    """A temperature that leaves logits as they are: nothing corrects their confidence."""
    cases = overconfident(4, 0, flip=0.02, prefix="fit")
    return segcal.fit("ts", cases)


def true_dice(cases):
    found = []
    for case in cases:
        mask, truth = case.logits.numpy().argmax(0) == 1, case.labels.numpy() == 1
        found.append(2 * (mask & truth).sum() / (mask.sum() + truth.sum()))
    return np.array(found)


def test_expected_dice_is_corrected_for_its_error_on_labelled_cases(plain):
    known, new = overconfident(30, 1), overconfident(30, 2, prefix="n")
    rows = segcal.trust(segcal.learn_trust(plain, known), new).rows
    truth = true_dice(new)
    off, raw = (np.array([row[name] for row in rows]) - truth for name in ("expected_dice", "uncorrected_dice"))
    assert all(row["corrected"] for row in rows)
    assert raw.mean() > 0.15  # far too sure
    assert abs(off.mean()) < 0.05
    assert np.abs(off).mean() < np.abs(raw).mean() / 2
    inside = [row["dice_low"] <= dice <= row["dice_high"] for row, dice in zip(rows, truth, strict=True)]
    assert np.mean(inside) > 0.8


def test_what_could_not_be_corrected_says_so_everywhere(plain, tmp_path):
    known = overconfident(12, 3)
    empty = known.ids[4:]
    raw = [known.checked(case_id).logits.numpy() - (9.0 * (case_id in empty)) * np.array([0, 1])[:, None, None]
           for case_id in known.ids]  # fmt: skip
    labels = [known.checked(case_id).labels.numpy() for case_id in known.ids]
    few = segcal.ArrayCases(raw, labels, ids=list(known.ids), kind="logits", class_names=["outside", "organ"])
    found = segcal.trust(segcal.learn_trust(plain, few), overconfident(1, 4, prefix="n"))
    (row,) = found.rows
    assert not row["corrected"]
    assert row["expected_dice"] == row["uncorrected_dice"]
    assert row["reason"].startswith("the structure is in 4 reference groups, 9 are needed")
    assert "its expected Dice could not be corrected" in row["reason"]
    assert f"{row['expected_dice']:.3f} raw" in str(found)
    found.to_csv(tmp_path / "rows.csv")
    head, line = (tmp_path / "rows.csv").read_text().splitlines()[:2]
    assert head.endswith(",corrected,uncorrected_dice")
    assert ",False," in line


def test_a_structure_whose_labelled_masks_were_all_bad_is_reviewed(plain):
    known = overconfident(20, 5, flip=0.5, radius=(0.3, 0.5))
    assert (true_dice(known) < 0.8).all()
    rows = segcal.trust(segcal.learn_trust(plain, known), overconfident(4, 6, prefix="n"), tau=0.8).rows
    for row in rows:
        assert row["reason"].startswith("all 20 reference masks of it have a Dice below 0.8")
        assert row["review"]


def test_an_interval_that_says_nothing_is_said_to():
    rng = np.random.default_rng(7)
    known, new = (table_of(rng, [f"g{k}" for k in range(count)], 0.6, 0.0) for count in (25, 5))
    reasons = [row["reason"] for row in Judge.on(known, TITLES, 0.9, 0.3).rows([new], "voxels")]
    assert any("uninformative interval (0.0" in reason for reason in reasons)
    alike = replace(known, found=rng.uniform(0.85, 0.9, known.mask.shape) * known.mask)
    rows = Judge.on(alike, TITLES, 0.9, 0.3).rows([new], "voxels")
    text = "uninformative interval (no narrower than 0.8"
    assert any(text in row["reason"] and row["reason"].endswith(", that of all reference masks of it)") for row in rows)
    passed = [row for row in rows if not row["review"] and row["reason"]]
    assert passed  # it is known, and no reason to review


def vanishing(count, seed, missed, prefix="c"):
    """Return cases whose masks are empty, though the structure is in a share of them."""
    rng = np.random.default_rng(seed)
    logits = [np.stack([4 + rng.normal(size=SPACE), rng.normal(size=SPACE)]).astype("float32") for _ in range(count)]
    labels = [(rng.random(SPACE) < 0.2).astype(int) * int(rng.random() < missed) for _ in range(count)]
    logits = [np.where(np.array([1, 0])[:, None, None], np.abs(each) + 5, each) for each in logits]
    ids = [f"{prefix}{number:02d}" for number in range(count)]
    return segcal.ArrayCases(logits, labels, ids=ids, kind="logits", class_names=["outside", "organ"])


@pytest.mark.parametrize("missed", [0.0, 0.6])
def test_empty_masks_are_common_and_pass_only_if_they_are_right(plain, missed):
    fitted = segcal.learn_trust(plain, vanishing(25, 8, missed))
    rows = segcal.trust(fitted, vanishing(12, 9, missed, prefix="n")).rows
    told = [row["reason"] for row in rows if "empty" in row["reason"]]
    if missed:
        assert len(told) == 12
        said = ("the structure was there in", "of 25 such reference groups")
        assert all(each in reason for reason in told for each in said)
    else:
        assert not told
        assert all(row["dice_below_tau"] == pytest.approx(0.5 / 26) for row in rows)


@pytest.fixture(scope="module")
def out_of_fold():
    cases = overconfident(22, 10, groups=[f"g{k // 2}" for k in range(22)])
    return cases, segcal.learn_trust(segcal.fit("ts", cases), cases)


def test_a_new_case_is_measured_by_the_calibrator_of_every_fold(out_of_fold, tmp_path):
    cases, fitted = out_of_fold
    reference = fitted.reference
    assert (reference.source, len(reference.folds), reference.chosen) == ("out of fold", 5, False)
    assert len({case.group for case in reference.cases}) == 10  # of 11: five folds of two
    segcal.save(fitted, tmp_path / "cal")
    loaded = segcal.load(tmp_path / "cal")
    assert loaded.reference == reference
    parts = equal_folds(cases, 5)
    folds = fold_calibrators(loaded.reference, loaded.calibrator)
    for number, (part, calibrator) in enumerate(zip(parts, folds, strict=True)):
        others = cases.subset([case_id for case_id in cases.ids if case_id not in part])
        own = segcal.fit("ts", others).calibrator
        for one, two in zip(calibrator.state_dict().values(), own.state_dict().values(), strict=True):
            assert one.numpy() == pytest.approx(two.numpy(), rel=1e-4)
        assert {case.id for case in reference.cases if case.fold == number} == part


def test_its_interval_is_that_of_cv_plus(out_of_fold):
    _, fitted = out_of_fold
    new = overconfident(1, 11, prefix="n")
    found = segcal.trust(fitted, new, level=0.8)
    table, level = SumTable.read(fitted.reference), 0.8
    folds = fold_calibrators(fitted.reference, fitted.calibrator)
    by = [SumTable.of([sums]) for sums in Summer(new, folds)("n00")]
    low, high = [], []
    for place, case in enumerate(fitted.reference.cases):
        one = by[case.fold]
        reach = abs(table.truth - table.prob)[place, 1] / np.sqrt(1 + table.spread[place, 1])
        low.append(one.prob[0, 1] - reach * np.sqrt(1 + one.spread[0, 1]))
        high.append(one.prob[0, 1] + reach * np.sqrt(1 + one.spread[0, 1]))
    # 10 groups of two cases: each case counts half a group, and 8.8 of 11 groups are enough.
    rank = int(np.ceil(11 * level * 2 - 1e-9)) - 1
    assert found.rows[0]["volume_low"] == pytest.approx(max(sorted(low)[::-1][rank], 0.0), rel=1e-4)
    assert found.rows[0]["volume_high"] == pytest.approx(sorted(high)[rank], rel=1e-4)


def test_words_promise_what_is_proved(out_of_fold, plain):
    cases, fitted = out_of_fold
    new = overconfident(1, 12, prefix="n")
    text = segcal.trust(fitted, new).promise
    assert "groups of equal weight" in text
    assert "about 90 % of the intervals contain the true value (proved: 80 %)" in text
    assert text.endswith("For inner and outer masks nothing is proved.")
    chosen = segcal.learn_trust(segcal.choose(cases, names=["ts", "vs"]), cases)
    assert chosen.reference.chosen
    text = segcal.trust(chosen, new).promise
    assert "(nothing is proved: the calibrator or its strengths were chosen on these cases)" in text
    held = segcal.learn_trust(plain, overconfident(12, 13))
    assert segcal.trust(held, new).promise == (
        "On average over cases like the reference, at least 90 % of the intervals contain the true value."
    )


def test_an_older_reference_without_folds_still_serves_and_says_that_nothing_is_proved(out_of_fold, tmp_path):
    _, fitted = out_of_fold
    cases = tuple(msgspec.structs.replace(case, fold=-1) for case in fitted.reference.cases)
    older = msgspec.structs.replace(fitted.reference, version=1, folds=(), cases=cases)
    segcal.save(replace(fitted, reference=older), tmp_path / "cal")
    written = json.loads((tmp_path / "cal" / "calibrator.json").read_text())["reference"]
    assert set(written) == {"version", "source", "calibrator", "members", "unit", "cases", "curves"}
    assert set(written["cases"][0]) == {"id", "group", "numbers", "joint"}
    found = segcal.trust(tmp_path / "cal", overconfident(2, 14, prefix="n"))
    assert "(nothing is proved: an older segcal kept no folds)" in found.promise


def test_calibrators_of_folds_that_cannot_be_are_refused(out_of_fold):
    _, fitted = out_of_fold
    for content in (b"", b"\x80\x04K\x01.", fitted.reference.folds[0][:-3]):
        broken = msgspec.structs.replace(fitted.reference, folds=(content, *fitted.reference.folds[1:]))
        with pytest.raises(ArtifactError, match=r"a calibrator of a fold that cannot be read .* Copy the folder again"):
            segcal.trust(replace(fitted, reference=broken), overconfident(1, 15, prefix="n"))
    fewer = msgspec.structs.replace(fitted.reference, folds=fitted.reference.folds[:2])
    with pytest.raises(ArtifactError, match="a case of fold 4, but it has calibrators of 2 folds"):
        segcal.trust(replace(fitted, reference=fewer), overconfident(1, 15, prefix="n"))
