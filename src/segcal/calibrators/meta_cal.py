r"""Meta-Cal: a temperature where the entropy is low, nothing where it is high (Ma and Blaschko, ICML 2021).

With the entropy :math:`h = -\sum_c S(z)_c \log S(z)_c` in nats and a threshold :math:`\gamma`,

.. math:: q = S(\beta z) \ \text{where}\ h < \gamma, \qquad q = 1 / C \ \text{elsewhere} \quad\text{(Eq. 8)}.

`threshold` is :math:`\gamma`, `inverse_temperature` is :math:`\beta`. A uniform distribution names no class: the
decision of every voxel above the threshold is lost. This is `meta_cal`, which keeps nothing. By the tie rule of the
package such a voxel falls to class 0. Its lead there is made visible. So flips, Dice and the audit see the loss, and
take no tie for a kept decision. `meta_cal_large_t` (Meta-Cal* of the selective-scaling paper) has :math:`S(\beta_u z)`
above the threshold, with `inverse_temperature_unsure` :math:`\beta_u` = 1e-4 unless it is chosen on validation data. It
keeps every order, and the winner a visible lead.

A new one has a threshold above any entropy: the identity. The threshold decides in jumps and is not identifiable in
the sense of Table 2: 2 parameters, 1 identifiable. With a large temperature they are 3 and 2.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator
from segcal.calibrators.tie_break import with_lead
from segcal.checks import check_count
from segcal.errors import InputError
from segcal.numerics import canonical_logits, winner
from segcal.types import Context, Logits

# Nats, above any entropy: that of C classes is at most log C. Finite, so that an artefact can hold it.
NEVER = 1e3
LARGE_TEMPERATURE = 1e4


def entropy(logits: Tensor, axis: int = 1) -> Tensor:
    """Return the entropy of the softmax in nats, keeping the class axis.

    >>> entropy(torch.zeros(1, 4)).exp().round()
    tensor([[4.]])
    """
    log_probs = canonical_logits(logits, axis)
    return -(log_probs.exp() * log_probs).sum(dim=axis, keepdim=True)


class MetaCal(Calibrator):
    """Temperature scaling below an entropy threshold; above it, uniform or a large temperature.

    Args:
        above: "uniform", or "large_t" to keep the decision.
        alpha: share of the right voxels that a fit lets rise above the threshold.
        target_accuracy: if given, a fit sets the threshold so that voxels below it have this accuracy, instead.
        n1_max: at most so many voxels set the threshold, and no more than a tenth; the original code has 500.
        large_temperature: of "large_t"; None to choose it on validation NLL.
    """

    translation_invariant = True
    fitted_by = "entropy_threshold"
    redundant = 1  # the threshold

    def __init__(
        self,
        num_classes: int,
        above: Literal["uniform", "large_t"],
        alpha: float = 0.05,
        target_accuracy: float | None = None,
        n1_max: int = 100_000,
        large_temperature: float | None = LARGE_TEMPERATURE,
    ) -> None:
        super().__init__(
            num_classes,
            above=above,
            alpha=alpha,
            target_accuracy=target_accuracy,
            n1_max=n1_max,
            large_temperature=large_temperature,
        )
        self.name = "meta_cal" if above == "uniform" else "meta_cal_large_t"
        self.title = "Meta-Cal" if above == "uniform" else "Meta-Cal with a large temperature"
        _check(alpha, target_accuracy, n1_max, large_temperature)
        self.above, self.alpha, self.target_accuracy = above, alpha, target_accuracy
        self.n1_max, self.large_temperature = n1_max, large_temperature
        self.preserves = "order" if above == "large_t" else None
        self.threshold = nn.Parameter(torch.tensor(NEVER, dtype=torch.float64))
        self.inverse_temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
        if above == "large_t":
            above_t = 1 / (large_temperature or LARGE_TEMPERATURE)
            self.inverse_temperature_unsure = nn.Parameter(torch.tensor(above_t, dtype=torch.float64))
            self.positives = ("inverse_temperature", "inverse_temperature_unsure")
            self.rests_on = "both inverse temperatures are positive"

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return tempered distances to the winner; above the threshold almost equal scores."""
        gaps = logits - logits.amax(dim=1, keepdim=True)
        below = entropy(gaps) < self.threshold.to(gaps.dtype)
        return torch.where(below, gaps * self.inverse_temperature.to(gaps.dtype), self._above(gaps))

    def _above(self, gaps: Tensor) -> Tensor:
        if self.above == "uniform":
            equal = torch.zeros_like(gaps)
            return with_lead(equal, torch.zeros_like(gaps[:, 0], dtype=torch.int64))
        return with_lead(gaps * self.inverse_temperature_unsure.to(gaps.dtype), winner(gaps))


def _check(alpha: float, target: float | None, n1_max: int, large_temperature: float | None) -> None:
    for name, value in (("alpha", alpha), ("target_accuracy", target)):
        if value is not None and not 0 < value < 1:
            raise InputError(f"{name} is {value!r}, but a share between 0 and 1 is needed. Try 0.05 or 0.95.")
    check_count(n1_max, "n1_max", 1, "The original code has 500.")
    if large_temperature is not None and not 1 <= large_temperature <= 1e10:
        raise InputError(
            f"large_temperature is {large_temperature!r}, but a number from 1 to 1e10 is needed. "
            "Use None to have it chosen."
        )
