"""A group that failed counts less: by hand, in memory and in a stream, and only where there is one."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar

from segcal import ArrayCases, FitConfig, choose, fit, make_calibrator
from segcal.fitting.outliers import weigh, weights_of
from segcal.fitting.request import read_data
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels

TS = make_calibrator("ts", 3)


def make(failed=True, count=8, voxels=300, temperature=2.0):
    """Cases of one temperature; of one the labels have nothing to do with the logits."""
    rng = np.random.default_rng(0)
    logits = [20 * rng.normal(size=(3, voxels)) for _ in range(count)]
    labels = [(z / temperature + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    if failed:
        labels[3] = rng.integers(0, 3, voxels)
    return ArrayCases(logits, labels, ids=[f"p{k}" for k in range(count)])


def losses_of(cases, beta):
    """The mean NLL of every case at an inverse temperature."""
    found = []
    for case in cases:
        scaled, labels = beta * case.logits.numpy().astype(float), case.labels.numpy()
        top = scaled.max(0)
        sums = top + np.log(np.exp(scaled - top).sum(0))
        found.append(float((sums - scaled[labels, np.arange(len(labels))]).mean()))
    return np.array(found)


def by_hand(cases):
    """The inverse temperature and the weights of cases that are groups of equal size, from the definition."""

    def best(weights):
        return minimize_scalar(lambda b: weights @ losses_of(cases, b), bounds=(0.05, 3), options={"xatol": 1e-9}).x

    def found(losses):
        quarter = brentq(lambda c: np.minimum(losses, c).sum() - 4 * c, 0.5 * losses.min(), losses.sum())
        return np.minimum(1, max(2 * np.percentile(losses, 75), quarter) / losses)

    weights = np.ones(len(cases))
    for _ in range(3):
        weights = found(losses_of(cases, best(weights)))
    return best(weights), weights


@pytest.mark.parametrize("count", [8, 10, 15])
def test_one_failed_case_does_not_decide_the_temperature(count):
    cases = make(count=count)
    others = fit("ts", make(failed=False, count=count)).calibrator.temperature
    fitted = fit("ts", cases)
    plain = fit("ts", cases, config=FitConfig(outliers=False)).calibrator.temperature
    beta, weights = by_hand(cases)
    assert plain > 1.3 * others
    assert abs(fitted.calibrator.temperature - others) < 0.6 * (plain - others)
    assert fitted.calibrator.temperature == pytest.approx(1 / beta, rel=2e-3)  # weights of a coarse temperature
    assert fitted.certificate.evidence.weights == {"p3": pytest.approx(weights[3], rel=2e-3)}
    assert fitted.certificate.kkt_residual <= 1e-6
    assert fitted.certificate.evidence.class_voxels == tuple(
        int(sum((case.labels == label).sum() for case in cases)) for label in range(3)
    )


@pytest.mark.parametrize(("temperature", "name"), [(1.2, "identity"), (2.0, "ts")])
def test_the_default_with_a_failed_case_among_twelve_is_not_worse_than_nothing(temperature, name):
    new = make(failed=False, count=30, temperature=temperature)
    cases = make(count=12, temperature=temperature)
    nothing = losses_of(new, 1).mean()
    plain, found = (choose(cases, config=FitConfig(outliers=each), names=("identity", "ts")) for each in (False, True))
    assert losses_of(new, 1 / plain.calibrator.temperature).mean() > nothing
    assert found.calibrator.name == name
    assert name == "identity" or losses_of(new, 1 / found.calibrator.temperature).mean() < nothing


@pytest.mark.parametrize("count", [3, 9, 10, 11])
def test_without_a_failed_group_nothing_changes(count):
    data = read_data(make(failed=False, count=count), None, FitConfig())
    assert weigh(data, TS, FitConfig()).weights == {}
    assert weigh(data, TS, FitConfig()).source is data.source


@pytest.mark.parametrize("config", [FitConfig(outliers=False), FitConfig.paper()])
def test_who_wants_no_weights_has_none(config):
    data = read_data(make(), None, FitConfig())
    assert weigh(data, TS, config) is data


def test_a_weight_is_twice_the_quartile_over_the_loss_of_the_group():
    losses = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 40.0, "f": 10.0}
    groups = {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E", "f": "E"}  # E: 25 in the mean, the quartile is 4
    assert weights_of(losses, groups) == {"e": pytest.approx(8 / 25), "f": pytest.approx(8 / 25)}
    assert weights_of({"a": 1.0, "b": 9.0}, {"a": "a", "b": "b"}) == {}
    assert (
        weights_of({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 5.0}, dict(zip("abcde", "abcde", strict=True))) == {}
    )


def weighted(*losses):
    ids = [str(k) for k in range(len(losses))]
    found = weights_of(dict(zip(ids, losses, strict=True)), dict(zip(ids, ids, strict=True)))
    return np.array([found.get(each, 1.0) for each in ids])


def test_a_group_has_at_most_a_quarter_of_all():
    assert weighted(*[1.0] * 12, 20.0) == pytest.approx([*[1.0] * 12, 4 / 20])  # 4 of 12 + 4
    assert weighted(*[1.0] * 12, 20.0, 30.0) == pytest.approx([*[1.0] * 12, 6 / 20, 6 / 30])  # 6 of 12 + 6 + 6
    assert (weighted(*[1.0] * 12, *[20.0] * 4) == 1).all()  # four failed: so may new ones


def test_at_most_three_groups_and_a_quarter_of_them_count_less():
    rng = np.random.default_rng(5)
    for _ in range(300):
        losses = np.exp(3 * rng.normal(size=rng.integers(1, 40)))
        less = weighted(*losses) < 1
        assert less.sum() <= min(3, len(losses) / 4)
        assert not less.any() or losses[less].min() > losses[~less].max()


def test_a_weight_grows_with_the_number_of_groups_without_a_step():
    weights = np.array([weighted(*[1.0] * others, 12.0)[-1] for others in range(4, 50)])
    steps = np.diff(weights)
    assert weights[0] == pytest.approx(2 / 12)
    assert weights[-1] == 1
    assert steps.min() >= 0
    assert steps.max() <= 1 / (3 * 12) + 1e-12


def test_weights_are_found_once():
    data = weigh(read_data(make(), None, FitConfig()), TS, FitConfig())
    assert weigh(data, TS, FitConfig()) is data
    assert data.source.total_weight < 8 * 300


@pytest.mark.parametrize("kind", [StreamedVoxels, SampledVoxels])
def test_a_stream_and_a_sample_are_weighted_alike(kind):
    cases = make()
    source = kind(cases, lambda: None) if kind is StreamedVoxels else kind(cases, 1000, 0, lambda: None)
    less = source.weighted({"p3": 0.25})
    assert less.total_weight == pytest.approx(300 * 7.25)
    assert sum(float(voxels.weight.sum()) for voxels in less) == pytest.approx(300 * 7.25)
    assert less.subset(["p3"]).total_weight == pytest.approx(75)
    assert less.subset(["p2"]).total_weight == 300


@pytest.mark.parametrize("count", [8, 12])
def test_the_optimum_of_a_stream_is_that_of_the_sample(count):
    kept, streamed = (fit("ts", make(count=count), config=FitConfig(voxels=v)) for v in (1000, "all"))
    assert streamed.calibrator.temperature == pytest.approx(kept.calibrator.temperature, rel=1e-6)
    verified = fit("ts", make(count=count), config=FitConfig(voxels=1000, verify=True)).certificate
    assert verified.evidence.weights
    assert verified.full_residual <= 1.01e-6


@pytest.mark.parametrize("name", ["cms_ap", "isotonic"])
def test_what_is_richer_than_a_temperature_learns_from_a_failed_group_in_full(name):
    cases, options = make(count=12), {"lam": 0.1, "mu": 0.1, "voxels": 1000}
    found, plain = (fit(name, cases, config=FitConfig(outliers=each, **options)) for each in (True, False))
    assert found.certificate.evidence.weights == {}
    assert found.certificate.nll == plain.certificate.nll
    given = 5 * torch.randn(1, 3, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.calibrator(given), plain.calibrator(given))
