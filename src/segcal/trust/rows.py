"""The rows of what :func:`segcal.trust` says: of structures, cases, biomarkers and thresholds."""

from typing import TypedDict


class TrustRow(TypedDict):
    """One structure of one case; None is not defined.

    `expected_dice` is without the error that it usually has in the reference where it is `corrected`, else as it is
    computed, like `uncorrected_dice`. `reason` also has what should be known of a mask that passes.
    """

    case: str
    structure: str
    expected_dice: float
    dice_low: float | None
    dice_high: float | None
    dice_below_tau: float | None
    tau: float
    expected_iou: float
    expected_precision: float | None
    expected_recall: float | None
    volume: float
    volume_low: float | None
    volume_high: float | None
    mask_volume: float
    unit: str
    agreement: float | None
    atypical_p: float
    review: bool
    reason: str
    corrected: bool
    uncorrected_dice: float


class CaseVerdict(TypedDict):
    """One case: a verdict on all of its structures (:mod:`segcal.trust.worklist`).

    `dice_below_tau` is the largest of its structures, None where one is not defined; `expected_dice` is the lowest.
    """

    case: str
    score: float
    review: bool
    reason: str
    structures: int
    to_review: int
    dice_below_tau: float | None
    expected_dice: float


class BiomarkerRow(TypedDict):
    """One biomarker of one subject."""

    subject: str
    biomarker: str
    value: float | None
    low: float | None
    high: float | None
    mask_value: float | None
    reason: str


class BoundRow(TypedDict):
    """The thresholds of one structure: None where the labelled cases support none."""

    structure: str
    outer_threshold: float | None
    inner_threshold: float | None
    reviewed_at_most: float | None
    reference_draws: int
