"""Numbers of several raters: against plain loops, against repeated labels, and bit for bit where raters agree."""

import numpy as np
import pytest
import scipy
import torch

import segcal
from segcal import METRICS, ArrayCases, InputError
from segcal.kernels.raw_tables import Layout, RawTables, add_votes
from segcal.metrics.raters import in_voxels
from segcal.raters import Raters
from segcal.statistics import count_logits
from segcal.statistics.reliability import Curve

CLASSES, SPACE, RATERS = 3, (13, 11), 5
NAMES = [name for name in METRICS if name not in ("hd", "hd95")]


def task(cases=3, seed=0, missing=False):
    rng = np.random.default_rng(seed)
    logits = [2 * rng.normal(size=(CLASSES, *SPACE)) for _ in range(cases)]
    maps = [np.stack([(z + rng.gumbel(size=z.shape)).argmax(0) for _ in range(RATERS)]) for z in logits]
    for own in maps:
        own[:, :2, :3] = 7
        if missing:
            own[0] = 7
            own[1, 5:9] = 7
    return logits, maps


def shares_of(own, weights=(1,) * RATERS):
    """Return votes ``(classes, n)`` of the voxels that have some, and where they are."""
    votes = sum(
        w * np.stack([labels.ravel() == c for c in range(CLASSES)]) for w, labels in zip(weights, own, strict=True)
    )
    return votes[:, votes.sum(0) > 0], votes.sum(0) > 0


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1), (1, 4, 1, 2, 1)])
def test_scores_and_bounds_are_those_of_a_loop(weights):
    logits, maps = task(missing=True)
    cases = ArrayCases(logits, maps, raters="axis", rater_weights=weights, ignore=7)
    found = segcal.evaluate(cases, metrics=["nll", "brier", "accuracy"]).before
    wanted = {name: [] for name in ("nll", "brier", "accuracy", "rater_entropy", "kl_to_share", "brier_to_share")}
    for z, own in zip(logits, maps, strict=True):
        votes, where = shares_of(own, weights)
        log = scipy.special.log_softmax(z.reshape(CLASSES, -1)[:, where], 0)
        cast, share, q = votes.sum(0), votes / votes.sum(0), np.exp(log)
        entropy = scipy.special.entr(share).sum(0)
        per_vote = {
            "nll": -(share * log).sum(0),
            "brier": (q**2).sum(0) - 2 * (share * q).sum(0) + 1,
            "accuracy": share[log.argmax(0), np.arange(len(cast))],
            "rater_entropy": entropy,
            "kl_to_share": -(share * log).sum(0) - entropy,
            "brier_to_share": ((q - share) ** 2).sum(0),
        }
        for name, values in per_vote.items():
            wanted[name].append((values * cast).sum() / cast.sum())
    for name, values in wanted.items():
        assert found[name].value == pytest.approx(np.mean(values), rel=1e-12), name


def test_calibration_error_compares_confidence_with_the_share():
    logits, maps = task(1)
    found = segcal.evaluate(ArrayCases(logits, maps, raters="axis", ignore=7), metrics=["ece"]).before["ece"].value
    votes, where = shares_of(maps[0])
    q = scipy.special.softmax(logits[0].reshape(CLASSES, -1)[:, where], 0)
    top, share = q.max(0), votes[q.argmax(0), np.arange(votes.shape[1])] / RATERS
    slot = np.ceil(top * 50).astype(int)
    gaps = [(top[slot == b] - share[slot == b]).sum() for b in range(1, 51)]
    assert found == pytest.approx(np.abs(gaps).sum() / len(top), rel=1e-12)


