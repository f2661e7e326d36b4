r"""Which cases still have the offset of their logits.

A softmax throws the offset :math:`F(z) = \log\sum_c e^{z_c}` away: from probabilities, :math:`\log p = z - F(z)` is all
that can be had. A calibrator that depends on the offset (vs, ms, lts) would be fitted to numbers that are not the
network's, and would give other results when it meets real logits. It is refused, with the reason.
"""

from segcal.cases.base import Cases
from segcal.errors import InputError


def require_offset(cases: Cases, calibrator: str, translation_invariant: bool) -> None:
    """Refuse a calibrator that needs the offset of the logits for cases that have lost it.

    Args:
        cases: what it would be fitted on or applied to.
        calibrator: its name, for the message.
        translation_invariant: the calibrator's own promise.
    """
    if translation_invariant or cases.has_offset:
        return
    reason = f"kind is {cases.kind!r}"
    if cases.pooling == "mean_probs":
        reason = "pooling is 'mean_probs'"
    raise InputError(
        f"calibrator {calibrator!r} depends on the offset of the logits, but {reason}, so the offset is gone. "
        "Choose a translation-invariant calibrator, or export the logits before the softmax."
    )
