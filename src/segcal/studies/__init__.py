"""The studies beside the main table: facts, run, data, tables, figures; those that are one idea share a file.

A study takes a finished benchmark (:class:`segcal.studies.study.Setting`); what it can read from the results it does
not compute again. Those that read what the benchmark counted anyway, or each case a few times, are usual: they run
unless the protocol says otherwise. The others fit again, and run when they are named.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from segcal.benchmark.protocol import digest as make_digest
from segcal.checks import check_choice
from segcal.documents import parse_json
from segcal.errors import ArtifactError
from segcal.kernels.loops import one_thread
from segcal.studies import calibration_size, detection, failure_detection, flips, offsets, padding, regions, worst_cases
from segcal.studies.binning import BINNING, RELIABILITY
from segcal.studies.factor import CROP_SIZE, ENSEMBLE_SIZE, MODEL_SIZE, TEST_SCALES
from segcal.studies.shift import COVARIATE_SHIFT, DOMAIN_SHIFT
from segcal.studies.study import FOLDER, NothingToStudyError, Setting, Study

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
    "regions": regions.STUDY,
    "detection": detection.STUDY,
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


def run_studies(setting: Setting, names: Sequence[str] | None = None) -> tuple[dict[str, Struct], dict[str, str]]:
    """Run studies, those of the protocol if `names` is None, and write them into the folder of the results.

    A study that is there is read back. Returned are the data by name, and the reason for each study that this
    benchmark has nothing for.
    """
    found: dict[str, Struct] = {}
    left_out = {}
    folder = setting.results.folder
    for name in choose_studies(setting.protocol.studies if names is None else names):
        setting.progress(name)
        study, digest = STUDIES[name], _study_digest(setting, name)
        data = study.read(folder, name, digest)
        try:
            if data is None:
                with one_thread():  # as the benchmark itself: the same bytes on every machine
                    data = study.run(setting)
                study.write(folder, name, data, digest)
            found[name] = data
        except NothingToStudyError as reason:
            left_out[name] = str(reason)
    return found, left_out


def _study_digest(setting: Setting, name: str) -> str:
    """Return the digest of what decides a study: the units it reads, the bootstrap, and how much of it is done.

    Units are known by what is in them: one that was computed anew may have other numbers and the same digest.
    """
    paths = sorted(each.unit.path for each in setting.results.units)
    units = [(str(path), sha256((setting.results.folder / path).read_bytes()).hexdigest()) for path in paths]
    decides = {"options": setting.protocol.study_options, "bootstrap": setting.summary.bootstrap}
    return make_digest({"study": name, "units": units, "segcal": version("segcal")} | to_builtins(decides))


def read_outcomes(folder: str | Path) -> dict[str, Struct]:
    """Return the data of the studies of a folder of results, by name; what cannot be read is refused."""
    found: dict[str, Struct] = {}
    for path in sorted((Path(folder) / FOLDER).glob("*.json")):
        try:
            document = parse_json(path.read_text("utf-8"))
            if document["study"] in STUDIES:
                found[document["study"]] = convert(document, STUDIES[document["study"]].data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} is not readable ({error}), but it must be as segcal wrote it. Delete it and run the "
                "benchmark again."
            ) from None
    return found
