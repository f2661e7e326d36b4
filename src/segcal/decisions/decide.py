"""Masks by a rule, in a folder or in memory; the preserved mask is the default, and changes nothing.

Images become PNG and volumes NIfTI, in the geometry of the predictions. A label map is ``CASE.png`` or
``CASE.nii.gz``; masks that may overlap are one file each, ``STRUCTURE/CASE.png``. ``rows/CASE.json`` has what
``decide.csv`` and ``decide.json`` are put together from. What each case was made from is recorded, so that a run that
was interrupted goes on.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from segcal.arguments import typed
from segcal.atomic import write_text
from segcal.cases import as_cases
from segcal.cases.base import Case, CaseError
from segcal.cases.files import FileCases
from segcal.cases.parallel import Engine, Failures, Workers, map_cases
from segcal.cases.records import MARKER, Records
from segcal.cases.write import write_map
from segcal.decisions import make_rule
from segcal.decisions.masks import DecidedCase, Decider, Decisions
from segcal.documents import read_json, write_json
from segcal.errors import InputError
from segcal.evaluation.apply import check_folder, record_of
from segcal.evaluation.evaluate import check_match
from segcal.evaluation.slabs import as_seen
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import HELD_OUT
from segcal.names import file_names
from segcal.target import check_file, claim
from segcal.trust.entry import known_reference
from segcal.trust.structures import CASES, GROUPS

ROWS = "rows"
NOTHING = "Nothing is guaranteed: what is expected is so if voxels are calibrated and independent."
PROMISE = "On average over {draws} like the reference, {what}"
NOT_PROVED = ": about so, and nothing is proved, because the reference had a part in the fit"


@typed
def decide(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    rule: str = "argmax",
    folder: str | Path | None = None,
    *,
    background: bool = True,
    overwrite: bool = False,
    ignore_pooling: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[str], None] | None = None,
    **declared: Any,
) -> Decisions:
    """Make masks by a rule, and say what is guaranteed and what is expected of each; run again, go on.

    Args:
        fitted: what fit, choose, learn_trust or load returned, or the folder of a calibrator.
        cases: the predictions, or arrays as :func:`segcal.cases.as_cases` takes them.
        rule: "argmax" (the preserved mask), "dice", "volume", "recall=0.95" or "precision=0.9", say; the last two need
            the labelled cases that :func:`segcal.learn_trust` or ``segcal fit`` keeps.
        folder: where to write masks, ``decide.csv`` and ``decide.json``; without one the masks of all cases are part of
            the result.
        background: whether class 0 is background, and no structure.
        overwrite: clear a folder that another rule or calibrator made, and remove masks that have no input any more.
        ignore_pooling: go on although the calibrator was fitted for another pooling.
        device: where to calibrate; the CPU if not given.
        workers: how many processes work on cases, or an engine of :mod:`segcal.scale`.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done, or found complete.
        declared: what is known of arrays, such as `kind`.

    >>> import numpy as np
    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> logits = 2 * rng.normal(size=(8, 3, 9, 7))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> found = decide(segcal.fit("ts", logits, labels), logits, "dice")
    >>> found.masks["0"].shape, [row["structure"] for row in found.rows[:2]]
    ((9, 7), ['class 1', 'class 2'])
    """
    known, opened = to_fitted(fitted), as_cases(cases, **declared)
    check_match(known, opened, ignore_pooling)
    known.calibrator.to(check_device(device))
    decider, seen = Decider(known, make_rule(rule), background), as_seen(opened, known.calibrator)
    failures, tell = Failures(failed), progress or (lambda case_id: None)
    # A shard must give a result for all of its cases; it knows itself which of them are done.
    is_part = isinstance(workers, Engine) and folder is not None and workers.folder == Path(folder)
    with ExitStack() as held:
        writer, found = None, {}
        if folder is not None:
            if not isinstance(seen, FileCases):
                raise InputError(
                    f"cases is {type(seen).__name__}, but files are written in the geometry of files that were read. "
                    "Open a folder with segcal.open_cases, or leave the folder out."
                )
            held.enter_context(claim(Path(folder)))
            writer = MaskFiles(known, decider, seen, Path(folder), overwrite)
            found = {} if is_part else writer.there()
        there, missing = len(found), seen.subset(case_id for case_id in seen.ids if case_id not in found)
        for case_id in found:
            tell(case_id)
        for case_id, one in map_cases(missing, writer or decider, workers, failures.take):
            found[case_id] = one
            tell(case_id)
        if not found:
            raise failures.refuse_all(len(seen))
        result = Decisions(
            rows=[row for case_id in seen.ids if case_id in found for row in found[case_id].rows],
            rule=str(decider.rule),
            promise=promise_of(known, decider),
            written=0 if writer is None else len(found) - there,
            already_there=there,
            stale=[] if writer is None else writer.records.others(seen.ids),
            masks={name: one.masks for name, one in found.items() if one.masks is not None},
        )
        if writer is not None and not is_part:
            result.write(writer.folder)
    return result


def promise_of(fitted: Fitted, decider: Decider) -> str:
    """Return in words what is guaranteed, and no more than that."""
    rule = decider.rule
    if rule.value is None:
        return NOTHING
    reference = known_reference(fitted, regions=True)
    draws = CASES if len({each.group for each in reference.cases}) == len(reference.ids) else GROUPS
    said = PROMISE.format(draws=draws, what=rule.promise.format(100 * rule.value))
    without = (f"{title}: {one.note}" for title, one in zip(decider.titles, decider.limits, strict=True) if one.note)
    return ". ".join([said if reference.source == HELD_OUT else said + NOT_PROVED, *without]) + "."


class MaskFiles:
    """Decides on a case and writes its masks; picklable, for several processes. The arguments are those of `decide`."""

    def __init__(self, fitted: Fitted, decider: Decider, cases: FileCases, folder: Path, overwrite: bool) -> None:
        self.folder, self.records = folder, Records(folder)
        self._decide, self._cases = decider, cases
        self._names = file_names(decider.titles, ROWS)
        own = {"made_by": "decide", "rule": str(decider.rule), "structures": decider.titles}
        record = record_of(fitted, cases) | own | {"thresholds": [limit.threshold for limit in decider.limits]}
        check_folder(folder, cases, record, overwrite)
        for name, signature in Decisions.signatures().items():
            check_file(folder / name, signature)
        self._made_by = json.dumps(record, indent=1) + "\n"
        write_text(folder / MARKER, self._made_by)

    def there(self) -> dict[str, DecidedCase]:
        """Return the rows of the cases whose masks are there, whole and made from what is there now."""
        ids = [each for each in self._cases.ids if self.records.done(each, partial(self._made_from, each)) is not None]
        return {each: DecidedCase(None, read_json(self.folder / ROWS / f"{each}.json")["rows"]) for each in ids}

    def __call__(self, case: Case) -> DecidedCase:
        """Decide on one case, write it, and return its rows."""
        masks, rows = self._decide(case)
        assert masks is not None
        several = dict(zip(self._names, masks, strict=True)) if self._decide.overlapping else {"": masks}

        def make(beside: Path) -> Iterator[Path]:
            (beside / ROWS).mkdir()
            yield write_json(beside / ROWS / f"{case.id}.json", {"rows": rows})
            for name, mask in several.items():
                yield write_map(self._cases, case.id, mask, beside / name, case.spacing)

        self.records.write(case.id, self._made_from(case.id), make)
        return DecidedCase(None, rows)

    def _made_from(self, case_id: str) -> str:
        return hashlib.sha256(f"{self._made_by} {self._cases.identity(case_id)}".encode()).hexdigest()
