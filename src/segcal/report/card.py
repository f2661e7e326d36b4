"""Making a calibration card from a calibrator, and from what was measured on cases that it has not seen."""

import csv
import datetime
import hashlib
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from segcal.arguments import typed
from segcal.atomic import write_text
from segcal.calibrators import registry_entry
from segcal.calibrators.per_region import PerRegion
from segcal.documents import read_json, read_text, reading
from segcal.errors import InputError
from segcal.evaluation.audit import audit
from segcal.evaluation.result import Evaluation
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import calibrator_digest
from segcal.metrics import METRICS
from segcal.report import card_document as doc
from segcal.report.document import ClassEvidence
from segcal.report.verdict import calibrator_words
from segcal.resample import LEVEL, Draws
from segcal.summary import difference, estimate
from segcal.target import check_file
from segcal.trust.conformal import count_draws, draws_needed
from segcal.version import __version__

ALL_CASES = "all held-out cases"
FORMS = {".md": doc.as_markdown, ".json": doc.as_json, ".html": doc.as_html}
SIGNATURE = re.compile(rb'---\n# segcal card|\{\n "card": "segcal"|<!doctype html>\n<!-- segcal card -->')
# Those that are usually asked for.
TRUST_LEVELS = (0.8, 0.9, 0.95, 0.99)
UNSIGNED = "The numbers do not say which calibrator made them: an older segcal wrote them, or somebody else."
INTENDED = "Confidence of {classes} classes per voxel, of the model whose {kind} it was fitted to; {mask}."


class StageRow(NamedTuple):
    """One case before or after calibration: its name, the stage, its numbers (NaN: not defined), and its group."""

    case: str
    stage: str
    numbers: Mapping[str, float]
    group: str


@typed
def card(
    fitted: Fitted | str | os.PathLike[str],
    results: Evaluation | str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    dataset: str = "held-out cases",
    subgroups: Mapping[str, str] | None = None,
    not_valid_for: Sequence[str] = (),
    overwrite: bool = False,
) -> doc.Card:
    """Return the calibration card of a calibrator, and write it.

    Args:
        fitted: what fit, choose or load returned, or the folder of a calibrator.
        results: what was measured: an evaluation, or a file of ``Evaluation.to_json``, ``Evaluation.to_csv`` or
            ``segcal evaluate --csv``. Cases that had a part in the fit are left out, and so are metrics that pool
            voxels over cases, because rows of cases do not add up to them.
        path: where to; the form follows from its end: .md, .json or .html. None to write nothing.
        dataset: what the evaluated cases are called.
        subgroups: by the name of a case, the subgroup it belongs to.
        not_valid_for: what to add to that section.
        overwrite: replace a file that is no card.

    >>> import numpy as np, segcal
    >>> logits = np.random.default_rng(0).normal(size=(6, 3, 8, 9))
    >>> fitted = segcal.fit("ts", segcal.ArrayCases(logits=list(logits), labels=list(logits.argmax(1))))
    >>> segcal.card(fitted).calibration_data.cases
    6
    """
    known: Fitted = to_fitted(fitted)
    target = None if path is None else Path(path)
    if target is not None:
        if target.suffix not in FORMS:
            raise InputError(f"path is {target}, but a name that ends in {', '.join(FORMS)} is needed. Choose one.")
        check_file(target, SIGNATURE, [Path(results)] if isinstance(results, str | os.PathLike) else [], overwrite)
    seen = {*known.calibration_ids, *known.validation_ids}
    measured, made_by = _rows(results)
    own = calibrator_digest(known.calibrator)[:16]
    if made_by not in (None, own):
        raise InputError(
            f"results were measured with another calibrator (digest {made_by}), but this card is of "
            f"{own}. Evaluate this calibrator, and pass what that wrote."
        )
    rows = [row for row in measured if row.case not in seen]
    cases = sorted({row.case for row in rows if row.stage == "after"})
    members = _members(cases, subgroups or {})
    mask = "masks may change" if known.calibrator.preserves is None else "masks stay as they are"
    findings = audit(known).findings
    made = doc.Card(
        schema=doc.SCHEMA,
        segcal=__version__,
        dataset=dataset,
        description=_description(known),
        intended_use=INTENDED.format(classes=known.calibrator.num_classes, kind=known.kind, mask=mask),
        not_valid_for=(*_limits(known, bool(cases)), *not_valid_for),
        calibration_data=_hashed(known, known.calibration_ids),
        tuning_data=_hashed(known, known.validation_ids),
        evaluation_data=_hashed(known, cases),
        level=LEVEL,
        promises=tuple(doc.Promise(one.promise, one.promised, one.holds, one.how, one.statement) for one in findings),
        performance=tuple(_measured(name, rows, own) for name, own in members),
        monitoring=_monitoring(known),
        notes=(UNSIGNED,) if measured and made_by is None else (),
        date=datetime.date.today().isoformat(),
    )
    if target is not None:
        write_text(target, FORMS[target.suffix](made))
    return made


