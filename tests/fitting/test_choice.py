"""The rule: what is clearly better, what is not, and what happens where nobody can know."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

from segcal import make_calibrator
from segcal.errors import InputError
from segcal.fitting.choice import ENOUGH_GROUPS, Candidate, ChoiceRule, Tried, candidates, harm, worst_mean
from segcal.fitting.scores import Worth, noise

PARAMETERS = {"identity": 0, "ts": 1, "cms_ap": 40, "isotonic": 2047, "iop": 1200}


def tried(name, nll, ece=None, pooling=None, ba_ece=None):
    ece = np.full(len(nll), 0.02) if ece is None else ece
    near = [None] * len(nll) if ba_ece is None else map(float, ba_ece)
    worth = {f"c{k}": Worth(float(a), float(b), c) for k, (a, b, c) in enumerate(zip(nll, ece, near, strict=True))}
    return Tried(Candidate(name, pooling, PARAMETERS[name]), worth)


def decide(rows, *how):
    return ChoiceRule(*how).decide(rows)


def alone(count):
    return {f"c{k}": f"c{k}" for k in range(count)}


def spread(count, mean, size, seed=0):
    """Values with exactly this mean and standard deviation."""
    values = np.random.default_rng(seed).normal(size=count)
    return mean + size * (values - values.mean()) / values.std(ddof=1)


def test_what_is_better_beyond_noise_is_taken():
    decision = decide(
        [tried("identity", [2.0] * 12), tried("ts", [1.0] * 12), tried("cms_ap", [0.9] * 12)], alone(12), 5
    )
    assert decision.chosen.name == "cms_ap"
    assert decision.chosen.verdict == "clearly better"
    assert decision.reason == "cms_ap has an NLL lower than ts by 0.1000 ± 0.0000 on 12 held-out cases."


@pytest.mark.parametrize("count", [5, 12])
def test_a_temperature_must_help_those_too_that_did_not_fail(count):
    others = count - 1
    for less, ts, name in (([], 1.02, "ts"), ([others], 1.02, "identity"), ([others], 0.98, "ts"), ([0], 1.02, "ts")):
        rows = [tried("identity", [*[1.0] * others, 50.0]), tried("ts", [*[ts] * others, 20.0])]
        decision = ChoiceRule(alone(count), 5, less={f"c{k}" for k in less}).decide(rows)
        assert decision.chosen.name == name
        if name == "identity":
            where = f"On {count} held-out cases, but for groups that failed, a temperature was not better than no"
            assert decision.reason.startswith(where)


@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize("folds", [1, 5])
def test_the_limit_is_the_one_sided_interval_of_student(count, folds):
    factor = 1 if folds == 1 else math.sqrt(1 + folds / (folds - 1))
    limit = scipy.stats.t.ppf(0.95, count - 1) * factor / math.sqrt(count)  # for differences of deviation one
    for share, name in ((0.98, "ts"), (1.02, "cms_ap")):
        rows = [tried("ts", np.zeros(count)), tried("cms_ap", spread(count, -share * limit, 1.0))]
        assert decide(rows, alone(count), folds).chosen.name == name


def test_groups_and_not_cases_decide():
    gains = np.repeat([-1.0, -1.2, 0.4, -0.9, 0.5, -1.1, 0.3, 0.2, -0.3, 0.1], 5)
    rows = [tried("ts", np.zeros(50)), tried("cms_ap", gains)]
    assert decide(rows, alone(50), 1).chosen.name == "cms_ap"
    grouped = {f"c{k}": f"g{k // 5}" for k in range(50)}
    assert decide(rows, grouped, 1).chosen.name == "ts"


def test_of_few_groups_nothing_but_a_temperature_is_taken():
    few, enough = ENOUGH_GROUPS - 1, ENOUGH_GROUPS
    for count, name in ((few, "ts"), (enough, "cms_ap")):
        decision = decide([tried("ts", [1.0] * count), tried("cms_ap", [0.5] * count)], alone(count), count)
        assert decision.chosen.name == name
    decision = decide([tried("ts", [1.0] * few), tried("cms_ap", [0.5] * few)], alone(few), few)
    assert decision.reason == "9 groups are too few to know what more than a temperature is worth: 10 are needed."


def test_a_lower_likelihood_does_not_buy_a_worse_calibration_error():
    nll = spread(20, 0.8, 0.01)
    better, worse = spread(20, 0.02, 0.001), spread(20, 0.03, 0.001, seed=1)
    rows = [tried("ts", np.ones(20), better), tried("cms_ap", nll, worse)]
    decision = decide(rows, alone(20), 5)
    assert decision.chosen.name == "ts"
    assert decision.candidates[1].verdict == "better in NLL, worse in ECE"


def test_a_lower_likelihood_does_not_buy_a_worse_error_near_boundaries():
    nll, same = spread(20, 0.8, 0.01), np.full(20, 0.02)
    rows = [tried("ts", np.ones(20), same, ba_ece=same), tried("cms_ap", nll, same, ba_ece=spread(20, 0.03, 0.001))]
    decision = decide(rows, alone(20), 5)
    assert decision.chosen.name == "ts"
    assert decision.candidates[1].verdict == "better in NLL, worse in BA-ECE"


@pytest.mark.parametrize(("errors", "name"), [((0.0, 0.0), "ts"), ((1.2, 0.0), "ts"), ((1.2, 1.2), "cms_ap")])
def test_three_numbers_can_say_together_what_none_says_alone(errors, name):
    """Each is lower by 1.2 standard errors: too little for a likelihood alone, enough if both errors are lower too."""
    count = 20
    size = 1 / math.sqrt(1 + 5 / 4) * math.sqrt(count)  # such that one standard error of the mean is 1
    nll, ece, near = (100 + spread(count, -by, size, seed) for seed, by in enumerate((1.2, *errors)))
    plain = np.full(count, 100.0)
    rows = [tried("ts", plain, plain, ba_ece=plain), tried("cms_ap", nll, ece, ba_ece=near)]
    assert decide(rows, alone(count), 5).chosen.name == name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([-0.2] * 12, "ts"),
        ([-0.01] * 7 + [0.02] * 5, "ts"),  # the mean is worse within its noise
        ([-0.01] * 7 + [1.0] * 5, "identity"),  # the mean is worse beyond noise
        ([-9.0] + [0.1] * 11, "ts"),  # better in the mean, though for one failed case alone
        ([-9.0] + [0.3] * 5, "identity"),  # of so few, one failed case is no reason to harm all others much
        ([-9.0] + [0.2] * 5, "ts"),
        ([0.2, 0.2001, 0.1999], "ts"),  # of so few, little noise is chance
        ([0.3] * 2, "ts"),  # what is fitted to one group says little of what is fitted to both
        ([-0.1] * 2 + [0.1] * 2, "ts"),
    ],
)
def test_a_temperature_must_not_harm_the_mean_and_of_few_groups_not_the_median_much(changes, name):
    count = len(changes)
    rows = [tried("identity", 10 * np.ones(count)), tried("ts", 10 * (1 + np.array(changes)))]
    decision = decide(rows, alone(count), 5)
    assert decision.chosen.name == name
    assert ("a temperature was not better than no" in decision.reason) == (name == "identity")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([0.2, 0.2001, 0.1999], "identity"),  # what is judged is what would be taken
        ([0.2, -0.1, -0.05], "ts"),
        ([-9.0] + [0.3] * 5, "identity"),
        ([0.1], "identity"),
        ([-0.1], "ts"),
    ],
)
def test_of_few_validation_cases_the_mean_decides_too(changes, name):
    count = len(changes)
    rows = [tried("identity", 10 * np.ones(count)), tried("ts", 10 * (1 + np.array(changes)))]
    assert decide(rows, alone(count), 1).chosen.name == name


def test_a_group_without_any_loss_is_made_worse_by_any():
    rows = [tried("identity", [0.0, 0.0, 1.0]), tried("ts", [0.0, 0.0, 9.0])]
    assert decide(rows, alone(3), 3).chosen.name == "ts"
    rows = [tried("identity", [0.0, 0.0, 1.0]), tried("ts", [1e-9, 1e-9, 0.5])]
    assert decide(rows, alone(3), 3).chosen.name == "identity"  # the mean falls


def test_the_reference_is_the_better_pooling_of_a_temperature():
    rows = [tried("ts", [1.0] * 7, pooling="mean_logits"), tried("ts", [0.9] * 7, pooling="mean_probs")]
    decision = decide([*rows, tried("cms_ap", [0.95] * 7, pooling="mean_logits")], alone(7), 5)
    assert decision.chosen.title == "ts (mean_probs)"
    assert decision.candidates[2].verdict == "not better"


def test_of_what_cannot_be_told_apart_the_one_with_fewer_parameters_is_taken():
    close = spread(20, 0.5, 0.05)
    rows = [tried("ts", np.ones(20)), tried("isotonic", close), tried("cms_ap", close + spread(20, 0.001, 0.05, 3))]
    assert decide(rows, alone(20), 5).chosen.name == "cms_ap"
    rows[2] = tried("cms_ap", close + spread(20, 0.2, 0.05, 3))
    assert decide(rows, alone(20), 5).chosen.name == "isotonic"


@pytest.mark.parametrize("seed", range(15))
def test_what_is_taken_is_not_worse_than_a_temperature_beyond_noise_whatever_the_numbers(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    names = ["identity", "ts", "cms_ap", "isotonic", "iop"]
    rows = [tried(name, rng.exponential(size=count), rng.uniform(0, 0.1, count)) for name in names]
    groups = {f"c{k}": f"g{rng.integers(0, count)}" for k in range(count)}
    decision = decide(rows, groups, 5)
    chosen, ts = (next(r for r in rows if r.candidate.name == n) for n in (decision.chosen.name, "ts"))
    ids = list(ts.worth)
    difference = noise([chosen.worth[i].nll - ts.worth[i].nll for i in ids], [groups[i] for i in ids], 5)
    assert difference.mean <= 0 or chosen.candidate.name == "identity"
    plain = next(r for r in rows if r.candidate.name == "identity")
    harm = noise([chosen.worth[i].nll - plain.worth[i].nll for i in ids], [groups[i] for i in ids], 5)
    names = np.array([groups[i] for i in ids])
    if len(set(names)) >= ENOUGH_GROUPS:
        assert harm.mean <= harm.error
        return
    after, before = (np.array([row.worth[i].nll for i in ids]) for row in (chosen, plain))
    rises = [after[names == name].sum() / before[names == name].sum() for name in set(names)]
    assert harm.mean >= 0 or np.median(rises) <= 1.25


def test_what_must_be_kept_decides_who_competes():
    assert candidates(4) == [
        "identity", "ts", "ets", "cms_ap", "cms_op", "conic", "conic_class", "pts", "isotonic",
    ]  # fmt: skip
    assert candidates(4, "order") == ["identity", "ts", "ets", "cms_op", "conic", "pts", "isotonic"]
    assert not {"vs", "ms"} & set(candidates(4, "none"))
    assert {"vs", "ms", "dc"} <= set(candidates(4, "none", allow_offset_dependent=True))
    for name in candidates(4, "none"):
        assert make_calibrator(name, 4).translation_invariant
    with pytest.raises(InputError, match="preserve is 'mask', but it must be order, argmax or none"):
        candidates(4, "mask")


def test_memory_decides_who_competes(monkeypatch):
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 108)
    assert "cms_ap" not in candidates(100)
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 110)
    assert "cms_ap" in candidates(100)


@pytest.mark.parametrize(("name", "gain", "verdict"), [
    ("cms_ap", 0.009, "better by less than 1%"), ("cms_ap", 0.011, "clearly better"),
    ("iop", 0.029, "better by less than 3%"), ("iop", 0.031, "clearly better"),
])  # fmt: skip
def test_a_gain_must_matter_and_without_a_certificate_be_noticed(name, gain, verdict):
    decision = decide([tried("ts", [1.0] * 12), tried(name, [1.0 - gain] * 12)], alone(12), 5)
    assert decision.candidates[1].verdict == verdict


def test_candidates_are_compared_with_each_other_and_say_who_beat_them():
    """All three are clearly better than ts; the simplest is beaten, the largest is no better than the other."""
    rows = [tried("ts", np.ones(20)), tried("cms_ap", spread(20, 0.90, 0.01)), tried("iop", spread(20, 0.80, 0.01))]
    rows.append(tried("isotonic", spread(20, 0.7999, 0.01)))
    decision = decide(rows, alone(20), 5)
    assert decision.chosen.name == "iop"
    verdicts = {row.name: row.verdict for row in decision.candidates}
    assert verdicts == {
        "ts": "reference", "cms_ap": "beaten by iop", "iop": "clearly better", "isotonic": "no better than iop",
    }  # fmt: skip


def away(row, nll):
    return dataclasses.replace(
        row, away={i: Worth(float(value), 0.02) for i, value in zip(row.worth, nll, strict=True)}
    )


def test_the_best_that_generalises_is_taken_and_each_is_measured_once():
    parts = {"here": [f"c{k}" for k in range(6)], "there": [f"c{k}" for k in range(6, 12)]}
    rows = {
        "ts": tried("ts", [1.0] * 12), "cms_ap": tried("cms_ap", [0.8] * 12), "isotonic": tried("isotonic", [0.9] * 12),
    }  # fmt: skip
    elsewhere = {"ts": [1.0] * 12, "cms_ap": [0.7] * 6 + [1.1] * 6, "isotonic": [0.95] * 12}
    asked = []

    def transfer(row):
        asked.append(row.candidate.name)
        return [away(row, elsewhere[row.candidate.name])]

    decision = decide(list(rows.values()), alone(12), 5, transfer, parts)
    assert decision.chosen.name == "isotonic"
    assert sorted(asked) == ["cms_ap", "isotonic", "ts"]
    assert decision.candidates[0].verdict == "reference"
    assert decision.candidates[1].verdict == "worse in there, when held out: +0.1000"
    assert decision.reason == (
        "isotonic has an NLL lower than ts by 0.1000 ± 0.0000 on 12 held-out cases. "
        "Where cases that differ are held out, harm was done by cms_ap."
    )
    assert decide(list(rows.values()), alone(12), 5).chosen.name == "cms_ap"


def test_the_first_strength_that_generalises_is_taken_if_it_still_matters():
    parts = {"all": [f"c{k}" for k in range(12)]}
    ts, weak = tried("ts", [1.0] * 12), tried("cms_ap", [0.8] * 12)
    for stronger, name in ((0.9, "cms_ap"), (0.995, "ts")):
        versions = [away(weak, [1.2] * 12), away(tried("cms_ap", [stronger] * 12), [0.9] * 12)]
        found = decide(
            [ts, weak], alone(12), 5, lambda row, v=versions: v if row is not ts else [away(ts, [1.0] * 12)], parts
        )
        assert found.chosen.name == name
        assert found.chosen.nll == pytest.approx(stronger if name == "cms_ap" else 1.0)


def test_a_temperature_that_harms_where_it_has_not_been_is_no_reference():
    ts, plain = tried("ts", [1.0] * 12), tried("identity", [1.1] * 12)
    for loss, name in ((0.1, "identity"), (-0.1, "ts")):
        elsewhere = {"ts": spread(12, 1.0 + loss, 0.01), "identity": np.ones(12)}
        decision = decide([plain, ts], alone(12), 5, lambda row, e=elsewhere: [away(row, e[row.candidate.name])], {})
        assert decision.chosen.name == name
        assert decision.chosen.verdict == "reference"


TWO_PARTS = {"here": [f"c{k}" for k in range(6)], "there": [f"c{k}" for k in range(6, 12)]}
GROUPS = {f"c{k}": f"c{k}" for k in range(12)}
HOME = {f"c{k}": Worth(0.2, 0.1, 0.2) for k in range(12)}


def elsewhere(differences, ece=0.0, ba_ece=0.0, nll=0.2):
    return {f"c{k}": Worth(nll + d, 0.1 + ece, 0.2 + ba_ece) for k, d in enumerate(differences)}


def harmful(own, reference, groups=GROUPS, parts=TWO_PARTS, errors=1.0):
    return harm(own, reference, groups, parts, errors)


def test_a_gain_everywhere_is_no_harm():
    assert harmful(elsewhere([-0.1] * 12), HOME) == ""


def test_a_part_that_loses_beyond_its_noise_is_named_though_the_mean_gains():
    assert harmful(elsewhere([-0.1] * 6 + [0.01, 0.011] * 3), HOME) == "worse in there, when held out: +0.0105"


@pytest.mark.parametrize(
    ("loss", "errors", "is_harm"), [(0.9, 1, False), (1.1, 1, True), (1.9, 2, False), (2.1, 2, True)]
)
def test_noise_is_so_many_standard_errors_over_the_groups_of_the_part(loss, errors, is_harm):
    spread = [-0.01, 0.01] * 3
    error = math.sqrt(sum(d * d for d in spread) / 5 / 6)
    found = harmful(
        elsewhere([-0.1] * 6 + [d + loss * error for d in spread], nll=1.0),
        elsewhere([0.0] * 12, nll=1.0),
        GROUPS,
        TWO_PARTS,
        errors,
    )
    assert bool(found) == is_harm


def test_cases_of_one_group_are_one():
    one = GROUPS | {f"c{k}": "same" for k in range(6, 12)}
    assert harmful(elsewhere([-0.1] * 6 + [-0.05, 0.06] * 3), HOME) == "worst cases elsewhere: +0.060 nats"
    assert harmful(elsewhere([-0.1] * 6 + [-0.05, 0.06] * 3), HOME, one) == "worse in there, when held out: +0.0050"


def test_the_worst_cases_are_bounded():
    assert harmful(elsewhere([-0.1] * 11 + [0.019]), HOME) == ""
    assert harmful(elsewhere([-0.1] * 11 + [0.021]), HOME) == "worst cases elsewhere: +0.021 nats"
    assert harmful(elsewhere([-0.1] * 11 + [0.09], nll=1.0), elsewhere([0.0] * 12, nll=1.0)) == ""
    assert harmful(elsewhere([-0.1] * 11 + [0.11], nll=1.0), elsewhere([0.0] * 12, nll=1.0)).startswith("worst cases")
    assert worst_mean([0.0] * 36 + [1.0, 2.0, 3.0, -9.0]) == 2.5  # two of forty


def test_calibration_errors_must_not_rise_elsewhere():
    assert harmful(elsewhere([-0.1] * 12, ece=0.01), HOME) == "worse in ECE elsewhere"
    assert harmful(elsewhere([-0.1] * 12, ba_ece=0.01), HOME) == "worse in BA-ECE elsewhere"


def test_a_part_of_which_nothing_is_known_says_nothing():
    assert harmful(elsewhere([-0.1] * 12), HOME, parts=TWO_PARTS | {"empty": ["c99"]}) == ""


@pytest.mark.parametrize(("pooling", "title"), [(None, "ts"), ("single", "ts"), ("mean_probs", "ts (mean_probs)")])
def test_a_pooling_that_was_chosen_is_part_of_the_title(pooling, title):
    assert Candidate("ts", pooling, 1).title == title


def test_its_loss_is_the_mean_over_cases():
    row = Tried(Candidate("ts", None, 1), {"a": Worth(1.0, 0.1), "b": Worth(2.0, 0.3)})
    assert row.nll == 1.5
    assert row.away is None
