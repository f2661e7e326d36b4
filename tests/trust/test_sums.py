"""Sums of a case of classes or regions against plain loops over its voxels, and the table that is read from them."""

import numpy as np
import pytest
import torch

import segcal
from segcal import make_calibrator
from segcal.cases.base import Case
from segcal.fitting.reference import OF_CASE, OF_CLASS, read_numbers
from segcal.trust import sums as module
from segcal.trust.estimates import SumTable
from segcal.trust.learn import Summer
from segcal.trust.sums import BINS, THRESHOLDS, agreement_of, reference_case, sum_case, touching, voxel_size
from segcal.types import IGNORED


def named(sums):
    """Return the numbers of a case by name."""
    return dict(zip(OF_CASE, sums.alone, strict=True)) | dict(zip(OF_CLASS, sums.columns, strict=True))


def made(seed=0, classes=4, space=(3, 5, 7)):
    rng = np.random.default_rng(seed)
    logits, mask = 3 * rng.normal(size=(classes, *space)), rng.random(space) < 0.8
    labels = np.where(mask, rng.integers(-1, classes, size=space), -1)
    calibrator = make_calibrator("ts", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.5)
    case = Case("a", *(torch.from_numpy(each) for each in (logits, labels, mask)), (2.0, 3.0, 5.0))
    return calibrator, case, logits, labels, mask


def test_sums_are_those_of_plain_loops():
    calibrator, case, logits, labels, mask = made()
    sums = sum_case(calibrator, case)
    found, (by_prob, by_rank, all_by_prob) = named(sums), sums.histograms
    e = np.exp(logits / 2)
    p, whole, y = (e / e.sum(0))[:, mask], logits.argmax(0), labels[mask]
    m, edge = whole[mask], np.zeros(labels.shape, bool)
    for place in np.ndindex(whole.shape):
        for axis, step in ((axis, step) for axis in range(3) for step in (-1, 1)):
            near = [x + step * (number == axis) for number, x in enumerate(place)]
            inside = 0 <= near[axis] < whole.shape[axis]
            edge[place] |= inside and whole[tuple(near)] != whole[place]
    for c in range(4):
        own, there, on_edge = m == c, y == c, edge[mask] & (m == c)
        ranks = np.array([q[q > q[c]].sum() + q[c] for q in p[:, there].T])
        expected = {
            "mask": own.sum(), "prob": p[c].sum(), "hit": p[c, own].sum(), "spread": (p[c] * (1 - p[c])).sum(),
            "edge": on_edge.sum(), "edge_prob": p[c, on_edge].sum(), "truth": there.sum(),
            "found": (there & own).sum(), "counted": (own & (y >= 0)).sum(),
        }  # fmt: skip
        assert {name: found[name][c] for name in expected} == pytest.approx(expected)
        for k, t in enumerate(THRESHOLDS):
            assert by_prob[c, k + 1 :].sum() == (p[c, there] >= t).sum()
            assert all_by_prob[c, k + 1 :].sum() == (p[c, y >= 0] >= t).sum()
            assert by_rank[c, : k + 1].sum() == (ranks <= t).sum()
    alone = {"voxels": mask.sum(), "size": 0.03, "entropy": -(p * np.log(p)).sum()}
    assert {name: found[name] for name in alone} == pytest.approx(alone)
    assert (sums.unit, sums.histograms.shape) == ("ml", (3, 4, BINS))


@pytest.mark.parametrize("values", [1, 90])
def test_they_do_not_depend_on_the_slabs(values, monkeypatch):
    calibrator, case, *_ = made(1)
    whole = sum_case(calibrator, case)
    monkeypatch.setattr(module, "STEP_VALUES", values)
    cut = sum_case(calibrator, case)
    for name in ("alone", "columns", "decided", "joint", "histograms"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-12)


def test_the_mask_is_the_decision_that_stays_in_a_tie():
    found = sum_case(make_calibrator("ts", 2), Case("a", torch.tensor([[1.0, 1.0, 2.0], [1.0, 3.0, 2.0]])))
    assert named(found)["mask"].tolist() == [2, 1]
    assert found.histograms is None
    assert np.isnan(named(found)["truth"]).all()


def test_members_agree_as_their_pairs_do():
    maps = [torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 0])]
    pairs = [(2 * 1 / 3, 2 * 2 / 5), (2 * 1 / 3, 2 * 2 / 5), (2 * 1 / 4, 2 * 1 / 4)]
    assert agreement_of(maps, 3) == pytest.approx([*np.mean(pairs, 0), np.nan], nan_ok=True)
    assert np.isnan(agreement_of(maps[:1], 3)).all()


def test_edges_of_a_line_and_of_nothing_and_sizes_of_voxels():
    assert touching(torch.zeros(0, dtype=torch.long)).numel() == 0
    assert not touching(torch.tensor(3)).any()
    assert touching(torch.tensor([[0, 0], [0, 1]])).tolist() == [[False, True], [True, True]]
    assert voxel_size((2.0,)) == (1.0, "voxels")


