"""Cases whose logits outside the field of view are what an exporter of probabilities fills in."""

from dataclasses import replace

import torch

from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.types import IGNORED


class PaddedCases(Cases):
    """Cases whose logits outside their mask are (1, 0, ..., 0).

    Args:
        cases: cases with masks.
        masked: True to keep the mask; False to forget it, so that the padding counts as background, rightly predicted.
    """

    def __init__(self, cases: Cases, masked: bool) -> None:
        super().__init__(
            cases.ids, cases.num_classes, cases.kind, cases.pooling, cases.class_names, groups=cases.groups
        )
        self._cases = cases
        self._masked = masked

    def read(self, case_id: str) -> Case:
        """Read one case and pad it."""
        case = self._cases.read(case_id)
        if case.mask is None or case.labels is None:
            raise InputError(
                f"case {case_id!r} has no {'mask' if case.mask is None else 'labels'}, but the padding study needs "
                "both. Take cases with a cropped field of view."
            )
        vector = torch.zeros(self.num_classes, dtype=case.logits.dtype)
        vector[0] = 1
        logits = torch.where(case.mask, case.logits, vector.reshape(-1, *[1] * case.mask.ndim))
        if self._masked:
            return replace(case, logits=logits, labels=case.labels.where(case.mask, IGNORED))
        return replace(case, logits=logits, labels=case.labels.where(case.mask, 0), mask=None)
