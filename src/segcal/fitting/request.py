"""What a fitting method is given."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.fitting.config import FitConfig
from segcal.fitting.voxels import VoxelSource


@dataclass(frozen=True)
class Request:
    """One fit: the calibrator to change, the voxels to fit it to, and how.

    Attributes:
        calibrator: its parameters are where the fit starts and where it leaves its result.
        source: the calibration voxels.
        validation: the validation voxels, or None.
        config: the options.
        device: where to compute.
        report: takes a short text on how far the fit is.
        cases: the calibration cases, for calibrators that see neighbours.
        validation_cases: the validation cases, or None.
    """

    calibrator: Calibrator
    source: VoxelSource
    validation: VoxelSource | None
    config: FitConfig
    device: torch.device
    report: Callable[[str], None]
    cases: Cases
    validation_cases: Cases | None
