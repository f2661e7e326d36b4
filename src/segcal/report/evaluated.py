"""The report of an evaluation, in small: a verdict, one diagram, two rows, and the worst cases."""

import math
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec import UNSET

from segcal.arguments import typed
from segcal.calibrators import make_per_region
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import Identity
from segcal.cases import Cases, as_cases
from segcal.evaluation import Evaluation
from segcal.evaluation.audit import audit
from segcal.evaluation.evaluate import FITTED_ON, check_match, divide_by_part, evaluate
from segcal.fitting import Fitted
from segcal.fitting.artifact import to_fitted
from segcal.names import class_titles
from segcal.report import document as doc
from segcal.report.card_document import ClassEvidence
from segcal.report.case_maps import CaseNumbers, see_cases
from segcal.report.confidence_curves import page_figures
from segcal.report.curves import pipeline_curves
from segcal.report.page import EVALUATION_PAGE, write_page
from segcal.report.trusted import trust_section
from segcal.report.verdict import (
    COMPARED,
    Change,
    Facts,
    FlipCount,
    Honesty,
    PartCounts,
    Verdict,
    make_verdict,
    measured_verdict,
)
from segcal.statistics.additive import total_of
from segcal.statistics.reliability import Curve, CurveSpread
from segcal.target import check_file

# How an evaluation is done; its other options are declarations about arrays.
HOW = ("metrics", "seed", "replicates", "level", "bands", "progress", "workers", "failed", "device", "convention")
TASK = "these cases"
BEFORE = "uncalibrated"
FLATTERS = "No case was held out: the calibrator was fitted or chosen on these, and the numbers flatter it."
RULE = "Chosen are three with the highest loss, two that gained least and one that gained most."


