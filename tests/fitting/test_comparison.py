"""The contest: who competes, what is held out, and what the winner is fitted to."""

import math

import numpy as np
import pytest

import segcal
from segcal import ArrayCases, FitConfig, choose, make_calibrator
from segcal.errors import InputError
from segcal.fitting.choice import candidates
from segcal.fitting.comparison import compare, read_poolings
from segcal.fitting.fit import fit_declared


def draw(count, temperature, seed=1, classes=3, shape=(19, 23), groups=None, warp=None, **options):
    """Cases whose labels follow the softmax of logits / temperature, or of a function of the logits."""
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(classes, *shape)).astype("float32") for _ in range(count)]
    truth = [((z / temperature if warp is None else warp(z)) + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    ids = [f"s{seed}c{k}" for k in range(count)]
    return ArrayCases(logits, truth, ids=ids, groups=groups, **options)


def compared(names, cases, validation=None, **options):
    config = FitConfig(**options)
    return compare(names, read_poolings(cases, validation, config), config)


def nll(calibrator, case):
    log_probs = calibrator(case.logits[None].double())[0].numpy()
    return -np.take_along_axis(log_probs, case.labels.numpy()[None], 0).mean()


def test_a_curve_that_no_temperature_has_is_found():
    """Confidences that are right up to a gap of one and then far too high: isotonic has the curve, ts has not."""

    def warp(z):
        gaps = z.max(0) - z
        return -np.minimum(gaps, 1 + 0.05 * (gaps - 1))

    _, decision = compared(["identity", "ts", "isotonic"], draw(12, 1.0, warp=warp, shape=(40, 50)))
    assert decision.chosen.name == "isotonic"


def test_the_table_is_that_of_cases_that_a_fit_did_not_see():
    """Held-out NLLs of ts, computed here: fold by fold, fitted by segcal.fit on the rest."""
    cases = draw(4, 2.0)
    _, decision = compared(["identity", "ts"], cases, folds=4)
    found = {row.name: row for row in decision.candidates}
    by_hand = []
    for case_id in cases.ids:
        rest = cases.subset([other for other in cases.ids if other != case_id])
        by_hand.append(nll(segcal.fit("ts", rest).calibrator, cases.read(case_id)))
    assert found["ts"].nll == pytest.approx(np.mean(by_hand), rel=1e-5)
    plain = [nll(make_calibrator("identity", 3), case) for case in cases]
    gaps = np.array(plain) - np.array(by_hand)
    assert found["identity"].nll == pytest.approx(np.mean(plain), rel=1e-5)
    assert found["identity"].against.mean == pytest.approx(gaps.mean(), rel=1e-4)
    error = math.sqrt(gaps.var(ddof=1) / 4 * (1 + 4 / 3))
    assert found["identity"].against.error == pytest.approx(error, rel=1e-3)


def test_validation_cases_are_the_only_ones_that_judge():
    """The labels of the calibration cases say T = 3, those for validation T = 1: doing nothing is right."""
    fitted, decision = compared(["identity", "ts"], draw(6, 3.0), draw(7, 1.0, seed=2))
    assert decision.chosen.name == "identity"
    assert (decision.cases, decision.groups, decision.folds) == (7, 7, 1)
    assert fitted.validation_ids == tuple(f"s2c{k}" for k in range(7))


@pytest.mark.parametrize("groups", [None, ["one"] * 3])
def test_of_one_group_nothing_is_known_and_nothing_is_changed(groups):
    cases = draw(1 if groups is None else 3, 2.0, groups=groups)
    fitted, decision = compared(candidates(3), cases)
    assert decision.chosen.name == "identity"
    assert decision.reason.startswith("The cases are one group, so that none can be held out")
    assert type(fitted.calibrator).__name__ == "Identity"


def test_many_cases_of_one_group_decide_on_a_temperature_and_on_no_more():
    cases = draw(12, 3.0, groups=["one"] * 12)
    fitted, decision = compared(candidates(3), cases)
    assert decision.chosen.name == "ts"
    assert [row.name for row in decision.candidates] == ["identity", "ts"]
    assert (decision.cases, decision.groups) == (12, 1)
    assert decision.reason.startswith("The cases are one group, of which no more than a temperature is learned")
    assert (fitted.certificate.evidence.groups, fitted.certificate.evidence.sites) == (1, {})
    assert cases.groups == dict.fromkeys(cases.ids, "one")


def test_both_poolings_compete_where_none_is_declared():
    rng = np.random.default_rng(0)
    members, labels = [], []
    for _ in range(8):
        truth = 3 * rng.normal(size=(3, 600))
        members.append([(truth + 6 * rng.normal(size=truth.shape)).astype("float32") for _ in range(4)])
        labels.append((truth + rng.gumbel(size=truth.shape)).argmax(0))
    cases = ArrayCases(members, labels, pooling="best")
    with pytest.raises(InputError, match="pooling is 'best', but only a comparison on labelled cases can tell"):
        cases.read("0")
    fitted, decision = compared(["identity", "ts"], cases)
    values = {row.title: row.nll for row in decision.candidates}
    assert set(values) == {f"{n} ({p})" for n in ("identity", "ts") for p in ("mean_probs", "mean_logits")}
    assert fitted.pooling == decision.chosen.pooling == "mean_logits"  # the sum of independent evidence, scaled
    for pooling in ("mean_logits", "mean_probs"):
        _, own = compared(["ts"], ArrayCases(members, labels, pooling=pooling))
        assert own.chosen.nll == pytest.approx(values[f"ts ({pooling})"], rel=1e-9)


def test_what_is_too_large_for_the_voxels_is_not_tried():
    _, decision = compared(["identity", "ts", "cms_ap"], draw(12, 2.0, shape=(10, 10)), voxels=20)
    assert decision.candidates[-1].name == "cms_ap"
    assert decision.candidates[-1].verdict == "not tried: too many parameters for the voxels"


def test_what_the_first_folds_show_to_be_worse_is_left_early(monkeypatch):
    seen = []

    def fit(request):
        seen.append(type(request.calibrator).__name__)
        if seen[-1] == "OrderPreservingNetwork":  # made useless
            for parameter in request.calibrator.parameters():
                parameter.data.fill_(3.0)
            return None
        return fit_declared(request)

    monkeypatch.setattr("segcal.fitting.comparison.fit_declared", fit)
    _, decision = compared(["identity", "ts", "iop"], draw(20, 2.0, shape=(40, 50)))
    assert decision.candidates[-1].verdict == "left early: not better than ts"
    assert seen.count("OrderPreservingNetwork") == 1


def test_the_fit_tells_of_the_comparison():
    details = choose(draw(11, 3.0), config=FitConfig(voxels=200)).certificate.details
    assert details["chosen"] == "ts"
    assert details["reason"].startswith("No calibrator was better than a temperature on 11 held-out cases")
    names = [row["name"] for row in details["candidates"]]
    assert set(names) == set(candidates(3))
    assert (details["cases"], details["groups"], details["folds"]) == (11, 11, 5)


AT_SITES = ["identity", "ts", "dc"]


def cases_of_sites(sites, declared=True, seed=2, classes=3, voxels=600):
    """Cases of sites, each with so many: at some the second class is less often right than its logits say."""
    rng = np.random.default_rng(seed)
    logits, labels, names = [], [], []
    for name, count, lean in sites:
        for _ in range(count):
            z = 3 * rng.normal(size=(classes, voxels)) + lean * np.eye(classes)[:, 1:2]
            logits.append(z.astype("float32"))
            labels.append((0.4 * z + lean * np.eye(classes)[:, 1:2] + rng.gumbel(size=z.shape)).argmax(0))
            names.append(name)
    return ArrayCases(
        logits, labels, ids=[f"s{seed}c{k:02d}" for k in range(len(names))], sites=names if declared else None
    )


def mean_nll(calibrator, cases):
    losses = []
    for case in cases:
        log_probs = calibrator(case.logits[None].double())[0].numpy()
        losses.append(-np.take_along_axis(log_probs, case.labels.numpy()[None], 0).mean())
    return np.mean(losses)


def compared_at_sites(cases, **options):
    config = FitConfig(**options)
    return compare(AT_SITES, read_poolings(cases, None, config), config)


@pytest.fixture(scope="module")
def home():
    return [("a", 18, -1.2), ("b", 4, 0.2)]


@pytest.mark.parametrize("declared", [True, False])
def test_what_learns_the_frequencies_of_a_site_does_no_harm_at_another(home, declared, monkeypatch):
    cases, other = cases_of_sites(home, declared), cases_of_sites([("c", 6, 1.0)], seed=52)
    simple = mean_nll(compare(["ts"], read_poolings(cases, None, FitConfig()), FitConfig()).fitted.calibrator, other)
    fitted, decision = compared_at_sites(cases)
    assert decision.chosen.name == "ts"
    assert mean_nll(fitted.calibrator, other) == pytest.approx(simple)
    assert decision.reason.endswith("Where cases that differ are held out, harm was done by dc.")
    monkeypatch.setattr("segcal.fitting.comparison.find_sites", lambda *_: None)  # as it was
    before = compared_at_sites(cases)
    assert before.decision.chosen.name == "dc"
    assert mean_nll(before.fitted.calibrator, other) > simple + 0.1


def test_what_is_true_everywhere_is_taken(home):
    """Sites that lean alike: held out, each says the same."""
    cases = cases_of_sites([(name, count, -1.2) for name, count, _ in home])
    fitted, decision = compared_at_sites(cases)
    assert decision.chosen.name == "dc"
    assert fitted.certificate.evidence.sites == {"a": 18, "b": 4}
    assert fitted.certificate.evidence.declared
    assert fitted.certificate.lam == decision.chosen.strengths.lam
    assert {row["strength"] for row in fitted.certificate.path} >= {fitted.certificate.lam}


def test_parts_are_of_the_calibration_cases_where_others_validate(home):
    cases, validation = cases_of_sites(home), cases_of_sites([("a", 12, -1.2)], seed=9)
    config = FitConfig()
    decision = compare(AT_SITES, read_poolings(cases, validation, config), config).decision
    assert decision.folds == 1
    assert decision.chosen.name == "ts"  # validation cases of site a alone praise dc
    assert next(row for row in decision.candidates if row.name == "dc").against.mean < 0
