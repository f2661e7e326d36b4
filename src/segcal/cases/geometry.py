r"""Geometry: where the voxels of files lie in scanner space, and whether the files of one case lie on each other.

Two arrays of one shape may be at different positions: a label map of another visit, or one that a tool mirrored.
Headers tell: an affine takes a voxel :math:`i` as stored (x, y, z) to :math:`A i + o`, millimetres to the right, to the
front and upwards (RAS). Two files agree where each corner of one volume lies within :data:`TOLERANCE` of the smallest
voxel from that of the other. A corner moves most of all voxels, so it speaks of origin, voxel size and direction at
once. Rounding in headers moves corners by a hundredth of a voxel. The smallest fault in practice, corners of voxels
taken for their centres, moves them by half a voxel. A quarter stands between the two.

NIfTI has its position in the sform, else in the qform; with neither (both codes 0) a file says nothing about it.
nnU-Net's properties hold the affine of nibabel, or origin, voxel size and direction of SimpleITK, whose axes point to
the left and back (LPS). SimpleITK itself may have read either form, so either may agree. Axes of length one have no
direction that matters.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segcal.cases import raster_file
from segcal.cases.labels import Axes
from segcal.cases.nifti_file import EXTENSIONS, millimetres, open_nifti, usable_spacing
from segcal.errors import InputError, load_extra

TOLERANCE = 0.25
_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


class Geometry(NamedTuple):
    """The position of a file in space; `affines` are ``(4, 4)``, the first the one that counts."""

    path: Path
    affines: tuple[np.ndarray, ...]
    shape: tuple[int, ...]  # as stored: x, y, z
    reverses: bool = False  # whether the array that is read has its axes the other way round
    either: bool = False  # whether any affine of another file may be the one that was read
    frame: str = ""  # the coordinate reference system of a map

    @property
    def long(self) -> tuple[int, ...]:
        """The axes that are longer than one, in the order of the array."""
        axes = tuple(axis for axis, size in enumerate(self.shape) if size > 1)
        return axes[::-1] if self.reverses else axes

    def corners(self, affine: np.ndarray) -> np.ndarray:
        """Return the corners of the volume in the order of the array, ``(corners, 3)``."""
        axes = list(self.long)
        ends = affine[:3, axes] * (np.array(self.shape, int)[axes] - 1)
        return affine[:3, 3] + np.array(list(product((0, 1), repeat=len(axes)))) @ ends.T

    def smallest(self, affine: np.ndarray) -> float:
        """Return the smallest voxel size along axes that are longer than one."""
        return float(min(np.linalg.norm(affine[:3, axis]) for axis in self.long or range(3)))


def nifti_geometry(path: Path, axes: Axes | None = None, space: int = 3) -> list[Geometry]:
    """Return the geometry of a NIfTI file, or nothing where its header has none.

    Its array is read with `axes`, and the first `space` of them are axes of space.
    """
    image = open_nifti(path)
    scale = np.diag([millimetres(image)] * 3 + [1.0])
    affines = tuple(scale @ form for form in _forms(image) if form is not None)
    if not affines or not _usable(affines[0]):
        return []
    shape = (*(int(size) for size in image.shape[: min(space, 3)]), 1, 1, 1)[:3]
    if axes == "zyx_ras":
        turns = load_extra("nibabel", "nifti").orientations
        turn = turns.io_orientation(affines[0])
        affines = tuple(affine @ turns.inv_ornt_aff(turn, shape) for affine in affines)
        shape = tuple(shape[axis] for axis in np.argsort(turn[:, 0]))
    usable = tuple(affine for affine in affines if _usable(affine))
    return [Geometry(path, usable, shape, axes in ("zyx", "zyx_ras"))]


def _forms(image: Any) -> Iterator[np.ndarray | None]:
    """Yield sform and qform where they are declared; a quaternion may be of any numbers."""
    if hasattr(image.header, "get_sform"):
        yield image.header.get_sform(coded=True)[0]
        with suppress(ValueError, load_extra("nibabel", "nifti").spatialimages.HeaderDataError):
            yield image.header.get_qform(coded=True)[0]


def raster_geometry(path: Path) -> list[Geometry]:
    """Return the geometry of a GeoTIFF file, an array ``(y, x)``; nothing where it has no affine."""
    with raster_file.open_raster(path) as file:
        there, frame = file.transform, "" if file.crs is None else file.crs.to_wkt()
        affine = np.array(
            [[there.a, there.b, 0, there.c], [there.d, there.e, 0, there.f], [0, 0, 1, 0], [0, 0, 0, 1.0]]
        )
        if there.is_identity or not _usable(affine):
            return []
        return [Geometry(path, (affine,), (file.width, file.height, 1), reverses=True, frame=frame)]


def file_geometry(path: Path, axes: Axes | None) -> list[Geometry]:
    """Return what a file of labels or images says about its position; most formats say nothing."""
    if path.name.lower().endswith(raster_file.EXTENSIONS):
        return raster_geometry(path)
    return nifti_geometry(path, axes) if path.name.lower().endswith(EXTENSIONS) else []


def nnunet_geometry(path: Path, properties: Mapping[str, object], space: tuple[int, ...]) -> list[Geometry]:
    """Return the geometry in nnU-Net's properties of an array ``(z, y, x)``; nothing where they have none."""
    stuff = [properties.get(name) for name in ("sitk_stuff", "nibabel_stuff")]
    itk, nibabel = (each if isinstance(each, Mapping) else {} for each in stuff)
    affine = _numbers(nibabel.get("reoriented_affine", nibabel.get("original_affine")), 16)
    sizes = usable_spacing(itk.get("spacing"))
    if affine is None and sizes is not None and len(sizes) in (2, 3):
        origin, direction = _numbers(itk.get("origin"), len(sizes)), _numbers(itk.get("direction"), len(sizes) ** 2)
        if origin is not None and direction is not None:
            own = np.eye(4)
            own[: len(sizes), : len(sizes)] = direction.reshape(len(sizes), -1) * sizes
            own[: len(sizes), 3] = origin
            affine = _TO_RAS @ own
    if affine is None or not _usable(affine.reshape(4, 4)):
        return []
    return [Geometry(path, (affine.reshape(4, 4),), space[::-1], reverses=True, either=bool(itk))]


