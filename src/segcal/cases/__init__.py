"""Cases: what a case is, and where cases come from."""

from segcal.cases.arrays import ArrayCases
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.check_result import CaseRow, CheckResult, Problem
from segcal.cases.checking import check_cases
from segcal.cases.files import FileCases
from segcal.cases.formats import FORMATS
from segcal.cases.loader import LoaderCases, as_cases
from segcal.cases.open import ReadOptions, open_cases
from segcal.cases.padding import find_padding
from segcal.cases.split import Split, load_split, save_split
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
    "LoaderCases",
    "Problem",
    "ReadOptions",
    "Split",
    "StoreWriter",
    "as_cases",
    "check_cases",
    "convert",
    "find_padding",
    "load_split",
    "open_cases",
    "save_split",
]
