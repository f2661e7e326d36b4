r"""A local temperature after class-conditional scaling (LTS of CMS_ap): adaptive in class and in space.

.. math:: q_v = S(h_v / T_v), \qquad h = \mathrm{CMS_{ap}}(z), \qquad T = T(\log S(h)) \ \text{as in lts_ti} .

The first part knows how confidence errs for each predicted class, the second how it errs around each voxel. Both are
translation-invariant; the first keeps the winner, the second every order: together they keep the winner. Fitted in two
stages: the first to its certified optimum, then the temperatures of the second to what the first returns.
C (C^2 + 1) + 7 (25 C + 1) parameters.
"""

from typing import Literal

from torch import Tensor

from segcal.calibrators.base import Evidence
from segcal.calibrators.conditional_affine import ConditionalAffine
from segcal.calibrators.local_temperature import LocalTemperatureScaling
from segcal.calibrators.look_around import LookAround
from segcal.types import Logits


class LocalConditional(LookAround):
    """Class-conditional scaling, then one temperature for every voxel.

    Args:
        num_classes: number of classes C.
        full_3d: see neighbours in all three axes of a volume.
        gate_init: "random", or "zeros" for the published start, from which the tree cannot grow.
        seed: of the random gates.
    """

    translation_invariant = True
    preserves = "argmax"

    def __init__(
        self,
        num_classes: int,
        full_3d: bool = False,
        gate_init: Literal["random", "zeros"] = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, full_3d=full_3d, gate_init=gate_init, seed=seed)
        self.first = ConditionalAffine(num_classes, preserves="argmax")
        self.second = LocalTemperatureScaling(
            num_classes, canonical=True, full_3d=full_3d, gate_init=gate_init, seed=seed
        )

    def margin(self, axes: int) -> tuple[int, ...]:
        """Return that of the temperatures."""
        return self.second.margin(axes)

    def reach(self, axes: int) -> tuple[int, ...]:
        """Return that of the temperatures."""
        return self.second.reach(axes)

    def inner_scores(self, logits: Logits, image: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the scores of the first part, divided by the temperatures of the second."""
        return self.second.inner_scores(self.first.scores(logits), image, weight)

    def evidence(self) -> dict[str, Evidence]:
        """The winner is kept because the first part keeps it."""
        return self.first.evidence()

    def num_identifiable(self) -> int:
        """Return the sum of both: a common scale of all experts is not one temperature of the second."""
        return self.first.num_identifiable() + self.second.num_identifiable()