def _members(cases: Sequence[str], subgroups: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Return the cases that are measured together: all of them first, then those of each subgroup."""
    if subgroups and not any(case in subgroups for case in cases):
        raise InputError(
            f"subgroups names none of the {len(cases)} cases that were measured and had no part in the fit, but "
            f"subgroups of those are what a card shows. The first of them is {cases[0]!r}: use these names."
            if cases
            else "subgroups is given, but no case was measured that had no part in the fit. Pass results of such cases."
        )
    names = sorted({subgroups[case] for case in cases if case in subgroups})
    own = [(name, [case for case in cases if subgroups.get(case) == name]) for name in names]
    return [(ALL_CASES, cases), *own] if cases else []


def _description(fitted: Fitted) -> doc.CardDescription:
    calibrator, found, rests = fitted.calibrator, fitted.certificate, fitted.certificate.evidence
    name, options = registry_entry(calibrator) or (calibrator.name, {})
    return doc.CardDescription(
        calibrator=name,
        options={key: repr(value) for key, value in options.items()},
        num_classes=calibrator.num_classes,
        class_names=fitted.class_names,
        parameters=calibrator.num_parameters(),
        input_kind=fitted.kind,
        pooling=fitted.pooling,
        fit_method=found.method,
        voxels=found.voxels,
        voxels_available=found.voxels_available,
        kkt_residual=None if found.kkt_residual is None else float(found.kkt_residual),
        converged=bool(found.converged),
        data_fingerprint=fitted.fingerprint,
        digest=calibrator_digest(calibrator)[:16],
        groups=0 if rests is None else rests.groups,
        classes=() if rests is None else ClassEvidence.rows(rests, fitted.class_names),
        held_out_parts=() if rests is None else tuple(rests.sites.values()),
        sites_declared=rests is not None and rests.declared,
        title=calibrator_words(calibrator),
        raters="" if fitted.raters is None else str(fitted.raters),
    )


def _limits(fitted: Fitted, evaluated: bool) -> list[str]:
    """Return what follows from the fit itself."""
    pooling = "the same way of pooling members" if fitted.pooling is None else f"pooling {fitted.pooling}"
    limits = [
        "Predictions of another model, or of the same model trained again.",
        f"Other inputs than {fitted.kind} with {pooling}.",
        "Cases unlike those it was fitted to: another device, site, protocol or population, until measured there.",
        "The quality of masks: calibrated confidence of a voxel does not say that a structure is right.",
        "Several voxels at once: confidences of neighbouring voxels are not independent.",
    ]
    if fitted.calibrator.preserves is None:
        limits.append("Masks made before calibration: this calibrator may change the class of a voxel.")
    if not evaluated:
        limits.append("Any claim of performance: nothing was measured on cases that had no part in the fit.")
    return limits


def _measured(name: str, rows: Sequence[StageRow], cases: Sequence[str]) -> doc.Performance:
    stages = {(row.case, row.stage): row.numbers for row in rows}
    groups = {row.case: row.group for row in rows}
    draws = Draws([[groups[case] for case in cases]])
    found = []
    for metric in (name for name in METRICS if not METRICS[name].pooled):
        columns = [
            np.array([stages.get((case, stage), {}).get(metric, np.nan) for case in cases])
            for stage in ("before", "after")
        ]
        if not np.isnan(columns[1]).all():
            facts = METRICS[metric]
            title = f"{facts.title} ({facts.convention})" if facts.convention else facts.title
            before, after = (estimate([column], draws, bounds=facts.bounds) for column in columns)
            change = difference([columns[0]], [columns[1]], draws, facts.better)
            found.append(doc.CardMetric(metric, title, facts.unit, facts.better, before, after, change))
    return doc.Performance(name, len(cases), tuple(found), draws.groups)


def _monitoring(fitted: Fitted) -> doc.Monitoring | None:
    reference = fitted.reference
    if reference is None:
        return None
    draws = count_draws([case.group for case in reference.cases])
    levels = tuple(level for level in TRUST_LEVELS if draws >= draws_needed(level))
    objects = 0 if fitted.objects is None else len(fitted.objects.cases)
    regions = isinstance(fitted.calibrator, PerRegion)
    return doc.Monitoring(len(reference.ids), draws, reference.source, levels, regions, objects)


def _hashed(fitted: Fitted, cases: Sequence[str]) -> doc.CaseSet:
    """Return the first 16 digits of the SHA-256 of "fingerprint/name" of each case."""
    digests = (hashlib.sha256(f"{fitted.fingerprint}/{case}".encode(errors="surrogateescape")) for case in cases)
    return doc.CaseSet(len(cases), tuple(sorted(digest.hexdigest()[:16] for digest in digests)))


def _rows(results: Evaluation | str | os.PathLike[str] | None) -> tuple[list[StageRow], str | None]:
    """Return what was measured, and the digest of the calibrator that made it; None if that is not written down."""
    if results is None:
        return [], None
    if isinstance(results, Evaluation):
        return [_row(row) for row in results.rows], results.calibrator
    file = Path(results)
    made_by: str | None = None
    try:
        if file.suffix == ".json":
            plain = read_json(file)
            found, made_by = [_row(row) for row in plain["rows"]], plain.get("calibrator")
        else:
            text = read_text(file)
            with reading(file):
                lines = list(csv.DictReader(io.StringIO(text)))
                found = [_row(row) for row in lines]
                made_by = next((row["calibrator"] for row in lines if row.get("calibrator")), None)
    except (AttributeError, KeyError, TypeError, ValueError):
        found = []
    if not any(row.stage == "after" for row in found):
        raise InputError(
            f"{file} has no rows of cases after calibration, but those are what a card shows. Write it with "
            "`segcal evaluate --calibrator CAL --csv FILE`."
        )
    return found, made_by


def _row(row: Mapping[str, str | float | None]) -> StageRow:
    found = ((name, row.get(name)) for name in METRICS)
    numbers = {name: float(value) for name, value in found if value not in (None, "")}
    case = str(row["case"])
    return StageRow(case, str(row["stage"]), numbers, str(row.get("group") or f"\0{case}"))
