"""The page of an evaluation: a verdict, one diagram, two rows, the worst cases, and how far structures can be trusted.

Rows of trust stand in the order in which a person should look at them. For the first ones, one structure per case, the
page shows the slice with the largest mask, or outer mask where the mask is empty. :func:`segcal.trust` has a page of
that section alone.
"""

import math
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from segcal.arguments import typed
from segcal.calibrators import make_per_region
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.temperature import Identity
from segcal.cases import Cases, as_cases
from segcal.evaluation import Evaluation
from segcal.evaluation.audit import audit
from segcal.evaluation.evaluate import FITTED_ON, check_match, divide_by_part, evaluate
from segcal.evaluation.result import COMPARED
from segcal.fitting import Fitted
from segcal.fitting.artifact import to_fitted
from segcal.names import class_titles
from segcal.report import document as doc
from segcal.report import images
from segcal.report import verdict as said
from segcal.report.decided import decided_section
from segcal.report.document import pipeline_curves
from segcal.report.figures import page_figures
from segcal.report.page import EVALUATION_PAGE, write_page
from segcal.statistics.additive import total_of
from segcal.statistics.reliability import Curve, CurveSpread
from segcal.target import check_file
from segcal.trust.conformal import count_draws, draws_needed
from segcal.trust.guarantees import MASK, OUTER, bounds_of, nested_masks
from segcal.trust.result import Trust, TrustRow
from segcal.trust.structures import LEVEL, trust

# How an evaluation is done; its other options are declarations about arrays.
HOW = ("metrics", "seed", "replicates", "level", "bands", "progress", "workers", "failed", "device", "convention")
TASK = "these cases"
BEFORE = "uncalibrated"
BIASED = "No case was held out: the calibrator was fitted or chosen on these, so the numbers are too favourable."
RULE = "Chosen are three with the highest loss, two that gained least and one that gained most."
# Of trust: cases with an image, and rows.
MOST_IMAGES = 6
MOST_ROWS = 300


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
    if there are no others they are measured, and the page says so. `background` says whether class 0 is background.
    `ignore_pooling` goes on although the calibrator was fitted for another pooling. `overwrite` replaces a file that
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
    """Write the page of an evaluation of cases with this use in the fit."""
    document = evaluation_document(result, cases, fitted, background, [BIASED] if part == FITTED_ON else [])
    write_page(path, document, page_figures(None if fitted is None else fitted.calibrator))


def evaluation_document(
    result: Evaluation, cases: Cases, fitted: Fitted | None, background: bool = True, notes: Sequence[str] = ()
) -> doc.Document:
    """Return the document of an evaluation; without ACE among its metrics it has no diagram and no verdict.

    `cases` are those that were measured, of which a few are read again for their maps. `background` says whether class
    0 is background, and `notes` are remarks for the reader.
    """
    names = [row["case"] for row in result.rows if row["stage"] == "before"]
    cases = cases.subset(names)  # some may have failed
    nothing = Identity(cases.num_classes) if cases.regions is None else make_per_region("identity", cases.regions)
    last = nothing if fitted is None else fitted.calibrator
    after = BEFORE if fitted is None else f"calibrated with {last.name}"
    stages = {BEFORE: "before"} | ({} if fitted is None else {after: "after"})
    rows = {title: [row for row in result.rows if row["stage"] == stage] for title, stage in stages.items()}
    columns = {
        key: {title: [row.get(key) for row in own] for title, own in rows.items()} for key in ("dice", "ece", "nll")
    }
    curves = {title: _curves(result, stage) for title, stage in stages.items() if result.curves(stage)}
    calibrators = {"identity": Identity.title, last.name: last.title or last.name}
    made = [
        doc.PipelineRow(
            pipeline=title,
            pooling=cases.pooling or "single",
            calibrator=one.name,
            translation_invariant=one.translation_invariant,
            preserves=one.preserves,
            parameters=one.num_parameters(),
            identifiable=one.num_identifiable(),
            converged=fitted is None or fitted.certificate.converged,
            metrics={key: doc.RowNumber.of(found) for key, found in (estimates or {}).items()},
        )
        for title, one, estimates in zip(stages, (nothing, last), (result.before, result.after), strict=False)
    ]
    section = doc.TaskSection(
        id=TASK,
        task=TASK,
        classes=[*(["no region"] if cases.regions else []), *class_titles(cases.class_names, cases.num_classes)],
        background=background,
        baseline=BEFORE,
        chosen=after,
        verdict=_verdict(result, fitted) if BEFORE in curves else None,
        division=_counts(result, fitted),
        rows=made,
        curves=curves,
        cases=doc.CaseColumns(names, len(names), **columns),
    )
    numbers = {}
    for number, row in enumerate(rows[after]):
        nll, ece, dice = ([columns[key][title][number] for title in (BEFORE, after)] for key in ("nll", "ece", "dice"))
        numbers[row["case"]] = images.SeenCase(row["case"], [], nll, ece, dice, row["voxels"], row.get("flip_rate"))
    seen = images.see_cases(cases, numbers, last.to("cpu"), background)
    return doc.Document(
        kind="evaluation",
        title=f"evaluation of {len(names)} cases",
        level=result.level,
        notes=list(notes),
        metrics=doc.metric_words(result.metrics),
        calibrators={key: doc.CalibratorWords(calibrators[key]) for key in sorted(calibrators)},
        sections=[section],
        examples={TASK: doc.CaseExamples(seen, len(numbers), after)},
        rule=RULE,
        provenance=_provenance(cases, fitted),
        trust=UNSET if fitted is None else trust_section(fitted, cases, background),
        decided=UNSET if fitted is None else decided_section(fitted, cases, background),
    )


