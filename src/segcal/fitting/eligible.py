"""Who may compete: calibrators that work voxel by voxel, keep what must be kept, and fit into memory."""

from typing import Literal

from segcal.calibrators import CALIBRATORS, fits_in_memory, make_calibrator
from segcal.errors import InputError

Preserve = Literal["order", "argmax", "none"]
# What keeps a promise of at least this kind.
ENOUGH = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
# Methods that lower the NLL of all voxels. Those that decide by a selector or a threshold are for those who name them.
QUICK = ("nothing", "mixture", "isotonic")
METHODS = (*QUICK, "convex", "gradient")


def candidates(num_classes: int, preserve: Preserve = "argmax", allow_offset_dependent: bool = False) -> list[str]:
    """Return the names of the calibrators that work voxel by voxel and keep at least `preserve`.

    Those that decide by a selector, a threshold or bins, or see neighbours, are for those who name them.

    >>> candidates(3)
    ['identity', 'ts', 'ets', 'cms_ap', 'cms_op', 'pts', 'iop', 'isotonic']
    """
    if preserve not in ENOUGH:
        raise InputError(f"preserve is {preserve!r}, but it must be order, argmax or none. Choose one of the three.")
    names = []
    for name in CALIBRATORS:
        if not fits_in_memory(name, num_classes):
            continue
        calibrator = make_calibrator(name, 2)  # promises do not depend on the number of classes
        fits = calibrator.fitted_by in METHODS and calibrator.pointwise and calibrator.preserves in ENOUGH[preserve]
        names += [name] if fits and (calibrator.translation_invariant or allow_offset_dependent) else []
    return names


def is_quick(name: str) -> bool:
    """Return whether a candidate is fitted in no time, so that it can compete in every pooling."""
    return name == "ts" or make_calibrator(name, 2).fitted_by in QUICK
