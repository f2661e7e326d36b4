"""The report of `segcal evaluate`, in small: a verdict, one diagram, two rows, and the worst cases."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
from msgspec import to_builtins

from segcal.benchmark.page.curves import plain_curve
from segcal.benchmark.page.document import metric_facts
from segcal.benchmark.page.verdict import Verdict, make_verdict, measured_verdict
from segcal.benchmark.page.words import POOLING_WORDS, calibrator_words
from segcal.benchmark.pipelines import Pipeline
from segcal.report.case_maps import CaseNumbers, see_cases
from segcal.studies.facts import Change, Facts, FlipCount, Honesty
from segcal.calibrators import registry_entry
from segcal.calibrators.base import Calibrator
from segcal.calibrators.identity import Identity
from segcal.cases.base import Cases
from segcal.errors import InputError
from segcal.evaluation import Evaluation
from segcal.evaluation.audit import audit
from segcal.fitting import Fitted
from segcal.report.page import SCHEMA
from segcal.statistics.additive import total_of
from segcal.statistics.reliability import Curve
from segcal.statistics.spread import CurveSpread, accuracy_error, accuracy_interval

PLACE = "these cases"
BEFORE = "uncalibrated"
SHOWN = ("dice", "ece", "nll")


def evaluated_document(
    result: Evaluation, cases: Cases, fitted: Fitted | None, background: bool = True, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the document of an evaluation.

    Args:
        result: with ACE among its metrics, whose tables are the reliability diagram.
        cases: the cases that were measured; a few are read again for their maps.
        fitted: the calibrator, or None if there was none.
        background: whether class 0 is what is left over.
        notes: remarks for the reader.
    """
    name = "identity" if fitted is None else _name(fitted.calibrator)
    after = BEFORE if fitted is None else f"calibrated with {name}"
    stages = {BEFORE: "before"} | ({} if fitted is None else {after: "after"})
    rows = [_row(title, stage, result, cases, fitted) for title, stage in stages.items()]
    curves = {title: {"all": _curve(result, stage)} for title, stage in stages.items()}
    names = [row["case"] for row in result.rows if row["stage"] == "before"]
    place: dict[str, Any] = {
        "id": PLACE, "task": PLACE, "test_on": "", "background": background, "baseline": BEFORE, "chosen": after,
        "classes": list(cases.class_names or (f"class {number}" for number in range(cases.num_classes))),
        "shown_classes": [], "division": _division(result, fitted), "rows": rows, "per_class": {}, "bands": {},
        "curves": {title: each for title, each in curves.items() if each["all"] is not None},
        "verdict": asdict(_verdict(result, fitted)) if curves[BEFORE]["all"] is not None else None,
        "cases": {"names": names, "of": len(names)} | {key: _column(result, key, stages) for key in SHOWN},
    }  # fmt: skip
    return {
        "schema": SCHEMA,
        "kind": "evaluation",
        "title": f"evaluation of {len(names)} cases",
        "segcal": version("segcal"),
        "level": result.level,
        "notes": list(notes),
        "metrics": metric_facts({key: {"better": m.better, "pooled": m.pooled} for key, m in result.metrics.items()}),
        "poolings": POOLING_WORDS,
        "calibrators": {key: {"title": calibrator_words(key), "about": ""} for key in {"identity", name}},
        "places": [place],
        "comparisons": [],
        "examples": {PLACE: _examples(result, cases, fitted, background, after)},
        "rule": "Chosen are three with the highest loss, two that gained least and one that gained most.",
        "provenance": _provenance(cases, fitted),
    }


def _name(calibrator: Calibrator) -> str:
    entry = registry_entry(calibrator)
    return type(calibrator).__name__ if entry is None else entry[0]


def _row(title: str, stage: str, result: Evaluation, cases: Cases, fitted: Fitted | None) -> dict[str, Any]:
    calibrator = Identity(cases.num_classes) if fitted is None or stage == "before" else fitted.calibrator
    estimates = result.before if stage == "before" else result.after
    assert estimates is not None
    kept = ("value", "low", "high", "undefined")
    return {
        "pipeline": title,
        "pooling": cases.pooling or "single",
        "calibrator": "identity" if stage == "before" else _name(calibrator),
        "translation_invariant": calibrator.translation_invariant,
        "preserves": calibrator.preserves,
        "parameters": calibrator.num_parameters(),
        "identifiable": calibrator.num_identifiable(),
        "converged": True if fitted is None else fitted.certificate.converged,
        "metrics": {key: {part: getattr(one, part) for part in kept} for key, one in estimates.items()},
    }


def _parts(result: Evaluation, stage: str) -> Mapping[str, Curve]:
    found: Mapping[str, Curve] = result.parts.get(stage, {}).get("ace", {})
    return found