def test_dice_is_the_mean_over_raters_and_volumes_have_a_crps():
    logits, maps = task(1)
    maps[0][maps[0] == 7] = 0
    found = segcal.evaluate(ArrayCases(logits, maps, raters="axis"), metrics=["dice", "cece"]).before
    guess = logits[0].argmax(0)

    def dice(one, other):
        both = [((one == c) & (other == c)).sum() for c in range(1, CLASSES)]
        return np.mean([2 * b / ((one == c).sum() + (other == c).sum()) for c, b in enumerate(both, 1)])

    majority = np.stack([(maps[0] == c).sum(0) for c in range(CLASSES)]).argmax(0)
    assert found["dice"].value == pytest.approx(np.mean([dice(own, guess) for own in maps[0]]))
    assert found["dice (majority)"].value == pytest.approx(dice(majority, guess))
    pairs = [dice(maps[0][r], maps[0][s]) for r in range(RATERS) for s in range(r)]
    assert found["rater_dice"].value == pytest.approx(np.mean(pairs))
    q = scipy.special.softmax(logits[0], 0).reshape(CLASSES, -1).sum(1)
    crps_of_all = found["volume_crps"].value
    fewer = np.concatenate([maps[0], np.full((1, *SPACE), 7)])  # a rater who did not see the case
    again = ArrayCases(logits, [fewer], raters="axis", ignore=7)
    assert segcal.evaluate(again, metrics=["cece"]).before["volume_crps"].value == pytest.approx(crps_of_all)
    crps = []
    for c in range(1, CLASSES):
        volumes = (maps[0] == c).sum((1, 2)).astype(float)
        grid = np.linspace(0, np.prod(SPACE), 400_001)
        below = (volumes[:, None] <= grid).mean(0)
        crps.append(np.trapezoid((below - (grid >= q[c])) ** 2, grid) / volumes.mean())
    assert found["volume_crps"].value == pytest.approx(np.mean(crps), rel=1e-3)


def test_raters_who_agree_are_one_rater_bit_for_bit():
    logits, maps = task(4)
    one = ArrayCases([z.astype("f4") for z in logits], [own[0] for own in maps], ignore=7)
    same = ArrayCases(
        [z.astype("f4") for z in logits], [np.stack([own[0]] * RATERS) for own in maps], raters="axis", ignore=7
    )
    both = [segcal.evaluate(cases, segcal.fit("vs_ti", cases), metrics=NAMES) for cases in (one, same)]
    for stage in ("before", "after", "change"):
        first, second = (getattr(each, stage) for each in both)
        assert all(first[name] == second[name] for name in NAMES)


def test_shares_of_zero_and_one_are_labels_bit_for_bit():
    logits, maps = task(3)
    labels = [np.where(own[0] == 7, 0, own[0]) for own in maps]
    shares = [np.stack([own == c for c in range(CLASSES)]).astype("f4") for own in labels]
    one, same = ArrayCases(logits, labels), ArrayCases(logits, shares, raters="shares", num_raters=1000)
    names = [name for name in NAMES if name not in ("dice", "miou")]
    first, second = (segcal.evaluate(cases, metrics=names).before for cases in (one, same))
    assert all(first[name] == second[name] for name in names)
    assert second["rater_agreement"].value == 1.0


def test_counts_are_those_of_repeated_labels():
    logits, maps = task(1, seed=4)
    whole = ArrayCases(logits, maps, raters="axis", ignore=7).read("0")
    many = count_logits(whole.logits, whole.labels, votes=whole.votes).tables
    again = torch.from_numpy(np.concatenate([logits[0]] * RATERS, 1))
    labels = np.concatenate(list(maps[0]))
    once = count_logits(again, torch.from_numpy(np.where(labels == 7, -1, labels))).tables
    assert (many.confusion.count == once.confusion.count).all()
    assert (many.ranking.wrong == once.ranking.wrong).all()
    for bins in (50, 15):
        for region, curve in many.reliability[bins].items():
            assert (curve.count == once.reliability[bins][region].count).all()
            assert (curve.right == once.reliability[bins][region].right).all()
            assert np.allclose(curve.confidence * RATERS, once.reliability[bins][region].confidence, rtol=1e-12)
    assert (many.classwise["all"].right == once.classwise["all"].right).all()


