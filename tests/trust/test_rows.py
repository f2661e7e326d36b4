"""What is written has the columns that are declared, in this order."""

import segcal
from segcal.trust.rows import BiomarkerRow, BoundRow, CaseVerdict, TrustRow


def test_rows_have_their_columns(fitted, make_cases):
    found = segcal.trust(fitted, make_cases(2, seed=3, prefix="new"), biomarkers={"ratio": "{core} / {wall}"})
    for kind, rows in (
        (TrustRow, found.rows),
        (CaseVerdict, found.cases()),
        (BiomarkerRow, found.biomarkers),
        (BoundRow, found.bounds),
    ):
        assert rows
        assert all(list(row) == list(kind.__annotations__) for row in rows)