@typed
def report(
    fitted: Fitted | str | os.PathLike[str] | None,
    cases: Any,
    path: str | os.PathLike[str],
    *,
    labels: Any = None,
    background: bool = True,
    ignore_pooling: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Evaluation:
    """Measure cases that a calibrator has not seen, write one offline page of what was found, and return the numbers.

    `fitted` may be the folder of a calibrator, or None to measure only. Cases that had a part in the fit are left out;
    if there are no others they are measured, and the page says so. `background` says whether class 0 is background,
    `ignore_pooling` goes on although the calibrator was fitted for another pooling, `overwrite` replaces a file that
    segcal did not write. The other options are those of :func:`segcal.evaluate`, which takes arrays and loaders too.
    """
    known = to_fitted(fitted)
    how = {name: options.pop(name) for name in HOW if name in options}
    cases = as_cases(cases, labels, **options)
    if known is not None:
        check_match(known, cases, ignore_pooling)
    check_file(Path(path), EVALUATION_PAGE, (), overwrite)
    part, judged = next(iter(divide_by_part(cases, known).items()))
    result = evaluate(judged, known, **how)
    write_evaluation(path, result, judged, known, part, background)
    return result


def write_evaluation(
    path: str | os.PathLike[str],
    result: Evaluation,
    cases: Cases,
    fitted: Fitted | None,
    part: str,
    background: bool = True,
) -> None:
    """Write the page of an evaluation of cases that had this part in the fit."""
    document = evaluation_document(result, cases, fitted, background, [FLATTERS] if part == FITTED_ON else [])
    write_page(path, document, page_figures(None if fitted is None else fitted.calibrator))


def evaluation_document(
    result: Evaluation, cases: Cases, fitted: Fitted | None, background: bool = True, notes: Sequence[str] = ()
) -> doc.Document:
    """Return the document of an evaluation; without ACE among its metrics it has no diagram and no verdict.

    `cases` are those that were measured, of which a few are read again for their maps; `background` says whether class
    0 is background, and `notes` are remarks for the reader.
    """
    names = [row["case"] for row in result.rows if row["stage"] == "before"]
    cases = cases.subset(names)  # some may have failed
    calibrator = _nothing(cases) if fitted is None else fitted.calibrator
    name, titles = calibrator.name, {"identity": Identity.title, calibrator.name: calibrator.title or calibrator.name}
    after = BEFORE if fitted is None else f"calibrated with {name}"
    stages = {BEFORE: "before"} | ({} if fitted is None else {after: "after"})
    columns = {
        key: {title: [row.get(key) for row in result.rows if row["stage"] == stage] for title, stage in stages.items()}
        for key in ("dice", "ece", "nll")
    }
    curves = {title: _curves(result, stage) for title, stage in stages.items()}
    section = doc.TaskSection(
        id=TASK,
        task=TASK,
        classes=[*(["no region"] if cases.regions else []), *class_titles(cases.class_names, cases.num_classes)],
        shown_classes=[],
        background=background,
        baseline=BEFORE,
        chosen=after,
        verdict=None if curves[BEFORE] is None else _verdict(result, fitted),
        division=_counts(result, fitted),
        rows=[_row(title, stage, result, cases, fitted) for title, stage in stages.items()],
        curves={title: each for title, each in curves.items() if each is not None},
        per_class={},
        bands={},
        cases=doc.CaseColumns(names, len(names), **columns),
    )
    return doc.Document(
        kind="evaluation",
        title=f"evaluation of {len(names)} cases",
        level=result.level,
        notes=list(notes),
        metrics=doc.metric_words(result.metrics),
        calibrators={key: doc.CalibratorWords(titles[key]) for key in sorted(titles)},
        sections=[section],
        examples={TASK: _examples(result, cases, fitted, background, section.cases)},
        rule=RULE,
        provenance=_provenance(cases, fitted),
        trust=UNSET if fitted is None else trust_section(fitted, cases, background),
    )


def _nothing(cases: Cases) -> Calibrator:
    return Identity(cases.num_classes) if cases.regions is None else make_per_region("identity", cases.regions)


def _row(title: str, stage: str, result: Evaluation, cases: Cases, fitted: Fitted | None) -> doc.PipelineRow:
    calibrator = _nothing(cases) if fitted is None or stage == "before" else fitted.calibrator
    estimates = result.before if stage == "before" else result.after
    assert estimates is not None
    return doc.PipelineRow(
        pipeline=title,
        pooling=cases.pooling or "single",
        calibrator=calibrator.name,
        translation_invariant=calibrator.translation_invariant,
        preserves=calibrator.preserves,
        parameters=calibrator.num_parameters(),
        identifiable=calibrator.num_identifiable(),
        converged=True if fitted is None else fitted.certificate.converged,
        metrics={key: doc.RowNumber.of(one) for key, one in estimates.items()},
    )


def _parts(result: Evaluation, stage: str) -> Mapping[str, Curve]:
    found: Mapping[str, Curve] = result.parts.get(stage, {}).get("ace", {})
    return found


def _curves(result: Evaluation, stage: str) -> doc.Curves | None:
    parts = _parts(result, stage)
    if not parts:
        return None
    groups = {row["case"]: row["group"] or f"\0{row['case']}" for row in result.rows}
    members: dict[str, dict[str, Curve]] = {}
    for case_id, curve in parts.items():
        members.setdefault(groups[case_id], {})[case_id] = curve
    spread = total_of({group: CurveSpread.of(total_of(own)) for group, own in members.items()})
    return pipeline_curves([{"all": total_of(parts)}], [{"all": spread}], result.level)


def _counts(result: Evaluation, fitted: Fitted | None) -> PartCounts:
    tested = [row["case"] for row in result.rows if row["stage"] == "before"]
    cal, val = ((), ()) if fitted is None else (fitted.calibration_ids, fitted.validation_ids)
    return PartCounts(len(cal), len(val), len(tested), 1, len({*tested} & {*cal, *val}))


def _verdict(result: Evaluation, fitted: Fitted | None) -> Verdict:
    counts = _counts(result, fitted)
    before = Honesty.of(total_of(_parts(result, "before")))
    if fitted is None or result.after is None or result.change is None:
        return measured_verdict(before, counts.test)
    facts = Facts(
        task=TASK,
        calibrator=fitted.calibrator.name,
        title=fitted.calibrator.title or fitted.calibrator.name,
        keeps=fitted.calibrator.preserves is not None,
        everywhere=before,
        change={
            key: Change(result.before[key].value, result.after[key].value, result.change[key])
            for key in COMPARED
            if key in result.change
        },
        flips=_flips(result),
        everywhere_after=Honesty.of(total_of(_parts(result, "after"))),
    )
    return make_verdict(facts, counts, result.level)


def _flips(result: Evaluation) -> FlipCount:
    rows = [row for row in result.rows if row["stage"] == "after"]
    counts = [round(row["voxels"] * (row.get("flip_rate") or 0)) for row in rows]
    harmful, beneficial = (
        sum(round(count * (row.get(kind) or 0)) for count, row in zip(counts, rows, strict=True))
        for kind in ("harmful_flips", "beneficial_flips")
    )
    return FlipCount(sum(row["voxels"] for row in rows), (harmful, beneficial, sum(counts) - harmful - beneficial))


def _examples(
    result: Evaluation, cases: Cases, fitted: Fitted | None, background: bool, columns: doc.CaseColumns
) -> doc.CaseExamples:
    last = "before" if fitted is None else "after"
    numbers, title = {}, list(columns.nll)[-1]
    for number, row in enumerate(row for row in result.rows if row["stage"] == last):
        nll, ece, dice = (
            [each[BEFORE][number], each[title][number]] for each in (columns.nll, columns.ece, columns.dice)
        )
        numbers[row["case"]] = CaseNumbers(nll, ece, dice, row["voxels"], row.get("flip_rate"))
    calibrator = _nothing(cases) if fitted is None else fitted.calibrator.to("cpu")
    return doc.CaseExamples(see_cases(cases, numbers, calibrator, background), len(numbers), title)


def _provenance(cases: Cases, fitted: Fitted | None) -> doc.Provenance:
    found = doc.Provenance(segcal=version("segcal"), fingerprints={f"{TASK}, {cases.pooling}": cases.fingerprint()})
    if fitted is not None:
        kept = {name: getattr(fitted.certificate, name) for name in doc.CERTIFIED}
        certificate = {
            name: None if isinstance(one, float) and not math.isfinite(one) else one for name, one in kept.items()
        } | {"active_bounds": list(fitted.certificate.active_bounds)}
        name, pooling = fitted.calibrator.name, fitted.pooling or "single"
        audited = audit(fitted.calibrator)
        facts = doc.CalibratorFacts(name, pooling, certificate, doc.AuditFacts(audited.passed, str(audited)))
        if (rests := fitted.certificate.evidence) is not None:
            facts.evidence, facts.groups = ClassEvidence.rows(rests, fitted.class_names), rests.groups
        found.calibrators = {TASK: facts}
    return found
