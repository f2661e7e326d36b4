r"""Choosing among calibrators, honestly: on validation cases that none of them was fitted to.

Each candidate is fitted to the calibration cases (its strengths chosen on the validation cases) and measured by its NLL
on every voxel of each validation case. The candidate with the lowest mean NLL over cases is the best. Of those that are
no more than one standard error worse, with the error of the *paired* difference over cases,

.. math:: \bar d \le \mathrm{sd}(d) / \sqrt{n}, \qquad d_i = \mathrm{nll}_i - \mathrm{nll}_i^{\mathrm{best}},

the one with the fewest identifiable parameters is taken: what cannot be told apart on the data at hand is decided by
simplicity. Choosing on the cases that also set the strengths makes the winner's validation NLL slightly optimistic;
what it is worth is measured on cases that had no part in either.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from segcal.calibrators import CALIBRATORS, make_calibrator
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import fit_to, read_data
from segcal.fitting.voxels import labelled_voxels

STEP_VALUES = 1 << 22


@dataclass(frozen=True)
class Candidate:
    """One calibrator of a comparison.

    Attributes:
        name: its name in the registry.
        fitted: the fit.
        validation_nll: mean over validation cases of the mean NLL of a case.
        difference: mean paired difference to the best.
        standard_error: of that difference; 0 for the best itself, and with a single case.
    """

    name: str
    fitted: Fitted
    validation_nll: float
    difference: float
    standard_error: float

    def to_dict(self) -> dict[str, Any]:
        """Return the row of this candidate as plain data."""
        return {
            "name": self.name,
            "validation_nll": self.validation_nll,
            "difference": self.difference,
            "standard_error": self.standard_error,
            "parameters": self.fitted.calibrator.num_identifiable(),
        }


@dataclass(frozen=True)
class Choice:
    """The chosen calibrator, and the comparison it won."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]


def candidates(
    num_classes: int, preserve: Literal["order", "argmax", "none"] = "argmax", allow_offset_dependent: bool = False
) -> list[str]:
    """Return the names of the voxel-by-voxel calibrators that keep at least `preserve`.

    >>> candidates(3)
    ['identity', 'ts', 'ets', 'cms_ap', 'cms_op']
    """
    enough = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
    if preserve not in enough:
        raise InputError(f"preserve is {preserve!r}, but it must be order, argmax or none. Choose one of the three.")
    names = []
    for name in CALIBRATORS:
        calibrator = make_calibrator(name, num_classes)
        sees_offset = not calibrator.translation_invariant
        if calibrator.pointwise and calibrator.preserves in enough[preserve]:
            names += [] if sees_offset and not allow_offset_dependent else [name]
    return names


def choose(
    names: Sequence[str],
    cases: Cases,
    validation: Cases,
    config: FitConfig | None = None,
    device: str | torch.device | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Choice:
    """Fit every candidate and return the simplest that is as good as the best; see the module docstring."""
    config = FitConfig() if config is None else config
    data = read_data(cases, validation, config, report)
    fits = {name: fit_to(name, data, config, device, report) for name in names}
    report("comparing on validation cases")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for case in validation:
        for name, fitted in fits.items():
            value = case_nll(fitted.calibrator, case)
            if value is not None:
                columns[name].append(value)
    means = {name: math.fsum(column) / len(column) for name, column in columns.items()}
    best = min(names, key=lambda name: means[name])
    rows = []
    for name in names:
        differences = torch.tensor([a - b for a, b in zip(columns[name], columns[best], strict=True)])
        error = float(differences.std()) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        rows.append(Candidate(name, fits[name], means[name], float(differences.mean()), error))
    close = [row for row in rows if row.difference <= row.standard_error]
    chosen = min(close, key=lambda row: (row.fitted.calibrator.num_identifiable(), row.validation_nll))
    return Choice(chosen, tuple(rows))


@torch.no_grad()
def case_nll(calibrator: Calibrator, case: Case) -> float | None:
    """Return the mean NLL of a case's labelled voxels; None if it has none."""
    voxels = labelled_voxels(case)
    count = voxels.labels.numel()
    if count == 0:
        return None
    total = 0.0
    step = max(256, STEP_VALUES // len(voxels.logits))
    for start in range(0, count, step):
        part = slice(start, start + step)
        log_probs: Tensor = calibrator(voxels.logits[:, part].T.contiguous())
        own = log_probs.gather(1, voxels.labels[part].long()[:, None])
        total -= float(own.double().sum())
    return total / count
