r"""Selective scaling: smooth the voxels that are probably wrong, leave the others (Wang et al., CVPR 2023).

A selector flags voxels as probably mispredicted. With :math:`\beta = 1 / T`,

.. math:: q = S(\beta_w z) \ \text{where flagged}, \qquad q = S(\beta_r z) \ \text{elsewhere} \quad\text{(Eq. 4)}.

`inverse_temperature_wrong` is :math:`\beta_w` (T up to 1e10), `inverse_temperature_right` is :math:`\beta_r`, 1 unless
the model is underconfident. Another calibrator g can stand inside ("selective scaling with existing calibrators"):

- ``place="unflagged"``: :math:`q = g(z)` where not flagged;
- ``place="before"``: :math:`q = S(\beta_w \log g(z))` where flagged, :math:`g(z)` elsewhere, and the selector sees
  :math:`\log g(z)`.

The selector sees log-probabilities, and one positive factor a voxel keeps every order: translation-invariant and
order-preserving, as far as g is. A temperature of 1e10 leaves the classes of a voxel equal in floating point. The
winner keeps a visible lead (:mod:`segcal.calibrators.tie_break`): the decision can be read from a float32 result too.

The selector decides in jumps. So only the temperatures are identifiable in the sense of Table 2. They are 2 (or one and
those of g), of :math:`5 C^2 + 6 C + 2` selector weights and 2 temperatures.

**The selector** is a small network, voxel by voxel on :math:`x = \log(S(z) + 10^{-16})` in the order of the classes:

.. math:: C \to C \to 2C \to C \to 2, \qquad h_{l+1} = \mathrm{ReLU}(W_l h_l + b_l),

the last layer without ReLU; its two outputs stand for *wrong* and *right*. The published network has a batch
normalisation before each ReLU, which only training needs. :mod:`segcal.fitting.selector` folds it into the weights. So
nothing here depends on a mode or on other voxels of a batch. `weight_l` and `bias_l` hold the layers.

A new selector flags nothing: its first layer is the identity, all others are zero, and a tie is not *wrong*.
"""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, Evidence, Holder
from segcal.calibrators.tie_break import with_lead
from segcal.errors import InputError
from segcal.numerics import canonical_logits, winner
from segcal.types import Context, Logits

Rule = Literal["nll", "ece", "paper"]
RULES = ("nll", "ece", "paper")
PLACES = ("unflagged", "before")
# log of what the published code adds to a probability before it takes the logarithm.
LOG_FLOOR = math.log(1e-16)


def selector_input(logits: Tensor, axis: int = 1) -> Tensor:
    """Return log(S(z) + 1e-16), computed in the log domain."""
    log_probs = canonical_logits(logits, axis)
    return torch.logaddexp(log_probs, torch.full_like(log_probs, LOG_FLOOR))


