"""Which cases may judge a calibrator: those that had no part in its fit, by their ids.

Numbers of cases that a calibrator was fitted or chosen on flatter it. They are measured too, but apart.
"""

from collections.abc import Mapping

from segcal.cases.base import Cases
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
