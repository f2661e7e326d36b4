"""The studies beside the main table, one a file; each returns data for figures and tables for readers.

A study takes a finished benchmark (:class:`~segcal.benchmark.studies.setting.Setting`). What it can read from the
results it does not compute again.
"""

from collections.abc import Callable, Sequence

from segcal.benchmark.job import one_thread
from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.binning import run_binning
from segcal.benchmark.studies.calibration_size import run_calibration_size
from segcal.benchmark.studies.covariate_shift import run_covariate_shift
from segcal.benchmark.studies.domain_shift import run_domain_shift
from segcal.benchmark.studies.flips import run_flips
from segcal.benchmark.studies.offsets import run_offsets
from segcal.benchmark.studies.padding import run_padding
from segcal.benchmark.studies.reliability import run_reliability
from segcal.benchmark.studies.setting import NothingToStudyError, Options, Setting
from segcal.errors import InputError

__all__ = ["STUDIES", "Options", "Setting", "Study", "run_studies"]

STUDIES: dict[str, Callable[[Setting], Study]] = {
    "offsets": run_offsets,
    "flips": run_flips,
    "calibration_size": run_calibration_size,
    "binning": run_binning,
    "domain_shift": run_domain_shift,
    "covariate_shift": run_covariate_shift,
    "reliability": run_reliability,
    "padding": run_padding,
}


def run_studies(setting: Setting, names: Sequence[str] | None = None) -> tuple[dict[str, Study], dict[str, str]]:
    """Run studies and write what they found into the folder of the results.

    Args:
        setting: a finished benchmark.
        names: names from :data:`STUDIES`; all of them if None.

    Returns:
        the studies by name, and the reason for each that this benchmark has nothing for.
    """
    wanted = list(STUDIES) if names is None else list(names)
    for name in wanted:
        if name not in STUDIES:
            raise InputError(f"no study is named {name!r}. Choose one of: {', '.join(STUDIES)}.")
    found, left_out = {}, {}
    for name in wanted:
        setting.progress(name)
        try:
            with one_thread():  # as the benchmark itself: the same bytes on every machine
                found[name] = STUDIES[name](setting)
        except NothingToStudyError as reason:
            left_out[name] = str(reason)
        else:
            found[name].write(setting.results.folder)
    return found, left_out
