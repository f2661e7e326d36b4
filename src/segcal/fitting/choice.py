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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators import CALIBRATORS, fits_in_memory, make_calibrator
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.cases.parallel import map_cases
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import FitData, fit_to
from segcal.fitting.voxels import labelled_voxels

# Methods that go to the lowest NLL of all voxels, in seconds.
LIKELIHOOD = ("nothing", "convex", "mixture")
# Values of one step: they stay in the cache of a core.
STEP_VALUES = 1 << 18


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
            "parameters": self.parameters,
        }

    @property
    def parameters(self) -> int:
        """How many identifiable parameters it has."""
        return self.fitted.calibrator.num_identifiable()


@dataclass(frozen=True)
class Choice:
    """The chosen calibrator, and the comparison it won."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]

    @property
    def fitted(self) -> Fitted:
        """The chosen fit; its certificate tells of the comparison."""
        fitted = self.chosen.fitted
        comparison = {"comparison": [row.to_dict() for row in self.candidates], "chosen": self.chosen.name}
        certificate = replace(fitted.certificate, details=fitted.certificate.details | comparison)
        return replace(fitted, certificate=certificate)


def candidates(
    num_classes: int, preserve: Literal["order", "argmax", "none"] = "argmax", allow_offset_dependent: bool = False
) -> list[str]:
    """Return the names of the calibrators that are fitted to their likelihood and keep at least `preserve`.

    Those that decide by a selector, a threshold or a table, or see neighbours, are for those who name them.

    >>> candidates(3)
    ['identity', 'ts', 'ets', 'cms_ap', 'cms_op']
    """
    enough = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
    if preserve not in enough:
        raise InputError(f"preserve is {preserve!r}, but it must be order, argmax or none. Choose one of the three.")
    names = []
    for name in CALIBRATORS:
        if not fits_in_memory(name, num_classes):
            continue
        calibrator = make_calibrator(name, 2)  # promises do not depend on the number of classes
        sees_offset = not calibrator.translation_invariant
        if calibrator.fitted_by in LIKELIHOOD and calibrator.preserves in enough[preserve]:
            names += [] if sees_offset and not allow_offset_dependent else [name]
    return names


def choose(
    names: Sequence[str],
    data: FitData,
    config: FitConfig,
    device: str | torch.device | None = None,
    report: Callable[[str], None] = lambda message: None,
    workers: int = 1,
) -> Choice:
    """Fit every candidate and return the simplest that is as good as the best; see the module docstring.

    Args:
        names: of :data:`segcal.CALIBRATORS`, such as :func:`candidates` returns.
        data: the voxels of the fit, with validation cases; of :func:`segcal.fitting.fit.read_data`.
        config: how to fit.
        device: where to compute; the CPU if not given.
        report: takes messages of progress.
        workers: how many processes measure validation cases at a time; the result is the same to the last bit.
    """
    if data.validation_cases is None:
        raise InputError(
            f"there are no validation cases, but a choice among {len(names)} calibrators needs them. "
            "Divide the cases, or name one calibrator."
        )
    fits = {name: fit_to(name, data, config, device, report) for name in names}
    measure = partial(_measure, [fitted.calibrator for fitted in fits.values()])
    rows: list[list[float]] = []
    for number, (_, row) in enumerate(map_cases(data.validation_cases, measure, workers)):
        report(f"compared on {number + 1} of {len(data.validation_cases)} validation cases")
        rows += [] if row is None else [row]
    table = np.array(rows)
    chosen, differences, errors = choose_column(
        table, [fitted.calibrator.num_identifiable() for fitted in fits.values()]
    )
    listed = tuple(
        Candidate(name, fits[name], float(mean), float(difference), float(error))
        for name, mean, difference, error in zip(names, table.mean(axis=0), differences, errors, strict=True)
    )
    return Choice(listed[chosen], listed)


def choose_column(values: np.ndarray, parameters: Sequence[int]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the simplest candidate that is as good as the best; see the module docstring.

    Args:
        values: one row a case, one column a candidate.
        parameters: identifiable parameters of each candidate.

    Returns:
        its column, each candidate's mean difference to the best, and the standard errors of these.

    >>> choose_column(np.array([[2.0, 1.0, 1.1], [2.0, 1.0, 0.95]]), [0, 9, 1])[0]
    2
    """
    means = values.mean(axis=0)
    gaps = values - values[:, [int(means.argmin())]]
    errors = gaps.std(axis=0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.zeros(len(means))
    differences = gaps.mean(axis=0)
    close = [k for k in range(len(means)) if differences[k] <= errors[k]]
    return min(close, key=lambda k: (parameters[k], means[k])), differences, errors


def _measure(calibrators: Sequence[Calibrator], case: Case) -> list[float] | None:
    """Return the NLL of a case by every calibrator; None if no voxel counts."""
    values = [case_nll(calibrator, case) for calibrator in calibrators]
    return [value for value in values if value is not None] or None


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
        scores: Tensor = calibrator.scores(voxels.logits[None, :, part])
        own = scores.gather(1, voxels.labels[None, None, part].long())
        total += float((torch.logsumexp(scores, 1, keepdim=True) - own).double().sum())
    return total / count
