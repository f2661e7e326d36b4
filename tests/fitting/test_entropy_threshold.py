import numpy as np
import pytest
import torch

from segcal import ArrayCases, fit, make_calibrator
from segcal.errors import InputError
from segcal.fitting.entropy_threshold import accuracy_threshold
from segcal.fitting.scores import higher_quantiles


def facts(logits, labels):
    p = np.exp(logits - logits.max(0))
    p /= p.sum(0)
    return -(p * np.log(p)).sum(0), logits.argmax(0) == labels


def test_the_quantile_is_numpys_higher_one_for_equal_weights():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 40):
        values = rng.normal(size=count)
        for share in (0.05, 0.5, 0.95):
            # numpy places the q-quantile at q (n - 1); by weight it is the first value that q n voxels do not exceed.
            expected = np.sort(values)[int(np.ceil(share * count)) - 1]
            assert higher_quantiles(values, np.ones(count), share) == expected


@pytest.mark.parametrize("name", ["meta_cal", "meta_cal_large_t"])
def test_a_share_alpha_of_right_voxels_is_above_the_threshold(name, make_cases, make_data):
    logits, labels = make_data(4, 20_000)
    height, right = facts(logits, labels)
    fitted = fit(make_calibrator(name, 4, alpha=0.1), make_cases(4, 20_000))
    threshold = fitted.calibrator.threshold.item()
    assert (height[right] >= threshold).mean() == pytest.approx(0.1, abs=0.02)
    assert fitted.certificate.details["n1"] == right.sum() // 10
    assert fitted.certificate.kkt_residual is None
    assert fitted.certificate.method == "entropy_threshold"


def test_the_accuracy_threshold_of_a_small_example():
    height, right = np.arange(20.0), np.arange(20) < 10
    # One voxel a bin: the accuracy of the first k voxels is 1 up to k = 10, then 10 / k; 0.5 is met at the end.
    assert accuracy_threshold(height, right, np.ones(20), 0.5) == pytest.approx(19.0)
    assert accuracy_threshold(height, right, np.ones(20), 10 / 15) == pytest.approx(14.0)


def test_an_accuracy_that_cannot_be_reached_is_refused(make_cases):
    with pytest.raises(InputError, match=r"target_accuracy is 0.999\d*, but accuracies from .* can be reached"):
        fit(make_calibrator("meta_cal", 4, target_accuracy=0.9999), make_cases(4, 2000))


def test_the_large_temperature_can_be_chosen_on_validation_data(make_cases):
    cal, val = make_cases(4, 3000), make_cases(4, 3000, seed=1)
    fixed = fit("meta_cal_large_t", cal, val)
    assert fixed.certificate.details["temperature_unsure"] == pytest.approx(1e4)
    chosen = fit(make_calibrator("meta_cal_large_t", 4, large_temperature=None), cal, val)
    assert chosen.certificate.validation_nll < fixed.certificate.validation_nll
    assert chosen.certificate.details["temperature_unsure"] in (1, 1.5, 2, 3, 5, 10, 100)


def test_predictions_that_are_all_wrong_are_refused():
    z = np.random.default_rng(0).normal(size=(3, 30, 20))
    with pytest.raises(
        InputError, match="all 600 calibration voxels are mispredicted, but Meta-Cal sets its threshold"
    ):
        fit("meta_cal", ArrayCases([z], [z.argmin(0)]))


def test_without_a_misprediction_and_with_few_voxels_it_is_fitted():
    z = np.random.default_rng(0).normal(size=(3, 2, 2))
    fitted = fit("meta_cal_large_t", ArrayCases([z], [z.argmax(0)]))
    assert fitted.certificate.details["n1"] == 1
    assert np.isfinite(fitted.certificate.nll)
    with torch.no_grad():
        assert torch.equal(fitted.calibrator(torch.tensor(z)[None]).argmax(1)[0], torch.tensor(z.argmax(0)))
