"""Cases: what a case is, and where cases come from."""

from segcal.cases.arrays import ArrayCases
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.check import CaseRow, CheckResult, Problem
from segcal.cases.files import FileCases
from segcal.cases.formats import FORMATS
from segcal.cases.kinds import find_padding
from segcal.cases.loader import LoaderCases, as_cases
from segcal.cases.open import ReadOptions, open_cases, split_folders
from segcal.cases.split import Split, load_split, save_split
from segcal.cases.store_writer import StoreWriter, convert
from segcal.cases.write import CaseWriter

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
    "convert",
    "find_padding",
    "load_split",
    "open_cases",
    "save_split",
    "split_folders",
]
