"""The variables of an affine calibrator as one vector an expert: rows of (W, b), then the gauge."""

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator


def pack(calibrator: AffineCalibrator) -> Tensor:
    """Return the parameters as ``(E, P)``: rows of (W, b), then the gauge."""
    weight, bias, gauge = (
        (p if calibrator.weight.ndim == 3 else p[None]).detach().double().cpu()
        for p in (calibrator.weight, calibrator.bias, calibrator.gauge)
    )
    return torch.cat([torch.cat([weight, bias[..., None]], dim=-1).flatten(1), gauge], dim=1)


def unpack(calibrator: AffineCalibrator, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight, bias and gauge with their expert axis from ``(..., P)``."""
    rows, features = calibrator.weight.shape[-2:]
    split = rows * (features + 1)
    both = theta[..., :split].reshape(*theta.shape[:-1], rows, features + 1)
    return both[..., :-1], both[..., -1], theta[..., split:]


@torch.no_grad()
def write(calibrator: AffineCalibrator, theta: Tensor) -> None:
    """Set the calibrator's parameters from ``(E, P)``."""
    for parameter, value in zip(
        (calibrator.weight, calibrator.bias, calibrator.gauge), unpack(calibrator, theta), strict=True
    ):
        parameter.copy_(value.reshape(parameter.shape))


def bounds(calibrator: AffineCalibrator) -> tuple[Tensor, Tensor]:
    """Return the bounds of one expert's variables, ``(P,)`` each."""
    low, high = calibrator.weight_bounds()
    gauge = torch.full((calibrator.gauge.shape[-1],), torch.inf, dtype=torch.float64)
    packed = []
    for weights, bias, free in zip((low, high), calibrator.bias_bounds(), (-gauge, gauge), strict=True):
        column = torch.full((len(weights), 1), bias, dtype=torch.float64)
        packed.append(torch.cat([torch.cat([weights, column], dim=1).flatten(), free]))
    return packed[0], packed[1]


def names(calibrator: AffineCalibrator) -> list[str]:
    """Return the names of one expert's variables."""
    rows, features = calibrator.weight.shape[-2:]
    listed = []
    for row in range(rows):
        listed += [f"weight[{row}, {column}]" for column in range(features)] + [f"bias[{row}]"]
    return listed + [f"gauge[{i}]" for i in range(calibrator.gauge.shape[-1])]


def penalised(calibrator: AffineCalibrator, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the off-diagonal entries and the offsets that Eq. 15 squares, from ``(..., P)``."""
    return calibrator.penalised(*unpack(calibrator, theta))


def penalty_matrices(calibrator: AffineCalibrator) -> tuple[Tensor, Tensor]:
    """Return the matrices Q of the two sums of squares of Eq. 15, as functions of one expert's parameters."""
    size = pack(calibrator).shape[1]
    off_diagonal, offsets = penalised(calibrator, torch.eye(size, dtype=torch.float64))
    classes = calibrator.num_classes
    flat = off_diagonal.flatten(1)
    return flat @ flat.T / (classes * (classes - 1)), offsets @ offsets.T / classes