class Selector(nn.Module):
    """Says which voxels are probably mispredicted."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.widths = (num_classes, num_classes, 2 * num_classes, num_classes, 2)  # before, between, after the layers
        for layer, (before, after) in enumerate(pairwise(self.widths)):
            weight = torch.zeros(after, before, dtype=torch.float64)
            if layer == 0:
                weight.fill_diagonal_(1.0)
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight))
            self.register_parameter(f"bias_{layer}", nn.Parameter(torch.zeros(after, dtype=torch.float64)))

    def forward(self, logits: Tensor) -> Tensor:
        """Return, as ``(batch, *space)``, by how much *wrong* is above *right*; flagged where it is positive."""
        shape = logits.shape
        values = selector_input(logits).reshape(shape[0], shape[1], math.prod(shape[2:]))
        last = len(self.widths) - 2
        for layer in range(last + 1):
            weight = getattr(self, f"weight_{layer}").to(logits.dtype)
            bias = getattr(self, f"bias_{layer}").to(logits.dtype)
            values = torch.matmul(weight, values) + bias[:, None]
            values = values if layer == last else torch.relu(values)
        return (values[:, 0] - values[:, 1]).reshape(shape[0], *shape[2:])

    @torch.no_grad()
    def set_layers(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        """Take over the weights and biases of trained layers."""
        for layer, (weight, bias) in enumerate(layers):
            getattr(self, f"weight_{layer}").copy_(weight)
            getattr(self, f"bias_{layer}").copy_(bias)

    def set_constant(self, flagged: bool) -> None:
        """Flag every voxel, or none."""
        layers = [(torch.zeros(after, before), torch.zeros(after)) for before, after in pairwise(self.widths)]
        layers[-1][1][0 if flagged else 1] = 1.0
        self.set_layers(layers)


class Selective(Holder):
    """Separate temperatures for voxels that a selector flags and for all others.

    Args:
        temperatures: how a fit sets them: "nll" or "ece", the values with the lowest validation NLL or ECE; "paper",
            T = 1e10 for flagged voxels if the selector finds more than half of the mispredictions, 2 otherwise.
        repeats: mispredicted voxels count 1 + `repeats` times when the selector is trained.
        inner: a voxel-by-voxel calibrator inside; `make_calibrator` also takes its name.
        place: where it stands: "unflagged" or "before".
    """

    name = "selective"
    title = "Selective scaling"
    fitted_by = "selector"
    rests_on = "the inverse temperatures are positive"
    inner: Calibrator | None

    def __init__(
        self,
        num_classes: int,
        temperatures: Rule = "nll",
        repeats: float = 1.0,
        inner: Calibrator | None = None,
        place: Literal["unflagged", "before"] = "unflagged",
    ) -> None:
        options = {"temperatures": temperatures, "repeats": repeats, "inner": inner, "place": place}
        _check(temperatures, repeats, inner, place, num_classes)
        super().__init__(num_classes, [] if inner is None else [inner], **options)
        self.temperatures, self.repeats, self.inner, self.place = temperatures, float(repeats), inner, place
        self.preserves = "order" if inner is None else inner.preserves
        self.positives = ("inverse_temperature_wrong", "inverse_temperature_right")[: 2 if inner is None else 1]
        self.selector = Selector(self.num_classes)
        self.inverse_temperature_wrong = nn.Parameter(torch.ones((), dtype=torch.float64))
        if inner is None:
            self.inverse_temperature_right = nn.Parameter(torch.ones((), dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return flagged voxels with their distances to the winner shrunk, and the others as they are or by g."""
        seen, others = self.parts(logits, context)
        flagged = self.selector(seen).unsqueeze(1) > 0
        gaps = seen - seen.amax(dim=1, keepdim=True)
        smoothed = with_lead(gaps * self.inverse_temperature_wrong.to(gaps.dtype), winner(gaps))
        if self.inner is None:
            others = gaps * self.inverse_temperature_right.to(gaps.dtype)
        return torch.where(flagged, smoothed, others)

    def parts(self, logits: Logits, context: Context | None = None) -> tuple[Tensor, Tensor]:
        """Return what the selector sees and flagged voxels are made of, and what the others are made of."""
        if self.inner is None:
            return logits, logits
        others = self.inner.scores(logits, context)
        return (others if self.place == "before" else logits), others

    def evidence(self) -> dict[str, Evidence]:
        """The order is kept because both factors are positive, and because the inner calibrator keeps it."""
        found, own = super().evidence(), Calibrator.evidence(self)["decision"]
        inside = found.get("decision", Evidence("", 0.0))
        text = f"{own.property} and {inside.property}" if inside.property else own.property
        return {**found, "decision": Evidence(text, max(own.violation, inside.violation))}

    def num_identifiable(self) -> int:
        """Return the temperatures, or the temperature of flagged voxels and what the inner calibrator has."""
        return 2 if self.inner is None else 1 + self.inner.num_identifiable()


def _check(temperatures: str, repeats: float, inner: Calibrator | None, place: str, num_classes: int) -> None:
    for name, value, choices in (("temperatures", temperatures, RULES), ("place", place, PLACES)):
        if value not in choices:
            raise InputError(f"{name} is {value!r}, but it must be one of {', '.join(choices)}. Choose one of these.")
    if isinstance(repeats, bool) or not isinstance(repeats, int | float) or not 0 <= repeats < float("inf"):
        raise InputError(f"repeats is {repeats!r}, but a number of at least 0 is needed. The paper's default is 1.")
    if inner is None:
        return
    if not isinstance(inner, Calibrator):
        raise InputError(
            f"inner is {type(inner).__name__}, but a calibrator is needed. Use make_calibrator, which takes its name."
        )
    if not inner.pointwise or inner.num_classes != num_classes:
        raise InputError(
            f"inner is {inner.name} for {inner.num_classes} classes, but a calibrator that works voxel by "
            f"voxel on {num_classes} classes is needed. Choose another one."
        )
