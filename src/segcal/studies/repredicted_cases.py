"""Cases whose logits a model makes anew from their images, in a way that is studied."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from segcal.cases.base import Case, Cases
from segcal.errors import InputError

# From an image (channels, *space) to logits (classes, *space).
Model: TypeAlias = Callable[[Tensor], Tensor]


class RepredictedCases(Cases):
    """Cases with images, predicted again when they are read.

    Args:
        cases: cases with images.
        model: makes the logits from the image of a case.
    """

    def __init__(self, cases: Cases, model: Model) -> None:
        super().__init__(cases.ids, cases.num_classes, "logits", cases.pooling, cases.class_names, groups=cases.groups)
        self._cases, self._model = cases, model

    def read(self, case_id: str) -> Case:
        """Read one case and predict it."""
        case = self._cases.read(case_id)
        if case.image is None:
            raise InputError(f"case {case_id!r} has no image, but a model needs one. Open the cases with images.")
        logits = self._model(case.image)
        if logits.shape != case.logits.shape:
            raise InputError(
                f"the model returns shape {tuple(logits.shape)} for case {case_id!r}, but its logits have "
                f"{tuple(case.logits.shape)}. Return (classes, *space) at the resolution of the image."
            )
        return replace(case, logits=logits)