def _curves(result: Evaluation, stage: str) -> doc.Curves:
    groups = {row["case"]: row["group"] or f"\0{row['case']}" for row in result.rows}
    members: dict[str, dict[str, Curve]] = {}
    for case_id, curve in result.curves(stage).items():
        members.setdefault(groups[case_id], {})[case_id] = curve
    spread = total_of({group: CurveSpread.of(total_of(own)) for group, own in members.items()})
    return pipeline_curves([{"all": total_of(result.curves(stage))}], [{"all": spread}], result.level)


def _counts(result: Evaluation, fitted: Fitted | None) -> said.PartCounts:
    tested = [row["case"] for row in result.rows if row["stage"] == "before"]
    cal, val = ((), ()) if fitted is None else (fitted.calibration_ids, fitted.validation_ids)
    return said.PartCounts(len(cal), len(val), len(tested), 1, len({*tested} & {*cal, *val}))


def _verdict(result: Evaluation, fitted: Fitted | None) -> said.Verdict:
    counts = _counts(result, fitted)
    before = said.MeanCalibration.of(total_of(result.curves("before")))
    if fitted is None or result.after is None or result.change is None:
        return said.measured_verdict(before, counts.test)
    facts = said.Facts(
        task=TASK,
        calibrator=fitted.calibrator.name,
        title=said.calibrator_words(fitted.calibrator),
        keeps=fitted.calibrator.preserves is not None,
        everywhere=before,
        change={
            key: said.Change(result.before[key].value, result.after[key].value, result.change[key])
            for key in COMPARED
            if key in result.change
        },
        flips=_flips(result),
        everywhere_after=said.MeanCalibration.of(total_of(result.curves("after"))),
    )
    return said.make_verdict(facts, counts, result.level)


def _flips(result: Evaluation) -> said.FlipCount:
    rows = [row for row in result.rows if row["stage"] == "after"]
    counts = [round(row["voxels"] * (row.get("flip_rate") or 0)) for row in rows]
    harmful, beneficial = (
        sum(round(count * (row.get(kind) or 0)) for count, row in zip(counts, rows, strict=True))
        for kind in ("harmful_flips", "beneficial_flips")
    )
    return said.FlipCount(sum(row["voxels"] for row in rows), (harmful, beneficial, sum(counts) - harmful - beneficial))


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
            facts.evidence, facts.groups = doc.ClassEvidence.rows(rests, fitted.class_names), rests.groups
        found.calibrators = {TASK: facts}
    return found


def trust_section(fitted: Fitted, cases: Cases, background: bool = True) -> doc.TrustSection | UnsetType:
    """Return the section of some cases; none for regions, without a reference, or with one too small for the level."""
    reference = None if isinstance(fitted.calibrator, PerRegion) else fitted.reference
    if reference is None or count_draws([each.group for each in reference.cases]) < draws_needed(LEVEL):
        return UNSET
    return section_of(trust(fitted, cases, background=background, ignore_pooling=True), fitted, cases)


def section_of(result: Trust, fitted: Fitted, cases: Cases) -> doc.TrustSection:
    """Return the section of a result; a few of its cases are read again for their images."""
    first, cases_first = result.first(), result.cases()
    return doc.TrustSection(
        level=result.level,
        tau=result.tau,
        promise=result.promise,
        cases=cases_first[:MOST_ROWS],
        of_cases=len(cases_first),
        flagged_cases=sum(case["review"] for case in cases_first),
        rows=first[:MOST_ROWS],
        of=len(first),
        flagged=sum(row["review"] for row in first),
        biomarkers=result.biomarkers[:MOST_ROWS],
        images=_trust_images(first, fitted, cases.with_disagreement(), result.level),
        alarms=result.alarms,
    )


def write_trust_page(path: Path, result: Trust, fitted: Fitted, cases: Cases) -> Path:
    """Write a page that has the section alone."""
    document = doc.Document(
        kind="trust",
        title=f"trust in {len({row['case'] for row in result.rows})} cases",
        level=result.level,
        provenance=doc.Provenance(segcal=version("segcal"), fingerprints={"cases": cases.fingerprint()}),
        trust=section_of(result, fitted, cases),
    )
    return write_page(path, document)


def _trust_images(rows: list[TrustRow], fitted: Fitted, cases: Cases, level: float) -> list[doc.TrustImage]:
    assert fitted.reference is not None
    bounds = bounds_of(fitted.reference, 1 - level)
    titles = class_titles(fitted.class_names, len(bounds))
    chosen: dict[str, TrustRow] = {}
    for row in rows:
        chosen.setdefault(row["case"], row)
    found = []
    for row in list(chosen.values())[:MOST_IMAGES]:
        case = cases.checked(row["case"])
        if case.logits.ndim not in (3, 4):
            return []
        levels = nested_masks(fitted.calibrator, case, bounds)[titles.index(row["structure"])]
        levels = levels if case.mask is None else levels * case.mask.numpy()
        axis, amounts = images.slice_amounts(levels >= (MASK if (levels >= MASK).any() else OUTER))
        place = int(amounts.argmax())
        index = images.slice_index(levels.ndim, axis, place, max(1, -(-max(levels.shape) // images.SIDES[2])))
        maps = images.encode_indices(levels[index].astype(np.int64))
        image = None if case.image is None else images.encode_image(case.image.numpy(), index)
        found.append(doc.TrustImage(row["case"], row["structure"], row["reason"], place, len(amounts), maps, image))
    return found