def check_alike(found: Iterable[Geometry]) -> None:
    """Refuse files that do not lie on the first of them; of other shapes nothing is said here."""
    first: Geometry | None = None
    for each in found:
        first = first or each
        if first.frame and each.frame and first.frame != each.frame:
            raise InputError(
                f"{each.path} has another coordinate reference system than {first.path}, but files of one case must "
                "lie on each other. Reproject one, or pass ignore_geometry=True if pixels do and a header is wrong."
            )
        if [first.shape[axis] for axis in first.long] != [each.shape[axis] for axis in each.long]:
            continue
        ones, others = (one.affines if first.either or each.either else one.affines[:1] for one in (first, each))
        pairs = list(product(ones, others))
        apart = [np.linalg.norm(first.corners(one) - each.corners(other), axis=1).max() for one, other in pairs]
        allowed = [TOLERANCE * min(first.smallest(one), each.smallest(other)) for one, other in pairs]
        if all(distance > most for distance, most in zip(apart, allowed, strict=True)):
            unit = "units of the map" if first.frame else "mm"
            order = ", read with its axes reversed" if each.reverses != first.reverses else ""
            raise InputError(
                f"{each.path} has the affine {written(each.affines[0])}{order}, but {first.path} has "
                f"{written(first.affines[0])}: corners lie up to {apart[0]:.4g} {unit} apart, and {allowed[0]:.3g} "
                f"{unit} are allowed. Bring both into one space, or pass ignore_geometry=True if voxels lie on each "
                "other and a header is wrong."
            )


def written(affine: np.ndarray) -> str:
    """Return an affine in one line.

    >>> written(np.diag([-1.25, 1.25, 10, 1]))
    '[-1.25 0 0 0; 0 1.25 0 0; 0 0 10 0]'
    """
    return f"[{'; '.join(' '.join(f'{value + 0.0:.6g}' for value in row) for row in affine[:3])}]"


def _usable(affine: np.ndarray) -> bool:
    """Whether the axes span space, in numbers that can be computed with."""
    sizes = usable_spacing(np.linalg.norm(affine[:3, :3], axis=0)) if np.isfinite(affine).all() else None
    return sizes is not None and abs(np.linalg.det(affine[:3, :3] / sizes)) > 1e-6


def _numbers(values: object, count: int) -> np.ndarray | None:
    """Return so many numbers as a file has them, or None."""
    if not isinstance(values, list | tuple | np.ndarray):
        return None
    flat = np.ravel(np.asarray(values, object))
    if len(flat) != count or not all(isinstance(value, int | float | np.number) for value in flat):
        return None
    return flat.astype(np.float64)