def test_added_votes_are_exact_beyond_31_bits():
    layout = Layout(2, (3,), 0)
    part = RawTables.zeros(layout)
    part.confusion[:] = [[2**30 + 1, 3], [5, 2**24 + 1]]
    part.sums[:] = 1.0
    found = add_votes([(7, part), (3, part)], 10)
    assert found.confusion.tolist() == [[10 * (2**30 + 1), 30], [50, 10 * (2**24 + 1)]]
    assert found.sums.tolist() == pytest.approx([1.0] * 3)
    curve = in_voxels(Curve(np.array([3 * (2**40 + 1)]), np.array([6]), np.array([1.5])), 3)
    assert curve.count.tolist() == [2.0**40 + 1]
    assert curve.confidence.tolist() == [1.5]


def test_cases_merge_to_the_same_numbers_in_any_processes():
    logits, maps = task(4, missing=True)
    cases = ArrayCases(logits, maps, raters="axis", ignore=7)
    first, second = (segcal.evaluate(cases, metrics=NAMES[:12], workers=number) for number in (1, 2))
    assert first.before == second.before


def test_regions_are_counted_by_the_raters_of_each():
    logits, maps = task(2)
    cases = ArrayCases(
        [z[:2] for z in logits], maps, raters="axis", ignore=7, kind="logits", regions={"any": [1, 2], "two": [2]}
    )
    found = segcal.evaluate(cases, metrics=["nll", "dice"]).before
    wanted = []
    for z, own in zip(logits, maps, strict=True):
        keep = own[0] != 7
        share = np.mean(own == 2, 0)[keep]
        wanted.append(np.mean(np.logaddexp(0, z[1][keep]) - share * z[1][keep]))
    assert found["nll (two)"].value == pytest.approx(np.mean(wanted), rel=1e-9)
    assert "dice (majority) (two)" in found


def test_surfaces_are_refused():
    logits, maps = task(1)
    with pytest.raises(InputError, match="'hd95' compares two surfaces"):
        segcal.evaluate(ArrayCases(logits, maps, raters="axis", ignore=7), metrics=["hd95"])


def test_a_case_without_disagreement_or_votes_counts():
    votes = Raters("axis", (1, 1)).of_maps(enumerate(np.full((2, 6), -1)), 2)
    counted = count_logits(torch.randn(2, 6), votes.labels(), votes=votes, predict=True).tables
    assert counted.likelihood.voxels == 0
    assert counted.confusion.ignored == 6


def test_meters_take_every_form_batch_by_batch():
    logits, maps = task(6)
    maps = [np.where(own == 7, 0, own) for own in maps]
    shares = [np.stack([(own == c).mean(0) for c in range(CLASSES)]).astype("f4") for own in maps]
    names = ["nll", "brier", "ece", "ba_ece", "ace", "cece", "accuracy"]
    wanted = segcal.evaluate(ArrayCases(logits, maps, raters="axis"), metrics=[*names, "dice"]).before
    for labels, form in ((maps, "axis"), (shares, "shares")):
        meter = segcal.metrics.meter(*names, "dice", raters=form, num_raters=RATERS)
        for start in (0, 2, 5):
            rows = slice(start, {0: 2, 2: 5, 5: 6}[start])
            meter.update(np.stack(logits[rows]), np.stack(labels[rows]))
        found = meter.compute()
        for name in [*names, "rater_entropy", "dice (majority)", *(["volume_crps", "dice"] if form == "axis" else [])]:
            assert found[name] == pytest.approx(wanted[name].value, rel=1e-9), name
        ace = segcal.metrics.ace(np.stack(logits), np.stack(labels), raters=form, num_raters=RATERS)
        assert ace == pytest.approx(wanted["ace"].value, rel=1e-9)
    assert segcal.metrics.dice(
        np.stack(logits), np.stack(maps), raters="axis", rater_weights=[1] * RATERS
    ) == pytest.approx(wanted["dice"].value)
    with pytest.raises(InputError, match="dice compares label maps, but shares hold none"):
        segcal.metrics.dice(np.stack(logits), np.stack(shares), raters="shares", num_raters=RATERS)
    flips = segcal.metrics.flip_rate(
        np.stack(logits), np.stack(maps), raters="axis", num_raters=RATERS, reference=np.stack(logits).argmax(1) * 0
    )
    assert flips == pytest.approx(np.mean([np.mean(z.argmax(0) != 0) for z in logits]))