@pytest.fixture(scope="module")
def regions():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(12, 2, 5, 6)).astype("float32")
    logits[:, 1] = np.minimum(logits[:, 0], logits[:, 1])
    labels = (logits[:, 0] > rng.logistic(size=(12, 5, 6))).astype(int) * (1 + (logits[:, 1] > 0))
    return segcal.ArrayCases(
        list(logits), list(labels), kind="logits", regions={"whole": [1, 2], "core": [2]},
        groups=[f"g{number // 2}" for number in range(12)],
    )  # fmt: skip


def test_sums_of_regions_are_those_of_the_probabilities_after_nesting(regions):
    fitted, case = segcal.fit("ts", regions), regions.checked(regions.ids[3])
    labels, mask = case.labels.clone(), torch.ones(5, 6, dtype=torch.bool)
    labels[0], mask[:, 0] = IGNORED, False
    labels[~mask] = IGNORED
    sums = sum_case(fitted.calibrator, Case("a", case.logits, labels, mask, group="g"))
    p = fitted.calibrator(case.logits[None])[0].exp().double().numpy()[:, mask]
    y = np.stack([np.isin(labels, own) for own in ([1, 2], [2])])[:, mask]
    known, on = (labels != IGNORED).numpy()[mask], (case.logits > 0).numpy()[:, mask]
    columns = {
        "mask": on, "prob": p, "hit": p * on, "spread": p * (1 - p), "truth": y, "found": y & on, "counted": on & known
    }  # fmt: skip
    for name, values in columns.items():
        assert named(sums)[name] == pytest.approx(values.sum(1), rel=1e-5)
    assert sums.alone[0] == 25
    for number in range(2):
        reached = (p[number][:, None] >= THRESHOLDS).sum(1)
        assert (sums.histograms[0, number] == np.bincount(reached[y[number]], minlength=BINS)).all()
        assert (sums.histograms[2, number] == np.bincount(reached[known], minlength=BINS)).all()


def test_each_fold_of_regions_is_judged_by_fits_to_the_others(regions, tmp_path):
    reference = segcal.learn_trust(segcal.fit("ts", regions), regions).reference
    assert (reference.source, len(reference.folds), len(reference.curves)) == ("out of fold", 6, 2)
    assert not reference.chosen
    own = regions.subset([each for each in regions.ids if regions.groups[each] != "g2"])
    first = next(each for each in reference.cases if each.group == "g2")
    (sums,) = Summer(regions, [segcal.fit("ts", own).calibrator])(first.id)
    assert read_numbers(first.numbers, 4 + 2 * 11)[5] == pytest.approx(named(sums)["prob"][0], rel=1e-4)
    learned = segcal.learn_trust(segcal.choose(regions), regions)
    assert learned.reference.chosen  # a choice on the same cases is remembered
    segcal.save(learned, tmp_path / "cal")
    again = segcal.load(tmp_path / "cal")
    assert again.reference == learned.reference
    assert segcal.learn_trust(again, regions).reference.curves == learned.reference.curves


def test_numbers_of_a_table_by_hand(make_table):
    table = make_table(
        mask=[[10, 0, 5]], prob=[[8, 3, 0]], hit=[[6, 0, 0]], truth=[[7, 0, 0]], found=[[4, 0, 0]], counted=[[9, 0, 5]]
    )
    assert table.expected_dice[0, :2] == pytest.approx([12 / 18, 1 / 4])
    assert table.expected_iou[0, 0] == pytest.approx(6 / (10 + 8 - 6))
    assert table.precision[0] == pytest.approx([0.6, np.nan, 0], nan_ok=True)
    assert table.recall[0, :2] == pytest.approx([6 / 8, 0])
    assert table.outside[0, 0] == pytest.approx(2 / 8)
    assert table.empty[0].tolist() == [False, True, False]
    assert table.dice[0] == pytest.approx([8 / 16, 1, 0])
    four = make_table(mask=[[k] for k in range(4)])
    assert np.isnan(four.dice).all()
    assert four.expected_dice[0, 0] == 1  # nothing speaks for the structure, and its mask is empty
    assert (four.rows([2, 0]).ids, four.rows([2, 0]).mask.tolist()) == (("c02", "c00"), [[2], [0]])


def test_a_remembered_case_reads_back_as_a_new_one_does():
    calibrator, case, *_ = made()
    sums = sum_case(calibrator, case)
    sums.columns[:2] = np.array([[123456], [0.123456789]])
    assert " 123456 0.123457 " in reference_case(sums).numbers
    table = SumTable.of([sums])
    assert (table.prob[0, 0], table.size[0]) == (0.123457, 0.03)
    assert np.isnan(table.agreement).all()
    assert np.isnan(table.disagreement).all()
