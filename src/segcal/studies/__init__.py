"""The studies beside the main table: facts, run, data, tables, figures; those that are one idea share a file.

A study takes a finished benchmark (:class:`segcal.studies.study.Setting`); what it can read from the results it does
not compute again. Those that read what the benchmark counted anyway, or each case a few times, are usual: they run
unless the protocol says otherwise. The others fit again, and run when they are named.
"""

from collections.abc import Sequence

from segcal.checks import check_choice
from segcal.studies import calibration_size, failure_detection, flips, offsets, padding, worst_cases
from segcal.studies.binning import BINNING, RELIABILITY
from segcal.studies.factor import CROP_SIZE, ENSEMBLE_SIZE, MODEL_SIZE, TEST_SCALES
from segcal.studies.selective import DETECTION, REGIONS
from segcal.studies.shift import COVARIATE_SHIFT, DOMAIN_SHIFT
from segcal.studies.study import Study

STUDIES: dict[str, Study] = {
    "offsets": offsets.STUDY,
    "flips": flips.STUDY,
    "calibration_size": calibration_size.STUDY,
    "binning": BINNING,
    "domain_shift": DOMAIN_SHIFT,
    "covariate_shift": COVARIATE_SHIFT,
    "reliability": RELIABILITY,
    "padding": padding.STUDY,
    "worst_cases": worst_cases.STUDY,
    "regions": REGIONS,
    "detection": DETECTION,
    "failure_detection": failure_detection.STUDY,
    "ensemble_size": ENSEMBLE_SIZE,
    "crop_size": CROP_SIZE,
    "test_scales": TEST_SCALES,
    "model_size": MODEL_SIZE,
}
USUAL = tuple(name for name, study in STUDIES.items() if study.usual)
ALL = "all"


def choose_studies(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the studies that a protocol asks for: names, "all" alone, or None for the usual ones.

    >>> choose_studies(["binning", "flips", "binning"])
    ('binning', 'flips')
    """
    if names is None:
        return USUAL
    if tuple(names) == (ALL,):
        return tuple(STUDIES)
    for name in names:
        check_choice(name, "study", STUDIES)
    return tuple(dict.fromkeys(names))
