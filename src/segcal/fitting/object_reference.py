"""Facts about the objects of labelled cases that a calibrator remembers, to judge those of new cases.

A section of ``calibrator.json`` like :mod:`segcal.fitting.reference`: numbers as texts, and no image content. What is
stated of new objects is computed from these numbers by :mod:`segcal.trust`; here is only their form.
"""

from typing import Literal

import msgspec

from segcal.fitting.reference import Source

VERSION = 1
# Numbers of an object, in the order in which they are written (the last four are what labels say); and of a structure.
OF_OBJECT = ("structure", "size", "mean", "peak", "edge", "border", "disagreement", "real", "dice", "truth", "matched")
OF_STRUCTURE = ("truths", "missed")


class ObjectRule(msgspec.Struct, frozen=True):
    """An object of at least `smallest` voxels is real if its best `measure` with an object of the labels reaches `at`.

    "iou" is intersection over union, "overlap" the share of its voxels that lie in that object.
    """

    measure: Literal["iou", "overlap"] = "iou"
    at: float = 0.1
    smallest: int = 1


class ObjectCase(msgspec.Struct, frozen=True):
    """One labelled case: :data:`OF_OBJECT` of one object after the other, :data:`OF_STRUCTURE` of each structure."""

    id: str
    group: str
    objects: str
    structures: str


class ObjectReference(msgspec.Struct, frozen=True):
    """All cases, how they stand to the fit, the calibrator that judged them, and the structures that were looked at."""

    version: int
    source: Source
    calibrator: str
    structures: tuple[int, ...]
    rule: ObjectRule
    cases: tuple[ObjectCase, ...]
