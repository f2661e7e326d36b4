"""The studies beside the main table, one a file; each returns data for figures and tables for readers.

A study takes a finished benchmark (:class:`~segcal.studies.setting.Setting`). What it can read from the
results it does not compute again.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version

from segcal.benchmark.protocol import digest as make_digest
from segcal.studies.base import Study, read_study
from segcal.studies.binning import run_binning
from segcal.studies.calibration_size import run_calibration_size
from segcal.studies.covariate_shift import run_covariate_shift
from segcal.studies.detection import run_detection
from segcal.studies.domain_shift import run_domain_shift
from segcal.studies.factors import run_crop_size, run_ensemble_size, run_model_size, run_test_scales
from segcal.studies.flips import run_flips
from segcal.studies.offsets import run_offsets
from segcal.studies.padding import run_padding
from segcal.studies.regions import run_regions
from segcal.studies.reliability import run_reliability
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.worst_cases import run_worst_cases
from segcal.benchmark.study_choice import Options, check_studies
from segcal.kernels.threads import one_thread

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
    "worst_cases": run_worst_cases,
    "regions": run_regions,
    "detection": run_detection,
    "ensemble_size": run_ensemble_size,
    "crop_size": run_crop_size,
    "test_scales": run_test_scales,
    "model_size": run_model_size,
}


def run_studies(setting: Setting, names: Sequence[str] | None = None) -> tuple[dict[str, Study], dict[str, str]]:
    """Run studies and write what they found into the folder of the results; what is there is read back.

    Args:
        setting: a finished benchmark.
        names: names from :data:`STUDIES`; those of the protocol if None.

    Returns:
        the studies by name, and the reason for each that this benchmark has nothing for.
    """
    wanted = setting.protocol.studies if names is None else tuple(names)
    check_studies(wanted)
    found, left_out = {}, {}
    for name in wanted:
        setting.progress(name)
        digest = study_digest(setting, name)
        known = read_study(setting.results.folder, name, digest)
        if known is not None:
            found[name] = known
            continue
        try:
            with one_thread():  # as the benchmark itself: the same bytes on every machine
                found[name] = STUDIES[name](setting)
        except NothingToStudyError as reason:
            left_out[name] = str(reason)
        else:
            found[name].write(setting.results.folder, digest)
    return found, left_out


def study_digest(setting: Setting, name: str) -> str:
    """Return the digest of what decides a study: the units it reads, the bootstrap, and how much of it is done.

    Units are known by what is in them: one that was computed anew may have other numbers and the same digest.
    """
    paths = sorted(each.unit.path for each in setting.results.units)
    units = [(str(path), sha256((setting.results.folder / path).read_bytes()).hexdigest()) for path in paths]
    options = asdict(setting.options)
    bootstrap = setting.summary["bootstrap"]
    plain = {"study": name, "units": units, "options": options, "bootstrap": bootstrap, "segcal": version("segcal")}
    return make_digest(plain)
