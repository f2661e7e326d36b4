"""The voxel size of a case, where its file has a usable one.

A file may declare anything: zero, infinity, a number of a thousand digits. Distances are computed from it, so it is
taken only if squares of it, and of lengths made of it, are ordinary numbers; else the size counts as unknown.
"""

import numpy as np

SMALLEST, LARGEST = 1e-12, 1e12


def usable_spacing(values: object, axes: int | None = None) -> tuple[float, ...] | None:
    """Return the voxel size along each axis, or None.

    Args:
        values: what a file says.
        axes: how many axes it must have, if that is known.

    >>> usable_spacing([1, 0.5]), usable_spacing([1.0, 10**400]), usable_spacing("ab")
    ((1.0, 0.5), None, None)
    """
    if not isinstance(values, list | tuple | np.ndarray) or (axes is not None and len(values) != axes):
        return None
    if not all(isinstance(value, int | float | np.number) and SMALLEST <= value <= LARGEST for value in values):
        return None
    return tuple(float(value) for value in values)
