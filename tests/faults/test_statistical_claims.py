"""What is claimed of rates, coverage and levels, counted in simulations with fixed seeds: each fails if it is broken.

Counts are judged by the exact binomial distribution: a rate that holds is outside in one of a thousand tries.
"""

import numpy as np
import pytest
import scipy

import segcal
from segcal.resample import Draws
from segcal.summary import difference, estimate
from segcal.trust.atypical import atypical_p, column_p
from segcal.trust.drift import weigh
from segcal.trust.stream import monitor

SPACE = (9, 11)


def at_most(count, tries, rate):
    """Return whether so many of the tries are what a rate of at most this allows."""
    return count <= scipy.stats.binom.ppf(0.999, tries, rate)


def at_least(count, tries, rate):
    return count >= scipy.stats.binom.ppf(0.001, tries, rate)


# --- the monitor -----------------------------------------------------------------------------------------------------


def pictures(count, seed, prefix, rare=0.0, scale=1.0, order=(0, 1, 2, 3), groups=None):
    """Return cases with a disc in a ring; of the last class nothing, or a corner in a share of the cases."""
    rng = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in SPACE), indexing="ij"))
    logits, labels = [], []
    for _ in range(count):
        radius = np.sqrt((place**2).sum(0)) + 0.1 * rng.normal(size=SPACE)
        inner, outer = rng.uniform(0.45, 0.55), rng.uniform(0.8, 0.9)
        sure = rng.uniform(8, 12)
        none = np.full(SPACE, -60.0)
        if rng.random() < rare:
            none[:2, :2] = 20.0
        maps = [
            sure * (radius - outer), sure * np.minimum(outer - radius, radius - inner), sure * (inner - radius), none,
        ]  # fmt: skip
        mean = np.stack(maps) + 0.4 * rng.normal(size=(4, *SPACE)) * np.array([1, 1, 1, 0])[:, None, None]
        labels.append((mean + rng.gumbel(size=mean.shape)).argmax(0))
        logits.append((scale * mean[list(order)]).astype("float32"))
    ids = [f"{prefix}{number:03d}" for number in range(count)]
    return segcal.ArrayCases(logits, labels, ids=ids, kind="logits", groups=groups)


@pytest.fixture(scope="module")
def plain():
    return segcal.fit("ts", pictures(8, 1, "fit"))


@pytest.mark.parametrize("rare", [0.0, 0.1])
def test_clean_streams_with_an_empty_or_rare_class_stay_quiet(plain, rare):
    """Numbers of new cases had six digits and those of the reference all: a constant column made every case odd."""
    unusual = draws = alarms = 0
    for seed in range(4):
        fitted = segcal.learn_trust(plain, pictures(30, 10 + seed, f"ref{seed}", rare), held_out=True)
        found = monitor(fitted, pictures(15, 20 + seed, f"new{seed}", rare), rate=0.1)
        alarms += not found.applies
        unusual, draws = unusual + len(found.unusual), draws + len(found.draws)
    assert alarms == 0
    assert at_most(unusual, draws, 0.15)  # draws of one stream share a reference; before, all 60


def clean_rows(rng, count):
    """Return rows with usual columns, constant ones, one with a jitter, one seldom there, one seldom not constant."""
    rows = rng.standard_t(3, size=(count, 8))
    rows[:, 3] = -9.01091
    rows[:, 4] = -9.01091 + 1e-6 * rng.integers(-1, 2, size=count)
    rows[rng.random(count) < 0.8, 5] = np.nan
    rows[rng.random(count) < 0.93, 6] = 0.0
    rows[:, 7] = np.nan
    return rows


def p_values(rng, reference, new):
    kept, found = reference, []
    for row in new:
        smooth = rng.random()
        each = column_p(kept, row, smooth)
        found.append([atypical_p(kept, row, smooth), *each, *(1 - each)])
        kept = np.vstack([kept, row])
    return np.array(found)


@pytest.mark.parametrize(("reference", "length"), [(5, 12), (12, 25)])
def test_clean_streams_are_called_drifted_no_more_often_than_stated(reference, length):
    rng = np.random.default_rng(reference)
    tries, rate, alarms, first = 200, 0.2, 0, []
    for _ in range(tries):
        rows = clean_rows(rng, reference + length)
        found = p_values(rng, rows[:reference], rows[reference:])
        first.append(found[-1])  # of one draw a stream, so that they are independent
        alarms += weigh(found, reference, rate).reached is not None
    assert at_most(alarms, tries, rate)
    for share in (0.05, 0.2, 0.5, 0.8):
        for kind, column in enumerate(np.array(first).T):
            count = int((column <= share).sum())
            assert at_most(count, tries, share), kind
            assert at_least(count, tries, share), kind


def test_a_single_draw_is_called_unusual_no_more_often_than_stated():
    rng = np.random.default_rng(8)
    tries = 400
    found = [atypical_p(rows[:-1], rows[-1]) for rows in (clean_rows(rng, 20) for _ in range(tries))]
    assert at_most(sum(p <= 0.05 for p in found), tries, 0.05)
    assert at_most(sum(p <= 0.3 for p in found), tries, 0.3)


def test_a_stream_of_groups_stays_quiet_where_its_reference_has_groups(plain):
    groups = [f"p{number // 3}" for number in range(45)]
    fitted = segcal.learn_trust(plain, pictures(45, 30, "ref", 0.1, groups=groups), held_out=True)
    found = monitor(fitted, pictures(45, 31, "new", 0.1, groups=[f"q{name}" for name in groups]), rate=0.1)
    assert found.applies
    assert len(found.draws) == found.reference_draws == 15


