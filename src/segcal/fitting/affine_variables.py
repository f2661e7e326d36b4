"""The variables of an affine calibrator as one vector an expert: rows of (W, b), then the gauge."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator, without_diagonal


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


class Penalised(NamedTuple):
    """The linear functions of the parameters that a penalty squares.

    Attributes:
        off_diagonal: of W, for lam.
        offsets: b, for mu.
        diagonal: of W, for nu.
    """

    off_diagonal: Tensor
    offsets: Tensor
    diagonal: Tensor


def penalised(calibrator: AffineCalibrator, theta: Tensor) -> Penalised:
    """Return what the penalty squares, from ``(..., P)``, divided by the square root of how many entries there are."""
    matrix, offsets = calibrator.full_map(*unpack(calibrator, theta))
    classes = calibrator.num_classes
    return Penalised(
        without_diagonal(matrix).flatten(-2) / math.sqrt(classes * (classes - 1)),
        offsets / math.sqrt(classes),
        matrix.diagonal(dim1=-2, dim2=-1) / math.sqrt(classes),
    )


def penalty_matrices(calibrator: AffineCalibrator) -> list[Tensor]:
    """Return the matrices Q of the mean squares, as functions of one expert's parameters: for lam, mu and nu."""
    size = pack(calibrator).shape[1]
    return [rows @ rows.T for rows in penalised(calibrator, torch.eye(size, dtype=torch.float64))]


def temperature_point(calibrator: AffineCalibrator, inverse_temperature: float) -> Tensor:
    """Return one expert's parameters ``(P,)`` that make it temperature scaling: W = beta I, b = 0."""
    identity = type(calibrator)(calibrator.num_classes, **calibrator.options)
    return inverse_temperature * pack(identity)[0]
