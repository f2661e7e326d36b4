"""Putting a fitted calibrator to work on a folder of predictions.

Before anything is written: does the calibrator fit the input (class count, pooling, offset)? For every case: are the
decisions kept that it promises to keep? What is written is read back and compared where that is asked for.

The same call continues an interrupted run. A complete case that was made from the present inputs stays as it is.
``calibration.json`` in the output says what made it, so that two calibrators never share a folder.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.decision import decision_of
from segcal.cases.files import FileCases
from segcal.cases.parallel import Engine, Workers, behind, map_cases, map_ids, on_case
from segcal.cases.records import APPLIED as FORMAT
from segcal.cases.records import MARKER, Records, read_marker
from segcal.cases.suspicion import suspect_kind, warn
from segcal.cases.write import CaseWriter, ScenePart, write_scene
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.evaluation.slabs import as_seen, calibrated_scores, is_scene, part_of, scene_parts, windows
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import calibrator_digest
from segcal.target import claim, entries

VERSION = 2


@dataclass(frozen=True)
class AppliedCase:
    """The outcome for one case: its voxels, how many changed their class (strictly), and the files written."""

    voxels: int
    flips: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Applied:
    """The outcome for a collection.

    Attributes:
        written: by case id, in this run.
        already_there: how many cases were complete before.
        stale: the cases that have results in the folder but no predictions any more.
    """

    written: dict[str, AppliedCase]
    already_there: int
    stale: list[str]

    def __str__(self) -> str:
        counts = f"{len(self.written):,} written, {self.already_there:,} there already, {len(self.stale):,} stale"
        return f"cases: {counts}; {self.flips:,} of {self.voxels:,} voxels changed their class"

    @property
    def voxels(self) -> int:
        """The number of voxels calibrated in this run."""
        return sum(one.voxels for one in self.written.values())

    @property
    def flips(self) -> int:
        """The number of them that changed their class."""
        return sum(one.flips for one in self.written.values())


@typed
def apply(
    fitted: Fitted,
    cases: Cases,
    folder: str | Path,
    output_kind: str | None = None,
    confidence_map: bool = False,
    overwrite: bool = False,
    ignore_pooling: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    progress: Callable[[str], None] | None = None,
    failed: Callable[[CaseError], None] | None = None,
    *,
    verify: bool = False,
) -> Applied:
    """Calibrate every case into a folder, in the format that came in; run again, go on with what is missing.

    Args:
        fitted: the calibrator.
        cases: the predictions, of :func:`segcal.open_cases`.
        folder: where to write; one process at a time has it.
        output_kind: what to write, "logits" or "probs", of regions "sigmoid"; None is what came in.
        confidence_map: also write one map per case.
        overwrite: clear a folder that another calibrator made, and remove results that have no input any more.
        ignore_pooling: go on although the calibrator was fitted for another pooling.
        device: where to calibrate; the CPU if not given.
        workers: how many processes calibrate cases, or an engine of :mod:`segcal.scale`.
        progress: called with the id of each case when it is done, or found complete.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        verify: read every file back and compare it before it is put in place.
    """
    if not isinstance(cases, FileCases):
        raise InputError(
            f"cases is {type(cases).__name__}, but what is written has the format of files that were read. Open a "
            "folder with segcal.open_cases, or call fitted.calibrator on arrays."
        )
    check_match(fitted, cases, ignore_pooling)
    fitted.calibrator.to(check_device(device))
    written: dict[str, AppliedCase] = {}
    with claim(Path(folder)):
        applier = Applier(fitted, cases, folder, output_kind, confidence_map, overwrite, verify)
        # A shard must give a result for all of its cases; it knows itself which of them are done.
        missing = cases if isinstance(workers, Engine) and workers.folder == Path(folder) else applier.missing()
        missing, stale = as_seen(missing, fitted.calibrator), applier.stale()
        warn(suspect_kind(_looked_at(missing)))
        tell = progress or (lambda case_id: None)
        for case_id in sorted({*cases.ids} - {*missing.ids}):
            tell(case_id)
        for case_id, done in _applied(applier, missing, workers, failed):
            written[case_id] = done
            tell(case_id)
    return Applied(written, len(cases) - len(missing), stale)


def _applied(
    applier: "Applier", cases: FileCases, workers: Workers, failed: Callable[[CaseError], None] | None
) -> Iterator[tuple[str, AppliedCase]]:
    """Yield what was written of every case; in one process with threads, while the next one is calibrated."""
    if is_scene(cases):
        yield from map_ids(cases.ids, partial(applier.scene, cases), workers, failed, f"scene {cases.pooling}")
        return
    if workers != 1 or torch.get_num_threads() < 2:
        yield from map_cases(cases, applier, workers, failed)
        return
    for case_id, outcome in behind(map_cases(cases, applier.begin, workers, failed)):
        try:
            done = on_case(lambda _, outcome=outcome: outcome(), case_id)  # type: ignore[misc]
        except CaseError as error:
            if failed is None:
                raise
            failed(error)
        else:
            yield case_id, done


def _looked_at(cases: FileCases) -> FileCases:
    """Return the cases by which the kind is judged; of scenes a window of the first."""
    if not (cases.ids and is_scene(cases)):
        return cases
    return part_of(cases.subset(cases.ids[:1]), next(windows(cases, cases.ids[0])))


def calibrate(calibrator: Calibrator, case: Case, inner: tuple[slice, ...] = ()) -> tuple[Tensor, Tensor, int]:
    """Return calibrated log-probabilities and the winner before, and how many voxels changed their class.

    Of regions, log-odds, the masks before, and how many voxels changed in any region. Of a case that is a part of a
    scene, those `inner` of its margin.
    """
    cut = (slice(None), *inner)
    scores, logits = calibrated_scores(calibrator, case, device="cpu")[cut], case.logits[cut]
    counted = torch.tensor(True) if case.mask is None else case.mask[inner]
    decision = decision_of(calibrator.regions)
    before = decision.mask(logits)
    return decision.log_probs(scores), before, int((decision.changed(scores, before) & counted).sum())


class Applier:
    """Calibrates a case and writes it; picklable, for several processes. The arguments are those of :func:`apply`."""

    def __init__(
        self,
        fitted: Fitted,
        cases: FileCases,
        folder: str | Path,
        kind: str | None = None,
        confidence_map: bool = False,
        overwrite: bool = False,
        verify: bool = False,
    ) -> None:
        self._calibrator = fitted.calibrator
        self._cases = cases
        self._map = confidence_map
        record = record_of(fitted, cases, kind)
        text = json.dumps(record, indent=1) + "\n"
        check_folder(Path(folder), cases, record, overwrite)
        self._writer = CaseWriter(cases, folder, kind, text, MARKER, verify)

    def missing(self) -> FileCases:
        """Return the cases that are not in the folder yet, or not made from what is there now, or damaged."""
        return self._cases.subset(case_id for case_id in self._cases.ids if not self._writer.done(case_id, self._map))

    def stale(self) -> list[str]:
        """Return the cases that have results in the folder but no predictions any more."""
        return self._writer.records.others(self._cases.ids)

    def __call__(self, case: Case) -> AppliedCase:
        """Calibrate and write one case."""
        return self.begin(case)()

    def begin(self, case: Case) -> Callable[[], AppliedCase]:
        """Calibrate one case, and return what writes it."""
        part, voxels, flips = self._part(case, ())
        write = partial(self._writer.write, case.id, part.log_probs, part.decision, part.confidence, case.spacing)
        return lambda: AppliedCase(voxels, flips, tuple(str(path) for path in write()))

    def scene(self, cases: FileCases, case_id: str) -> AppliedCase:
        """Calibrate and write one scene, window by window."""
        counts: list[tuple[int, int]] = []

        def parts() -> Iterator[ScenePart]:
            for where, inner, case in scene_parts(self._calibrator, cases, case_id):
                part, *count = self._part(case, where, inner)
                counts.append((count[0], count[1]))
                yield part

        files = write_scene(self._writer, case_id, parts(), self._map)
        voxels, flips = (sum(each) for each in zip(*counts, strict=True))
        return AppliedCase(voxels, flips, tuple(str(path) for path in files))

    def _part(self, case: Case, where: tuple[slice, ...], inner: tuple[slice, ...] = ()) -> tuple[ScenePart, int, int]:
        """Return what is to be written of a case or a part of a scene, its voxels, and those that changed class."""
        log_probs, before, flips = calibrate(self._calibrator, case, inner)
        if bool(log_probs.aminmax().min.isnan()):  # any of them; several times faster than looking at each
            broken = int(log_probs.isnan().sum())
            raise CaseError(
                case.id,
                f"{broken} calibrated values are not numbers, but all must be. The scores are too large for the "
                "calibrator, or it is damaged: run segcal audit; nothing was written.",
            )
        keeps = self._calibrator.preserves is not None
        if keeps and flips:
            raise CaseError(
                case.id,
                f"{flips} voxels changed their class, but the calibrator promises to keep it. "
                "The artefact is damaged or the promise is broken: run segcal audit; nothing was written.",
            )
        confidence = self._cases.decision.confidence(log_probs).float().numpy() if self._map else None
        valid = None if case.mask is None else case.mask[inner]
        voxels = log_probs[0].numel() if valid is None or not where else int(valid.sum())
        return ScenePart(where, log_probs, before if keeps else None, confidence, valid), voxels, flips


def record_of(fitted: Fitted, cases: FileCases, kind: str | None = None) -> dict[str, object]:
    """Return what the output depends on besides the cases."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": "apply",
        "calibrator": fitted.calibrator.name,
        "preserves": fitted.calibrator.preserves,
        "digest": calibrator_digest(fitted.calibrator),
        "fitted_on": fitted.fingerprint,
        "pooling": cases.pooling,
        "members": len(cases.members),
        "kind": kind or cases.kind,
    }


def check_folder(folder: Path, cases: FileCases, record: dict[str, object], overwrite: bool) -> None:
    """Refuse a folder in which the results of something else would be taken for ours, or clear it if that is meant."""
    if folder.resolve() in cases.folders():
        return  # the writer has a message for it
    found = read_marker(folder)
    if found is None:
        there = [name for name in entries(folder) if not name.startswith(".")]
        if there:
            raise InputError(
                f"{folder} holds {there[0]}, which segcal {record['made_by']} did not write, but results would be "
                "mixed with it. Name a new folder."
            )
        return
    other = [name for name, value in record.items() if found.get(name) != value]
    if other and not overwrite:
        raise InputError(
            f"{folder} was calibrated with another {other[0]} ({found.get(other[0])!r}), but {record[other[0]]!r} "
            "is to be written. Name a new folder, or pass overwrite=True."
        )
    if overwrite:
        records = Records(folder)
        records.remove(records.others(() if other else cases.ids))
