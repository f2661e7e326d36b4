"""One verdict per case, and the list of cases with what to look at, or to annotate, first.

A case is to be reviewed if any of its structures is, and its reasons are theirs. With c the largest chance of a bad
mask of its structures (1 where one is not known), its score is (review + c) / 2: cases to review have at least 0.5, the
others at most that, and within both the chance decides; then the lowest expected Dice, then the name.
"""

from collections.abc import Iterable

from segcal.trust.rows import CaseVerdict, TrustRow


def case_rows(rows: Iterable[TrustRow]) -> list[CaseVerdict]:
    """Return one row per case, what to look at first."""
    by_case: dict[str, list[TrustRow]] = {}
    for row in rows:
        by_case.setdefault(row["case"], []).append(row)
    found = [_case_row(case, own) for case, own in by_case.items()]
    return sorted(found, key=lambda one: (not one["review"], -one["score"], one["expected_dice"], one["case"]))


def _case_row(case: str, rows: list[TrustRow]) -> CaseVerdict:
    flagged, chances = [row for row in rows if row["review"]], [row["dice_below_tau"] for row in rows]
    known = [chance for chance in chances if chance is not None]
    most = max(known) if len(known) == len(chances) else None
    return {
        "case": case,
        "score": (bool(flagged) + (1.0 if most is None else most)) / 2,
        "review": bool(flagged),
        "reason": " | ".join(f"{row['structure']}: {row['reason']}" for row in flagged),
        "structures": len(rows),
        "to_review": len(flagged),
        "dice_below_tau": most,
        "expected_dice": min(row["expected_dice"] for row in rows),
    }
