"""Of few groups, one that failed counts less: by hand, in memory and in a stream, and only where there is one."""

import numpy as np
import pytest

from segcal import ArrayCases, FitConfig, fit
from segcal.fitting.outliers import weigh, weights_of
from segcal.fitting.request import read_data
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels


def make(failed=True, count=8, voxels=300):
    """Cases of T = 2; of one the labels have nothing to do with the logits."""
    rng = np.random.default_rng(0)
    logits = [6 * rng.normal(size=(3, voxels)) for _ in range(count)]
    labels = [(z / 2 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    if failed:
        labels[3] = rng.integers(0, 3, voxels)
    return ArrayCases(logits, labels, ids=[f"p{k}" for k in range(count)])


def test_one_failed_case_does_not_decide_the_temperature():
    others = fit("ts", make(failed=False)).calibrator.temperature
    fitted = fit("ts", make())
    plain = fit("ts", make(), config=FitConfig(outliers=False)).calibrator.temperature
    assert plain > 1.5 * others
    assert abs(fitted.calibrator.temperature - others) < 0.6 * (plain - others)
    assert set(fitted.certificate.evidence.weights) == {"p3"}
    assert fitted.certificate.evidence.weights["p3"] < 0.5
    assert fitted.certificate.evidence.class_voxels == tuple(
        int(sum((case.labels == label).sum() for case in make())) for label in range(3)
    )


def test_of_ten_groups_all_count_alike():
    assert weigh(read_data(make(count=9), None, FitConfig()), 0).weights
    data = read_data(make(count=10), None, FitConfig())
    assert weigh(data, 0).weights == {}
    assert weigh(data, 0).source is data.source


def test_a_weight_is_twice_the_quartile_over_the_loss_of_the_group():
    losses = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 40.0, "f": 10.0}
    groups = {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E", "f": "E"}  # E: 25 in the mean, the quartile is 4
    assert weights_of(losses, groups) == {"e": pytest.approx(8 / 25), "f": pytest.approx(8 / 25)}
    assert weights_of({"a": 1.0, "b": 9.0}, {"a": "a", "b": "b"}) == {}
    assert (
        weights_of({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 5.0}, dict(zip("abcde", "abcde", strict=True))) == {}
    )


def test_weights_are_found_once():
    data = weigh(read_data(make(), None, FitConfig()), 0)
    assert weigh(data, 0) is data
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


def test_the_optimum_of_a_stream_is_that_of_the_sample():
    kept, streamed = (fit("ts", make(), config=FitConfig(voxels=v)) for v in (1000, "all"))
    assert streamed.calibrator.temperature == pytest.approx(kept.calibrator.temperature, rel=1e-6)
    verified = fit("cms_ap", make(), config=FitConfig(lam=0.1, mu=0.1, voxels=1000, verify=True)).certificate
    assert verified.full_residual <= 1.01e-6
