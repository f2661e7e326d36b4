"""Every promise by counting: made-up draws with fixed seeds, of which one that is not kept would be noticed.

Draws are groups of unequal size whose cases are alike, few enough for the promises to be nearly tight.
"""

import numpy as np
import pytest

from segcal.fitting.reference import LossCurves, Reference, ReferenceCase, written_numbers
from segcal.trust.conformal import mean_over_draws, proved_level
from segcal.trust.estimates import BadMasks, Errors
from segcal.trust.guarantees import bounds_of
from segcal.trust.judge import Judge
from segcal.trust.margins import MaskErrors, _margin, missed_by, wrong_in
from segcal.trust.sums import THRESHOLDS


def drawn(rng, draws, hard=0.0):
    """Return the group of each case and its score; the scores of a group are alike, and large groups are `hard`."""
    middle = rng.normal(size=draws)
    sizes = 1 + rng.poisson(1 + hard * 8 * (np.abs(middle) > 1))
    groups = np.repeat(np.arange(draws), sizes)
    return groups, middle[groups] + 0.3 * rng.normal(size=len(groups))


@pytest.mark.parametrize("hard", [0.0, 1.0])
def test_intervals_cover_by_group_and_by_case_only_where_large_groups_are_no_harder(hard):
    rng, level, draws = np.random.default_rng(1), 0.8, 9
    by_group, hits, cases = [], 0, 0
    for _ in range(1500):
        groups, scores = drawn(rng, draws, hard)
        new = drawn(rng, 1, hard)[1]
        span = Errors(scores, tuple(map(str, groups))).span(0.0, 1.0, level, -np.inf)
        inside = (span.low <= new) & (new <= span.high)
        by_group.append(inside.mean())
        hits, cases = hits + inside.sum(), cases + len(inside)
    assert level - 0.015 < np.mean(by_group) < level + 1 / (draws + 1) + 0.015
    if hard:
        assert hits / cases < level - 0.05  # what is not promised
    else:
        assert hits / cases > level - 0.015


