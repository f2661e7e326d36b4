"""Which cases may judge a calibrator: those that had no part in its fit, by their ids.

Numbers of cases that a calibrator was fitted or chosen on flatter it. They are measured too, but apart.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from segcal.cases.base import CaseError, Cases
from segcal.cases.suspicion import Suspicion, warn
from segcal.errors import InputError
from segcal.evaluation.evaluate import evaluate
from segcal.evaluation.result import Evaluation
from segcal.fitting.certificate import Fitted

HELD_OUT = "held out"
FITTED_ON = "fitted on"
ALL = "all"
TITLES = {
    HELD_OUT: "held-out cases",
    FITTED_ON: "cases that the calibrator was fitted or chosen on (these numbers flatter it)",
    ALL: "all cases",
}


def evaluate_by_part(
    cases: Cases,
    fitted: Fitted | None = None,
    failed: Callable[[CaseError], None] | None = None,
    **options: Any,
) -> dict[str, Evaluation]:
    """Measure held-out cases, and apart from them those that the calibrator was fitted or chosen on.

    Args:
        cases: the cases, with labels.
        fitted: the calibrator and the cases it has seen; None to measure all as they are.
        failed: takes the error of a case that is not usable; a part of which all cases fail is left out.
        options: those of :func:`segcal.evaluate`.
    """
    parts, calibrator = divide_by_part(cases, fitted), None if fitted is None else fitted.calibrator
    results: dict[str, Evaluation] = {}
    failures: list[CaseError] = []

    def keep(error: CaseError) -> None:
        assert failed is not None
        failures.append(error)
        failed(error)

    for name, part in parts.items():
        before = len(failures)
        try:
            results[name] = evaluate(part, calibrator, failed=None if failed is None else keep, **options)
        except InputError:
            if len(failures) - before < len(part):
                raise
    if not results:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. First: {failures[0]}")
    warn(_suspicions(next(iter(results)), related(parts)))
    return results


def _suspicions(first: str, related_cases: int) -> Iterator[Suspicion]:
    if first == FITTED_ON:
        yield Suspicion("no case was held out; what the calibrator is worth shows on cases that it has not seen")
    if related_cases:
        yield Suspicion(f"{related_cases} held-out cases belong to groups of which other cases were fitted on")


def divide_by_part(cases: Cases, fitted: Fitted | None) -> dict[str, Cases]:
    """Return the cases by the part they had in a fit, held-out ones first; parts without cases are left out."""
    if fitted is None:
        return {ALL: cases}
    had_part = {*fitted.calibration_ids, *fitted.validation_ids}
    parts = {
        HELD_OUT: [case_id for case_id in cases.ids if case_id not in had_part],
        FITTED_ON: [case_id for case_id in cases.ids if case_id in had_part],
    }
    return {name: cases.subset(ids) for name, ids in parts.items() if ids}


def related(parts: Mapping[str, Cases]) -> int:
    """Return how many held-out cases belong to a group of which other cases were fitted on."""
    if set(parts) != {HELD_OUT, FITTED_ON}:
        return 0
    seen = {parts[FITTED_ON].groups.get(case_id) for case_id in parts[FITTED_ON].ids} - {None}
    return sum(parts[HELD_OUT].groups.get(case_id) in seen for case_id in parts[HELD_OUT].ids)


def document(results: Mapping[str, Evaluation]) -> dict[str, object]:
    """Return the estimates as plain data: of the first part at the top, of the fitted-on cases apart."""
    documents: dict[str, dict[str, object]] = {}
    for name, result in results.items():
        plain = result.to_plain()
        kept = {key: plain[key] for key in ("before", "after", "change", "level")}
        documents[name] = {"part": name, **kept, "cases": len({row["case"] for row in result.rows})}
    first, *rest = documents.values()
    return {**first, "fitted_on": rest[0] if rest else None}


def labelled_rows(results: Mapping[str, Evaluation]) -> list[dict[str, object]]:
    """Return the rows of all parts, each with the name of its part after that of its case."""
    return [
        {"case": row["case"], "part": name, **{key: value for key, value in row.items() if key != "case"}}
        for name, result in results.items()
        for row in result.rows
    ]
