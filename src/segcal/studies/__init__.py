"""The studies beside the main table, one per file: facts, run, table, figure.

A study takes a finished benchmark (:class:`segcal.studies.setting.Setting`); what it can read from the results it does
not compute again. Those that read what the benchmark counted anyway, or each case a few times, are usual: they run
unless the protocol says otherwise. The others fit again, and run when they are named.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec import Struct, convert, to_builtins

from segcal.benchmark.protocol import digest as make_digest
from segcal.checks import check_choice
from segcal.documents import parse_json
from segcal.errors import ArtifactError
from segcal.kernels.loops import one_thread
from segcal.studies import (
    binning,
    calibration_size,
    covariate_shift,
    crop_size,
    detection,
    domain_shift,
    ensemble_size,
    failure_detection,
    flips,
    model_size,
    offsets,
    padding,
    regions,
    reliability,
    scales,
    worst_cases,
)
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import FOLDER, Outcome, Study

STUDIES: dict[str, Study] = {
    "offsets": offsets.STUDY,
    "flips": flips.STUDY,
    "calibration_size": calibration_size.STUDY,
    "binning": binning.STUDY,
    "domain_shift": domain_shift.STUDY,
    "covariate_shift": covariate_shift.STUDY,
    "reliability": reliability.STUDY,
    "padding": padding.STUDY,
    "worst_cases": worst_cases.STUDY,
    "regions": regions.STUDY,
    "detection": detection.STUDY,
    "failure_detection": failure_detection.STUDY,
    "ensemble_size": ensemble_size.STUDY,
    "crop_size": crop_size.STUDY,
    "test_scales": scales.STUDY,
    "model_size": model_size.STUDY,
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


def run_studies(setting: Setting, names: Sequence[str] | None = None) -> tuple[dict[str, Outcome[Any]], dict[str, str]]:
    """Run studies, those of the protocol if `names` is None, and write them into the folder of the results.

    A study that is there is read back. Returned are the outcomes by name, and the reason for each study that this
    benchmark has nothing for.
    """
    found, left_out = {}, {}
    for name in choose_studies(setting.protocol.studies if names is None else names):
        setting.progress(name)
        digest = _study_digest(setting, name)
        known = STUDIES[name].read(setting.results.folder, name, digest)
        if known is not None:
            found[name] = known
            continue
        try:
            with one_thread():  # as the benchmark itself: the same bytes on every machine
                found[name] = STUDIES[name].run(setting)
        except NothingToStudyError as reason:
            left_out[name] = str(reason)
        else:
            found[name].write(setting.results.folder, name, digest)
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