def _curve(result: Evaluation, stage: str) -> dict[str, Any] | None:
    parts = _parts(result, stage)
    if not parts:
        return None
    total = total_of(parts)
    spread = total_of({case_id: CurveSpread.of(curve) for case_id, curve in parts.items()})
    return plain_curve(total, *accuracy_interval(total, accuracy_error(total, spread), result.level))


def _division(result: Evaluation, fitted: Fitted | None) -> dict[str, int]:
    tested = [row["case"] for row in result.rows if row["stage"] == "before"]
    parts: tuple[Sequence[str], ...] = ((), ()) if fitted is None else (fitted.calibration_ids, fitted.validation_ids)
    seen = len(set(tested) & {case for part in parts for case in part})
    return {"cal": len(parts[0]), "val": len(parts[1]), "test": len(tested), "repeats": 1, "seen": seen}


def _column(result: Evaluation, metric: str, stages: Mapping[str, str]) -> dict[str, list[float | None]]:
    return {title: [row.get(metric) for row in result.rows if row["stage"] == stage] for title, stage in stages.items()}


def _honesty(result: Evaluation, stage: str) -> Honesty:
    total = total_of(_parts(result, stage))
    voxels = int(total.count.sum())
    if not voxels:
        raise InputError("the cases have no voxel that counts, but a page needs some. Check --ignore.")
    return Honesty(float(total.confidence.sum()) / voxels, int(total.right.sum()) / voxels)


def _verdict(result: Evaluation, fitted: Fitted | None) -> Verdict:
    division: dict[str, Any] = _division(result, fitted) | {"level": result.level, "chosen": ""}
    before = _honesty(result, "before")
    if fitted is None or result.after is None or result.change is None:
        return measured_verdict(before, division)
    change: dict[str, Change] = {
        key: Change(result.before[key].value, result.after[key].value, result.change[key])
        for key in ("nll", "ece", "ba_ece", "dice")
        if key in result.change
    }
    facts = Facts(
        task=PLACE,
        cases=division["test"],
        everywhere=before,
        boundary=None,
        offset=None,
        chosen=Pipeline("single", _name(fitted.calibrator)),
        change=change,
        ace=(None, None),
        chosen_flips=_flips(result),
        matrix_flips=None,
        matrix_change={},
        everywhere_after=_honesty(result, "after"),
    )
    return make_verdict(facts, division)


def _flips(result: Evaluation) -> FlipCount:
    rows = [row for row in result.rows if row["stage"] == "after"]
    counts = [round(row["voxels"] * (row.get("flip_rate") or 0)) for row in rows]
    kinds = [
        sum(round(count * (row.get(kind) or 0)) for count, row in zip(counts, rows, strict=True))
        for kind in ("harmful_flips", "beneficial_flips")
    ]
    return FlipCount(sum(row["voxels"] for row in rows), (kinds[0], kinds[1], sum(counts) - sum(kinds)), None)


def _examples(result: Evaluation, cases: Cases, fitted: Fitted | None, background: bool, title: str) -> dict[str, Any]:
    last = "before" if fitted is None else "after"
    numbers = {
        row["case"]: {"voxels": row["voxels"], "flip_rate": row.get("flip_rate")}
        for row in result.rows
        if row["stage"] == last
    }
    for key in SHOWN:
        found = {
            stage: {row["case"]: row.get(key) for row in result.rows if row["stage"] == stage}
            for stage in ("before", last)
        }
        for case_id, one in numbers.items():
            one[key] = [found["before"][case_id], found[last][case_id]]
    calibrator = Identity(cases.num_classes) if fitted is None else fitted.calibrator.to("cpu")
    found = {case_id: CaseNumbers(**one) for case_id, one in numbers.items()}
    kept = to_builtins(see_cases(cases, found, calibrator, background))
    return {"cases": kept, "of": len(numbers), "pipeline": title}


def _provenance(cases: Cases, fitted: Fitted | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "segcal": version("segcal"),
        "fingerprints": {f"{PLACE}, {cases.pooling}": cases.fingerprint()},
    }
    if fitted is None:
        return found
    certificate = fitted.certificate.to_dict()
    kept = {key: value for key, value in certificate.items() if isinstance(value, str | bool | int) or _finite(value)}
    checked = audit(fitted.calibrator)
    own = {
        "pipeline": _name(fitted.calibrator),
        "pooling": fitted.pooling or "single",
        "certificate": kept,
        "audit": {"passed": checked.passed, "text": str(checked), "findings": []},
    }
    return found | {"calibrators": {PLACE: own}}


def _finite(value: Any) -> bool:
    return isinstance(value, float) and bool(np.isfinite(value))
