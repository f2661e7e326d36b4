"""Cases: what a case is, and where cases come from."""

from segcal.cases.arrays import ArrayCases
from segcal.cases.base import Case, CaseError, Cases, Split
from segcal.cases.check_result import CaseRow, CheckResult, Problem
from segcal.cases.checking import check_cases
from segcal.cases.files import FileCases
from segcal.cases.formats import FORMATS
from segcal.cases.offset import require_offset
from segcal.cases.open import ReadOptions, open_cases
from segcal.cases.padding import find_padding
from segcal.cases.splits import load_split, save_split
from segcal.cases.storing import StoreWriter, convert
from segcal.cases.writing import CaseWriter

__all__ = [
    "FORMATS",
    "ArrayCases",
    "Case",
    "CaseError",
    "CaseRow",
    "CaseWriter",
    "Cases",
    "CheckResult",
    "FileCases",
    "Problem",
    "ReadOptions",
    "Split",
    "StoreWriter",
    "check_cases",
    "convert",
    "find_padding",
    "load_split",
    "open_cases",
    "require_offset",
    "save_split",
]
