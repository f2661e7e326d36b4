r"""The contract of every calibrator.

A calibrator is a :class:`torch.nn.Module` that maps logits to log-probabilities of the same shape,
``(batch, classes, *space)``. A subclass writes :meth:`Calibrator.scores`: unnormalised log-probabilities,
in which decisions are compared; this class checks the input, normalises, and keeps the decision through the rounding
of it (:func:`segcal.calibrators.lead.with_winner`). Its promises are attributes, and one contract test proves them for
every member of the registry.

Parameters are kept in float64, the precision they are fitted in, and are cast to the type of the input when used:
half types are computed in float32, float32 in float32, float64 in float64.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from segcal.calibrators.lead import with_winner
from segcal.checks import check_forward, check_num_classes
from segcal.numerics import compute_dtype
from segcal.types import Logits, LogProbs, Preserves


class Evidence(NamedTuple):
    """A property of fitted parameters on which a promise rests.

    Attributes:
        property: what must hold, in words.
        violation: by how much it does not; 0 if it holds.
    """

    property: str
    violation: float


class Calibrator(nn.Module, ABC):
    """Maps logits to calibrated log-probabilities.

    Attributes:
        title: what it is called outside of code; "" for a class that has no such name.
        translation_invariant: adding a constant to all logits of a voxel does not change the result.
        preserves: "argmax" if the winning class of a voxel never changes, "order" if no two classes ever change
            places, None if nothing is promised. A change of scores means *strictly* another class above; of the
            result, another class by ``argmax``, which takes the first of equal ones.
        pointwise: a voxel's result depends on that voxel alone.
        fitted_by: which method of :mod:`segcal.fitting` fits it.
        has_penalty: whether its penalty has a term on weights (lam) and one on biases (mu).
        num_classes: C.
        options: the arguments, besides `num_classes`, that make it again; plain data, written to artefacts.
    """

    title: str = ""
    translation_invariant: bool
    preserves: Preserves
    pointwise: bool = True
    fitted_by: str
    has_penalty: tuple[bool, bool] = (False, False)

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__()
        self.num_classes = check_num_classes(num_classes)
        self.options: dict[str, Any] = options

    @property
    def sentence(self) -> str:
        """One plain sentence on what it does: the first line of its class."""
        return (type(self).__doc__ or "").strip().split("\n")[0]

    @abstractmethod
    def scores(self, logits: Logits, image: Tensor | None = None) -> Tensor:
        """Return unnormalised log-probabilities of float32 or float64 logits ``(batch, classes, *space)``."""

    @abstractmethod
    def num_identifiable(self) -> int:
        """Return how many directions of parameter space change the output (Table 2)."""

    def reach(self, axes: int) -> tuple[int, ...] | None:
        """Return how far a voxel sees along each of `axes` axes of space; None if it sees the whole image."""
        return (0,) * axes

    def evidence(self) -> dict[str, Evidence]:
        """Return the properties of the parameters that promises rest on, by promise ("offset" or "decision").

        A promise without an entry holds by construction, whatever the parameters. A calibrator that does not make
        the promise may still return an entry: the property that would give it.
        """
        return {}

    def become_temperature(self, temperature: float) -> None:
        """Set the parameters so that it is temperature scaling, from which a fit by gradient starts."""
        raise NotImplementedError(f"{type(self).__name__} is not fitted by gradient")

    def num_parameters(self) -> int:
        """Return how many scalars are fitted (Table 2)."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, logits: Logits, image: Tensor | None = None) -> LogProbs:
        """Return calibrated log-probabilities in the shape of `logits`; half types come back as float32."""
        check_forward(logits, self.num_classes)
        logits = logits.to(compute_dtype(logits.dtype))
        log_probs = torch.log_softmax(self.scores(logits, image), dim=1)
        return log_probs if self.preserves is None else with_winner(log_probs, logits)
