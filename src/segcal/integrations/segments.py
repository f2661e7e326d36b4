"""Codes of structures for DICOM SEG and SR, from the file that dcmqi's ``itkimage2segimage`` takes.

What is read of it: ``segmentAttributes``, a list of lists of segments, and ``SeriesDescription``. The ``labelID`` of a
segment is the number of its class; every class but 0 has one. All else in the file stays unread. Without a file, all
structures are coded as tissue, under their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from segcal.documents import parse_json, read_text
from segcal.errors import InputError
from segcal.integrations.calibrated import need

# As long as DICOM allows: SH and LO.
Short = Annotated[str, Meta(min_length=1, max_length=16)]
Long = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\\\x00-\x1f]*$")]
# Anatomical structure, as SNOMED CT calls it now and did before, and as SNOMED RT did.
ANATOMICAL = ("91723000", "123037004", "T-D000A")


class Code(Struct, frozen=True):
    """A code of a coding scheme, such as SNOMED CT (SCT)."""

    value: Short = field(name="CodeValue")
    scheme: Short = field(name="CodingSchemeDesignator")
    meaning: Long = field(name="CodeMeaning")

    def coded(self) -> Any:
        """Return it as highdicom takes it."""
        return need("highdicom", "dicom").sr.CodedConcept(self.value, self.scheme, self.meaning)


TISSUE = Code("85756007", "SCT", "Tissue")


class Segment(Struct, frozen=True):
    """One structure."""

    number: Annotated[int, Meta(ge=1)] = field(name="labelID")
    category: Code = field(name="SegmentedPropertyCategoryCodeSequence")
    kind: Code = field(name="SegmentedPropertyTypeCodeSequence")
    kind_modifier: Code | None = field(name="SegmentedPropertyTypeModifierCodeSequence", default=None)
    region: Code | None = field(name="AnatomicRegionSequence", default=None)
    region_modifier: Code | None = field(name="AnatomicRegionModifierSequence", default=None)
    label: Long | None = field(name="SegmentLabel", default=None)

    @property
    def site(self) -> tuple[Code, Code | None] | None:
        """Where it is, and on which side; an anatomical structure is its own place."""
        if self.region is not None:
            return self.region, self.region_modifier
        return (self.kind, self.kind_modifier) if self.category.value in ANATOMICAL else None


class _File(Struct):
    segments: list[list[Segment]] = field(name="segmentAttributes")
    description: Long | None = field(name="SeriesDescription", default=None)


@dataclass(frozen=True)
class Segments:
    """The structures, class 1 first, and what the series with them is called."""

    segments: tuple[Segment, ...]
    description: str


def read_segments(path: Path | None, structures: Sequence[str], description: str | None = None) -> Segments:
    """Return the codes of structures (class 1 first) from a file, if there is one; a description overrides its own."""
    if path is None:
        plain = [Segment(number, TISSUE, TISSUE) for number in range(1, len(structures) + 1)]
        found = _File([plain])
    else:
        try:
            found = msgspec.convert(parse_json(read_text(path)), _File)
        except ValueError as error:
            raise InputError(
                f"{path} has no codes of segments ({error}), but a file as dcmqi takes it is needed. Correct it."
            ) from None
    try:
        msgspec.convert(description, Long | None)
    except ValueError:
        raise InputError(f"description is {description!r}, but 1 to 64 characters are needed. Shorten it.") from None
    segments = sorted((each for some in found.segments for each in some), key=lambda each: each.number)
    wanted = dict(enumerate(structures, start=1))
    if [each.number for each in segments] != list(wanted):
        have = ", ".join(str(each.number) for each in segments) or "none"
        need_all = ", ".join(f"{number} ({name})" for number, name in wanted.items())
        raise InputError(f"{path} has segments for labelID {have}, but the structures are {need_all}. Correct it.")
    for each in segments:
        other = next((n for n, name in wanted.items() if name.casefold() == (each.label or "").casefold()), each.number)
        if other != each.number:
            raise InputError(
                f"{path} calls labelID {each.number} {each.label!r}, but that is the name of class {other}. Correct it."
            )
    labels = [each.label or wanted[each.number][:64] for each in segments]
    named = (msgspec.structs.replace(one, label=label) for one, label in zip(segments, labels, strict=True))
    return Segments(tuple(named), description or found.description or "segcal")
