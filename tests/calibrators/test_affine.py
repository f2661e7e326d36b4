import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.affine import AffineCalibrator, scores_from_outputs

AFFINE = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]


def test_outputs_are_scores_drops_or_stacked_drops():
    linear = torch.tensor([[1.0, 2.0, 0.5]])
    assert scores_from_outputs(linear, "scores").tolist() == [[1.0, 2.0, 0.5]]
    assert scores_from_outputs(linear, "drops").tolist() == [[0.0, -1.0, -2.0, -0.5]]
    assert scores_from_outputs(linear, "stacked_drops").tolist() == [[0.0, -1.0, -3.0, -3.5]]


def test_stacked_drops_never_rise_whatever_the_prefix_sum_rounds():
    drops = torch.rand(20000, 19) * 10.0 ** torch.randint(-12, 3, (20000, 19))
    scores = scores_from_outputs(drops, "stacked_drops")
    assert bool((scores[:, 1:] <= scores[:, :-1]).all())


def test_a_prefix_sum_that_falls_in_its_last_bit_is_held_at_its_maximum():
    """As one computed in parallel may: the second drop stands for such a rounding."""
    assert scores_from_outputs(torch.tensor([[1.0, -1e-6, 0.5]]), "stacked_drops")[0, 1:3].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("name", AFFINE)
def test_the_frame_and_the_parameters_are_all_that_the_scores_need(name, randomise, voxels):
    """What the solver is told is what the calibrator does."""
    calibrator = randomise(make_calibrator(name, 4))
    logits = voxels(4)
    assert isinstance(calibrator, AffineCalibrator)
    frame = calibrator.frame(logits)
    with torch.no_grad():
        scores = calibrator.scores(logits)
        for v in range(len(logits)):
            weight, bias = calibrator.weight, calibrator.bias
            if frame.expert is not None:
                weight, bias = weight[frame.expert[v]], bias[frame.expert[v]]
            canonical = scores_from_outputs((weight @ frame.features[v] + bias)[None], calibrator.outputs)[0]
            order = range(4) if frame.order is None else frame.order[v].tolist()
            for place, label in enumerate(order):
                assert float(scores[v, label]) == pytest.approx(float(canonical[place]), abs=1e-9)


@pytest.mark.parametrize("name", AFFINE)
def test_the_full_map_is_linear_and_takes_leading_axes(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    with torch.no_grad():
        parts = [
            p if calibrator.weight.ndim == 3 else p[None]
            for p in (calibrator.weight, calibrator.bias, calibrator.gauge)
        ]
        once = calibrator.full_map(*parts)
        twice = calibrator.full_map(*(torch.stack([p, 3 * p]) for p in parts))
    for single, both in zip(once, twice, strict=True):
        torch.testing.assert_close(both[0], single)
        torch.testing.assert_close(both[1], 3 * single)


@pytest.mark.parametrize(("name", "experts"), [("ms", 1), ("dc", 1), ("cdc", 4), ("cms_ap", 4)])
def test_experts_are_counted(name, experts):
    assert make_calibrator(name, 4).num_experts == experts


def test_a_voxel_in_a_class_without_voxels_beside_it_is_mapped_too(randomise):
    calibrator = randomise(make_calibrator("cdc", 3))
    single = torch.tensor([[0.0, 5.0, 1.0]], dtype=torch.float64)
    both = torch.cat([single, torch.tensor([[9.0, 0.0, 0.0]], dtype=torch.float64)])
    torch.testing.assert_close(calibrator(both)[:1], calibrator(single))
