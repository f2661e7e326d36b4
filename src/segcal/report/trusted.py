"""The section of the report that says how far structures can be trusted, and a page that has it alone.

Rows stand in the order in which a person should look at them. Of the first ones, one structure a case, the slice is
shown on which the mask is largest, or the outer mask where the mask is empty.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case, Cases
from segcal.fitting.certificate import Fitted
from segcal.names import class_titles
from segcal.report.case_maps import SIDES, encode_picture
from segcal.report.document import Document, Provenance, TrustPicture, TrustSection
from segcal.report.page import write_page
from segcal.report.pictures import encode_indices
from segcal.trust.conformal import count_draws, draws_needed
from segcal.trust.guarantees import MASK, OUTER, bounds_of, nested_masks
from segcal.trust.result import Trust
from segcal.trust.rows import TrustRow
from segcal.trust.structures import LEVEL, trust

PICTURES = 6
MOST_ROWS = 300


def trust_section(fitted: Fitted, cases: Cases, background: bool = True) -> TrustSection | UnsetType:
    """Return the section of some cases; none for regions, without a reference, or with one too small for the level."""
    reference = None if isinstance(fitted.calibrator, PerRegion) else fitted.reference
    if reference is None or count_draws([each.group for each in reference.cases]) < draws_needed(LEVEL):
        return UNSET
    return section_of(trust(fitted, cases, background=background, ignore_pooling=True), fitted, cases)


def section_of(result: Trust, fitted: Fitted, cases: Cases) -> TrustSection:
    """Return the section of a result; a few of its cases are read again for their pictures."""
    first, cases_first = result.first(), result.cases()
    return TrustSection(
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
        pictures=_pictures(first, fitted, cases.with_disagreement(), result.level),
        alarms=result.alarms,
    )


def write_trust_page(path: Path, result: Trust, fitted: Fitted, cases: Cases) -> Path:
    """Write a page that has the section alone."""
    document = Document(
        kind="trust",
        title=f"trust in {len({row['case'] for row in result.rows})} cases",
        level=result.level,
        notes=[],
        metrics={},
        calibrators={},
        sections=[],
        examples={},
        rule="",
        provenance=Provenance(segcal=version("segcal"), fingerprints={"cases": cases.fingerprint()}),
        trust=section_of(result, fitted, cases),
    )
    return write_page(path, document)


def _pictures(rows: list[TrustRow], fitted: Fitted, cases: Cases, level: float) -> list[TrustPicture]:
    assert fitted.reference is not None
    bounds = bounds_of(fitted.reference, 1 - level)
    titles = class_titles(fitted.class_names, len(bounds))
    chosen: dict[str, TrustRow] = {}
    for row in rows:
        chosen.setdefault(row["case"], row)
    found = []
    for row in list(chosen.values())[:PICTURES]:
        case = cases.checked(row["case"])
        if case.logits.ndim not in (3, 4):
            return []
        levels = nested_masks(fitted.calibrator, case, bounds)[titles.index(row["structure"])]
        found.append(_picture(row, case, levels))
    return found


def _picture(row: TrustRow, case: Case, levels: NDArray[np.uint8]) -> TrustPicture:
    axis = int(np.argmin(levels.shape)) if levels.ndim == 3 else None
    place = 0
    if axis is not None:
        others = tuple(number for number in range(levels.ndim) if number != axis)
        place = int((levels >= (MASK if (levels >= MASK).any() else OUTER)).sum(others).argmax())
    kept = [size for number, size in enumerate(levels.shape) if number != axis]
    step = max(1, -(-max(kept) // SIDES[2]))
    index = tuple(place if number == axis else slice(None, None, step) for number in range(levels.ndim))
    return TrustPicture(
        case=row["case"],
        structure=row["structure"],
        why=row["reason"],
        index=place,
        slices=1 if axis is None else levels.shape[axis],
        levels=encode_indices(levels[index].astype(np.int64)),
        image=None if case.image is None else encode_picture(case.image.numpy(), index),
    )