@pytest.mark.parametrize(
    ("how", "within"),
    [
        ({"scale": 2.0}, 12),
        ({"scale": 0.5}, 12),
        ({"order": (0, 2, 1, 3)}, 12),
        ({"order": (2, 1, 0, 3)}, 12),
    ],
)
def test_rescaled_logits_and_another_order_of_classes_are_noticed(plain, how, within):
    """A draw of them is not odd as a whole; all of them differ in the same numbers, in the same direction."""
    for seed in range(3):
        fitted = segcal.learn_trust(plain, pictures(12, 40 + seed, f"ref{seed}", 0.1), held_out=True)
        found = monitor(fitted, pictures(within, 50 + seed, f"new{seed}", 0.1, **how))
        assert not found.applies, found.verdict
        assert found.statistic in found.verdict


# --- intervals of means and of paired differences ---------------------------------------------------------------------

SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "heavy": lambda rng, size: rng.standard_t(3, size=size),
    "log-normal": lambda rng, size: np.exp(rng.normal(size=size)) - np.exp(0.5),
}


def covered(rng, draws, groups, shape, tries, noise=0.3):
    """Return how often the interval holds the mean of cases of which those of a group are alike."""
    found = 0
    for _ in range(tries):
        alike = SHAPES[shape](rng, draws.groups)
        values = [alike[np.array(own)] + noise * rng.normal(size=len(own)) for own in groups]
        one = estimate(values, draws)
        found += one.low <= 0 <= one.high
    return found


@pytest.mark.parametrize(("count", "least"), [(5, 0.93), (8, 0.93), (20, 0.93)])
@pytest.mark.parametrize("shape", ["normal", "exponential", "heavy"])
def test_intervals_of_correlated_groups_cover_what_they_say(count, least, shape):
    """Drawn over cases, they covered 0.60 to 0.70 instead of 0.95."""
    rng = np.random.default_rng(count)
    groups = np.repeat(np.arange(count), rng.integers(1, 7, size=count))
    draws, tries = Draws([[str(group) for group in groups]], 500), 300
    assert at_least(covered(rng, draws, [groups], shape, tries), tries, least)
    if shape == "normal":
        alone, found = Draws([len(groups)], 500), 0
        for _ in range(tries):
            one = estimate([rng.normal(size=count)[groups] + 0.3 * rng.normal(size=len(groups))], alone)
            found += one.low <= 0 <= one.high
        assert found < 0.8 * tries  # what groups are for


@pytest.mark.parametrize(("count", "least"), [(10, 0.88), (20, 0.9), (40, 0.92)])
def test_very_skewed_differences_are_called_different_about_as_often_as_stated(count, least):
    """Log-normal differences of mean 0: Student's t calls 17, 13 and 10 % of them different, instead of 5 %."""
    rng, tries = np.random.default_rng(count), 400
    draws, nothing = Draws([count], 1000), [np.zeros(count)]
    same = student = 0
    for _ in range(tries):
        gaps = SHAPES["log-normal"](rng, count)
        same += difference(nothing, [gaps], draws).verdict() == "no difference"
        student += abs(gaps.mean()) <= scipy.stats.t.ppf(0.975, count - 1) * gaps.std(ddof=1) / np.sqrt(count)
    assert at_least(same, tries, least)
    assert same > student


def test_a_case_that_is_tested_in_several_repeats_is_one_draw():
    rng, tries, found = np.random.default_rng(3), 200, 0
    for _ in range(tries):
        alike = rng.normal(size=16)
        tested = [np.sort(rng.permutation(16)[:10]) for _ in range(3)]
        draws = Draws([[str(case) for case in own] for own in tested], 300)
        one = estimate([alike[own] + 0.05 * rng.normal(size=10) for own in tested], draws)
        found += one.low <= 0 <= one.high
    assert at_least(found, tries, 0.95)


def test_repeats_that_differ_by_more_than_their_cases_count_too():
    """With the spread over groups alone it would be 0.78; of so few repeats 0.95 is not reached."""
    rng, tries, found = np.random.default_rng(4), 200, 0
    draws = Draws([[str(case) for case in range(30)]] * 3, 400)
    for _ in range(tries):
        cases, repeats, both = 0.2 * rng.normal(size=30), 0.3 * rng.normal(size=3), 0.3 * rng.normal(size=(3, 30))
        one = estimate([cases + repeats[r] + both[r] for r in range(3)], draws)
        found += one.low <= 0 <= one.high
    assert at_least(found, tries, 0.92)


def test_evaluate_draws_whole_groups_and_says_so():
    rng = np.random.default_rng(0)
    names = [f"g{number // 4}" for number in range(24)]
    labels = [rng.integers(3, size=(6, 7)) for _ in names]
    right = np.repeat(rng.uniform(0, 4, size=6), 4)  # cases of a group are alike
    logits = [
        (np.eye(3)[each].transpose(2, 0, 1) * sure).astype("float32") for each, sure in zip(labels, right, strict=True)
    ]
    apart, together = (
        segcal.evaluate(segcal.ArrayCases(logits, labels, kind="logits", groups=groups), metrics=["nll", "ace"])
        for groups in (None, names)
    )
    assert "24 cases in 6 groups: mean [95 % interval, bootstrap over groups]" in str(together)
    assert "24 cases: mean [95 % interval, bootstrap over cases]" in str(apart)
    for name in ("nll", "ace"):
        one, other = apart.before[name], together.before[name]
        assert one.value == other.value
        assert other.high - other.low > 1.5 * (one.high - one.low)