def test_intervals_of_folds_cover_what_is_proved_and_about_the_level_though_the_fit_is_not_stable():
    """Least squares with as many features as groups: what all groups lead to is far from what the folds do."""
    rng, level, draws, size = np.random.default_rng(2), 0.8, 20, 2
    folds = np.repeat(np.arange(draws // size), size)
    plus, naive = [], []
    for _ in range(400):
        x, new = rng.normal(size=(draws, draws)), rng.normal(size=draws)
        truth = np.ones(draws) / np.sqrt(draws)
        y, target = x @ truth + rng.normal(size=draws), new @ truth + rng.normal()
        fits = [np.linalg.lstsq(x[folds != k], y[folds != k], rcond=None)[0] for k in range(draws // size)]
        every = np.linalg.lstsq(x, y, rcond=None)[0]
        signed = np.array([y[i] - x[i] @ fits[folds[i]] for i in range(draws)])
        names = tuple(map(str, range(draws)))
        values = [new @ fit for fit in (*fits, every)]
        low, high = Errors(signed, names, tuple(folds)).span(values, np.ones(len(values)), level, -np.inf)[1:]
        plus.append(low <= target <= high)
        low, high = Errors(signed, names).span(values[-1], 1.0, level, -np.inf)[1:]
        naive.append(low <= target <= high)
    assert proved_level(level, draws, size) == pytest.approx(0.6)
    assert np.mean(plus) > level - 0.04
    assert np.mean(naive) < 0.6  # residuals of folds around the fit to all: what is proved does not hold


@pytest.mark.parametrize("folds", [False, True])
def test_few_bad_masks_pass(folds):
    rng, level, draws = np.random.default_rng(3), 0.8, 9
    passed = []
    for _ in range(1500):
        groups, scores = drawn(rng, draws, 1.0)
        judges = tuple(int(group) // 3 for group in groups) if folds else ()
        shift = np.array([0.3, -0.3, 0.1])  # calibrators of folds differ by little
        own = scores + shift[list(judges)] if folds else scores
        bad, new = BadMasks(own, tuple(map(str, groups)), judges), drawn(rng, 1, 1.0)[1]
        found = [bad.p_value([*(one + shift), one] if folds else one, level) for one in new]
        passed.append(np.mean([p <= 1 - level + 1e-9 for p in found]))
    assert 1 - level - 1 / (draws + 1) - 0.03 < np.mean(passed) <= 1 - level + 0.015


def empty_table(make_table, groups, missed):
    """Return labelled cases with empty masks of class 1, which is there where it was missed."""
    nothing = np.zeros((len(groups), 2))
    truth = np.stack([0 * missed, 5.0 * missed], 1)
    return make_table(groups=map(str, groups), mask=nothing, truth=truth, found=nothing, counted=nothing)


@pytest.mark.parametrize(("share", "limit"), [(0.05, 1.7), (0.3, 0.55)])
def test_of_empty_masks_few_pass_although_the_structure_is_there(share, limit, make_table):
    rng, level, draws = np.random.default_rng(4), 0.8, 12
    wrong, passes = [], []
    for _ in range(300):
        groups, scores = drawn(rng, draws, 0.3)
        judge = Judge.on(empty_table(make_table, groups, scores > limit), ("background", "organ"), level, 0.5)
        new_groups, new = drawn(rng, 1, 0.3)
        (row,) = judge.rows([empty_table(make_table, new_groups[:1], new[:1] > limit)], "voxels")
        passes.append(not row["review"])
        wrong.append(np.mean(passes[-1] & (new > limit)))
        assert row["review"] or row["dice_below_tau"] <= 1 - level
    assert np.mean(wrong) <= 1 - level + 0.02
    assert (np.mean(passes) > 0.5) == (share < 0.1)  # not by reviewing all


def reference_of(groups, losses):
    """Return a reference whose curves are the means of losses ``(cases, classes, 3, thresholds)``."""
    names = [f"g{group}" for group in groups]
    curves = [
        LossCurves(len(set(names)), *(written_numbers(mean_over_draws(losses[:, c, k], names)) for k in range(3)))
        for c in range(losses.shape[1])
    ]
    cases = tuple(ReferenceCase(f"c{k}", name, "") for k, name in enumerate(names))
    return Reference(2, "held out", "", 1, "voxels", cases, tuple(curves))


def simulated_losses(rng, groups, middle, classes):
    """Return losses that grow (missed) or fall (outranked, wrong) along the thresholds, harder in some groups."""
    odds = np.log(THRESHOLDS / (1 - THRESHOLDS))
    hard = 2 * middle[:, None] + 1.5 * rng.normal(size=(len(groups), classes))
    grown = 1 / (1 + np.exp(-9 * (odds + hard[..., None])))
    return np.stack([grown, grown[..., ::-1], grown[..., ::-1]], 2)


KINDS = ("outer", "rank", "inner")


def largest_and_mean_losses(draws, share, at_once, seed):
    """Return the losses of new groups by kind: of the structure that loses most, and the mean over structures."""
    rng, classes = np.random.default_rng(seed), 3
    found = {kind: [] for kind in KINDS}
    for _ in range(500):
        groups, middle = drawn(rng, draws, 1.0)
        reference = reference_of(groups, simulated_losses(rng, groups, middle, classes))
        new_groups, new = drawn(rng, 1, 1.0)
        losses = simulated_losses(rng, new_groups, new, classes)
        bounds = bounds_of(reference, share, at_once=at_once)
        for k, kind in enumerate(KINDS):
            lost = [lost_at(losses[:, c, k], getattr(each, kind)) for c, each in enumerate(bounds)]
            found[kind].append((np.max(lost, 0).mean(), np.mean(lost)))
    return {kind: np.mean(values, 0) for kind, values in found.items()}


def test_losses_of_masks_and_label_sets_stay_below_their_bounds_over_groups():
    found = largest_and_mean_losses(4, 0.26, False, 5)  # four draws: what one more may lose is a fifth
    assert all(0.1 < mean <= 0.26 + 0.015 for _, mean in found.values())  # nor by taking everything


def test_at_once_the_largest_loss_among_structures_is_bounded():
    together, apart = (largest_and_mean_losses(14, 0.3, at_once, 6) for at_once in (True, False))
    assert all(most <= 0.3 + 0.015 for most, _ in together.values())
    assert apart["rank"][0] > 0.3 + 0.03  # one by one they do not hold together


def lost_at(losses, threshold):
    """Return the loss of each case at a threshold; where there is none, nothing is left out."""
    return np.zeros(len(losses)) if threshold is None else losses[:, np.argmin(np.abs(THRESHOLDS - threshold))]


def intervals(rng, middle, missing=0.005):
    """Return the errors of a case in one dimension: the truth is an interval, and both ends of the mask are off."""
    space, off = np.arange(40), middle + 0.7 * rng.normal(size=2)
    truth = np.abs(space - 20) <= 8
    mask = (space >= 12 - 3 * off[0]) & (space <= 28 + 3 * off[1]) & (rng.random() >= missing)
    runs = [int(mask.sum()), int(mask.sum() + rng.integers(-2, 3)) if mask.any() else 0]
    wrong = wrong_in(mask, truth, None) if mask.any() else None
    return MaskErrors(missed_by(mask, truth, None), wrong, runs, int(truth.sum()))


@pytest.mark.parametrize(("grouped", "on_average"), [(True, False), (False, True)])
def test_grown_and_shrunk_masks_keep_what_is_promised(grouped, on_average):
    """Draws of 300 groups: a margin that is three voxels smaller breaks the promise, and is noticed."""
    rng, level, share, draws = np.random.default_rng(7), 0.8, 0.94 if on_average else 0.9, 39
    sizes = 1 + rng.poisson(2, 300) * grouped
    groups = [
        [intervals(rng, middle) for _ in range(size)] for middle, size in zip(rng.normal(size=300), sizes, strict=True)
    ]
    kept = {name: [] for name in ("outer", "inner", "less outer", "less inner", "volume")}
    for _ in range(600):
        *old, last = rng.permutation(300)[: draws + 1]
        margin = _margin(1, "x", [(case, str(i)) for i in old for case in groups[i]], level, share, on_average)
        new = groups[last]
        for side, found, losses in (
            ("outer", margin.outer, [case.missed for case in new]),
            ("inner", margin.inner, [case.wrong for case in new if case.wrong is not None]),
        ):
            for name, less in ((side, 0), (f"less {side}", 3)):
                if found is not None and losses:
                    lost = np.array([steps.at(max(found - less, 0)) for steps in losses])
                    kept[name].append(np.mean(1 - lost if on_average else lost <= 1 - share + 1e-9))
        runs = np.array([case.volumes for case in new if any(case.volumes)], float)
        if len(runs):
            reach = margin.volume * (runs.std(1, ddof=1) + 0.05 * runs.mean(1))
            kept["volume"].append(np.mean(np.abs(new[0].truth - runs.mean(1)) <= reach + 1e-9))
    promised, means = share if on_average else level, {name: np.mean(values) for name, values in kept.items()}
    for name in ("outer", "inner"):
        assert len(kept[name]) > 500
        for own, holds in ((name, True), (f"less {name}", False)):
            error = 2 * np.std(kept[own]) / np.sqrt(len(kept[own]))  # of counting
            assert (means[own] > promised - error) == holds, means
    assert level - 0.03 < means["volume"] < level + 0.09, means
