"""One voxel, three offsets: matrix scaling answers differently each time, its constrained form does not."""

import pytest
import torch

from segcal import make_calibrator

Z = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
W = torch.tensor([[1, 0.1, 0], [0, 1.2, 0], [0.2, 0, 0.9]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("shift", "probabilities"),
    [
        (0, (0.821409, 0.111166, 0.067425)),
        (5, (0.766157, 0.170953, 0.062890)),
        (50, (0.047242, 0.948880, 0.003878)),
    ],
)
def test_matrix_scaling_depends_on_the_offset(shift, probabilities):
    calibrator = make_calibrator("ms", 3)
    with torch.no_grad():
        calibrator.weight.copy_(W)
        found = calibrator(Z + shift).exp()[0]
    assert found.tolist() == pytest.approx(probabilities, abs=1e-6)


@pytest.mark.parametrize("shift", [0, 5, 50, 1000])
def test_equal_row_sums_do_not(shift):
    calibrator = make_calibrator("ms_c", 3)
    with torch.no_grad():
        calibrator.weight.copy_(W[:, :2])
        calibrator.gauge.fill_(1.1)
        found = calibrator(Z + shift).exp()[0]
    assert found.tolist() == pytest.approx((0.811917, 0.121437, 0.066646), abs=1e-6)
