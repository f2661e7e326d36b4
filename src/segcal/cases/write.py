"""Writing calibrated scores in the format that came in.

A case is written into a folder of its own beside the target, its header is read back, and only then it is renamed into
place. An interruption leaves complete files or none. What is written decides as promised. That the disk holds it is
compared value by value on request, since it costs as much as reading the case once more. What the format keeps beside
the scores (headers, properties, label maps, other arrays) is kept. Voxels outside the mask, which were never predicted,
keep their values. What each case was made from is recorded (:mod:`segcal.cases.records`): what has changed since is not
done.

A confidence map is written in a form that a viewer opens. Images become 8-bit grey PNG, white for full confidence.
Volumes become float32 NIfTI. They have the geometry of their NIfTI file, which is the scores themselves or the label
map of nnU-Net, else the known voxel size.

**Scenes** are written window by window. Where that is asked for, each is read back and must be the same bytes. Pixels
without data in any member have none in the result, and no other pixel gets the value that says so. The map of
confidence is a scene of one channel; beside one in GeoTIFF lies a style of QGIS, which loads it by its name.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from segcal.atomic import write_text
from segcal.cases.files import FileCases
from segcal.cases.formats import Format
from segcal.cases.formats.scene import Scene
from segcal.cases.kinds import check_kind
from segcal.cases.nifti_file import EXTENSIONS, open_nifti, save_like, turned_back
from segcal.cases.raster_file import EXTENSIONS as RASTERS
from segcal.cases.raster_file import Where, raster_style
from segcal.cases.records import Records
from segcal.errors import InputError, load_extra
from segcal.target import make_folder
from segcal.types import Kind

# Beside the predictions themselves no extra file may lie: tools that read the folder take every file for a case.
MAPS = "confidence"


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.stat().st_size == len(text.encode()) and path.read_bytes() == text.encode()


class CaseWriter:
    """Writes cases into one folder, like those that came in.

    Args:
        cases: the input; of an ensemble, the first member's files are followed.
        folder: the target, made if it is not there; never the input itself.
        kind: what to write: "logits" (calibrated log-probabilities, whose softmax is the calibrated probability),
            "probs" or "sigmoid"; None is the kind that came in.
        made_by: names what is done to the cases; what was done by something else is not done.
        marker: of the file that says it, written before any other.
        verify: whether files are read back and compared as a whole.
    """

    def __init__(
        self,
        cases: FileCases,
        folder: str | Path,
        kind: str | None = None,
        made_by: str = "",
        marker: str = "",
        verify: bool = False,
    ) -> None:
        self.cases = cases
        self.folder = Path(folder)
        self.records = Records(self.folder)
        self._made_by, self.verify = made_by, verify
        self.format: Format = cases.members[0]
        self.kind: Kind = self.format.values_kind or (cases.kind if kind is None else check_kind(kind))
        if self.folder.resolve() in cases.folders():
            raise InputError(
                f"{folder} holds the predictions themselves, but they are never overwritten. Name a new folder."
            )
        if self.format.values_kind is None and not cases.decision.may_become(self.kind, cases.kind):
            raise InputError(
                f"kind is {self.kind!r}, but {cases.kind!r} came in and has another shape. Leave kind out."
            )
        for case_id in cases.ids:
            self.records.require_own(case_id, [path.name for path in self.format.files.get(case_id, ())])
        make_folder(self.folder)
        if marker and not _says(self.folder / marker, made_by):
            write_text(self.folder / marker, made_by)
        self.format.write_shared(self.folder)

    def done(self, case_id: str, confidence: bool = False) -> bool:
        """Whether the case, and if asked for its map, is complete in the target folder, made from what is there now."""
        record = self.records.done(case_id, partial(self.made_from, case_id))
        return record is not None and (not confidence or any(name.startswith(f"{MAPS}/") for name in record.files))

    def write(
        self,
        case_id: str,
        log_probs: Tensor,
        decision: Tensor | None = None,
        confidence: np.ndarray | None = None,
        spacing: tuple[float, ...] | None = None,
    ) -> tuple[Path, ...]:
        """Write one case and return its files.

        Args:
            case_id: its name.
            log_probs: calibrated log-probabilities ``(classes, *space)``; of regions, log-odds.
            decision: the winning class of each voxel of the input, if the calibrator promises to keep it: the
                lowest-index argmax of what is written. Of regions, their masks.
            confidence: the highest probability of each voxel, if a map of it is to be written too.
            spacing: the voxel size along each axis, for the map.
        """

        def make(beside: Path) -> Iterator[Path]:
            names = self._write(case_id, log_probs, None if decision is None else decision.cpu().numpy(), beside)
            if confidence is not None:
                yield write_confidence(self.cases, case_id, confidence, beside, spacing)
            yield from (beside / name for name in names)

        return self.records.write(case_id, self.made_from(case_id), make, self.format.path(case_id).name)

    def made_from(self, case_id: str) -> str:
        """Return a digest of all that the result of a case depends on."""
        return hashlib.sha256(f"{self._made_by} {self.kind} {self.cases.identity(case_id)}".encode()).hexdigest()

    def _write(self, case_id: str, log_probs: Tensor, decision: np.ndarray | None, beside: Path) -> Sequence[str]:
        values = self.encode(case_id, log_probs, decision)
        keeps_label = decision is not None and len(self.cases.members) == 1
        names = self.format.write(case_id, values, beside, None if keeps_label else self._shown(values))
        self._check_written(case_id, values, beside, names[-1])
        return names

    def _check_written(self, case_id: str, values: np.ndarray, beside: Path, name: str) -> None:
        """Refuse a file whose header is another one or, where that is asked for, whose values decide otherwise."""
        copy, fault = self.format.open_copy(beside), "This is a fault of the disk or of segcal: nothing was written."
        shape = copy.header(case_id).shape
        if shape != values.shape:
            raise InputError(f"{name} read back has shape {shape}, but {values.shape} was written. {fault}")
        if not self.verify:
            return
        again = np.asarray(copy.read(case_id).values)
        # The same bytes have the same winner, and are compared in a tenth of the time.
        if not _same_bytes(again, values) and not np.array_equal(self.winner_of(again), self.winner_of(values)):
            raise InputError(
                f"{name} read back has another winning class in some voxels, but the decision is to be kept. {fault}"
            )

    def encode(
        self, case_id: str, log_probs: Tensor, decision: np.ndarray | None, part: Format | None = None
    ) -> np.ndarray:
        """Return what is to be stored, in its dtype and shape, with the decision kept and the padding untouched.

        A `part` is the format that sees only the window of a scene that this is.
        """
        header = (part or self.format).header(case_id)
        dtype = header.dtype if header.dtype.kind == "f" else np.dtype(np.float32)
        name = f"calibrated scores of case {case_id!r}"
        rule = self.cases.decision
        values = rule.encode(log_probs, self.kind, dtype)
        if self.kind != "sigmoid" and values.shape != header.shape:
            raise InputError(f"{name} have shape {values.shape}, but the input has {header.shape}. Keep the shape.")
        stored = self.format.read(case_id) if self.format.has_mask else None
        mask = None if stored is None else stored.mask
        if decision is not None:
            rule.keep(values, decision, mask, self.kind, name)
        values = values.reshape(header.shape)  # a foreground probability may have an axis of channels
        known = self.format.values_kind is None and rule.keeps_padding(self.kind, self.cases.kind)
        if stored is not None and mask is not None and known:
            np.copyto(values, np.asarray(stored.values), where=~mask)
        return values

    def _shown(self, values: np.ndarray) -> np.ndarray:
        """Return the label map of what is to be stored."""
        return self.cases.decision.label_map(torch.from_numpy(self.winner_of(values))).numpy()

    def winner_of(self, values: np.ndarray) -> np.ndarray:
        """Return the decisions of what is to be stored."""
        return self.cases.decision.stored_mask(values, self.kind)


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype) or one.itemsize not in (2, 4, 8):
        return False
    whole = f"u{one.itemsize}"
    return np.array_equal(one.view(whole), other.view(whole))


def write_confidence(
    cases: FileCases, case_id: str, confidence: np.ndarray, folder: Path, spacing: tuple[float, ...] | None = None
) -> Path:
    """Write the confidence ``(*space)`` of one case into a sub-folder of `folder` and return the file."""
    flat = is_flat(cases, case_id, confidence)
    values = np.round(255 * np.clip(confidence, 0, 1)).astype(np.uint8) if flat else confidence.astype(np.float32)
    return write_map(cases, case_id, values, folder / MAPS, spacing)


def write_map(
    cases: FileCases, case_id: str, values: np.ndarray, folder: Path, spacing: tuple[float, ...] | None = None
) -> Path:
    """Write a map ``(*space)`` of one case into a folder, as a viewer opens it, and return the file.

    The voxel size `spacing` is used where no NIfTI file knows it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if is_flat(cases, case_id, values):
        path = folder / f"{case_id}.png"
        Image.fromarray(np.atleast_2d(np.squeeze(values))).save(path, format="PNG")
    else:
        path = folder / f"{case_id}.nii.gz"
        write_volume(cases, case_id, values, path, spacing)
    return path


def is_flat(cases: FileCases, case_id: str, values: np.ndarray) -> bool:
    """Whether a map is flat and no NIfTI file knows its geometry."""
    return len([size for size in values.shape if size > 1]) <= 2 and nifti_of(cases, case_id) is None


def nifti_of(cases: FileCases, case_id: str) -> Path | None:
    """Return the NIfTI file whose geometry the case has."""
    files = cases.members[0].files.get(case_id, ())
    return next((path for path in files if path.name.lower().endswith(EXTENSIONS) and path.is_file()), None)


def write_volume(
    cases: FileCases, case_id: str, confidence: np.ndarray, path: Path, spacing: tuple[float, ...] | None
) -> None:
    """Write values ``(*space)`` of a case as NIfTI, in the geometry of the file that they belong to, if any."""
    nibabel = load_extra("nibabel", "nifti")
    like = nifti_of(cases, case_id)
    if like is None:  # arrays are (z, y, x), files (x, y, z)
        sizes = [*(spacing or ())[::-1], 1.0, 1.0, 1.0][:3]
        nibabel.save(nibabel.Nifti1Image(confidence.T, np.diag([*sizes, 1.0])), path)
        return
    image = open_nifti(like)
    axes = cases.members[0].facts().label_axes
    values = confidence if axes in (None, "xyz") else confidence.T
    if axes == "zyx_ras":
        values = turned_back(values, image)
    # An image may have more axes of length one here than there, and the scores have one of classes.
    space = tuple(image.shape) if math.prod(image.shape) == values.size else values.shape
    header = image.header.copy()
    header.set_data_shape(space)
    save_like(type(image)(np.zeros(space, np.uint8), image.affine, header), values.reshape(space), path)


class ScenePart(NamedTuple):
    """A calibrated window, with what :meth:`CaseWriter.write` takes; `valid` is True where there are data."""

    where: Where
    log_probs: Tensor
    decision: Tensor | None = None
    confidence: np.ndarray | None = None
    valid: Tensor | None = None


def write_scene(
    writer: CaseWriter, case_id: str, parts: Iterable[ScenePart], confidence: bool = False
) -> tuple[Path, ...]:
    """Write one scene, and a map of its confidence if asked for, and return the files."""
    scene = writer.format
    assert isinstance(scene, Scene)
    name = scene.path(case_id).name

    def make(beside: Path) -> Iterator[Path]:
        members = [member for member in writer.cases.members if isinstance(member, Scene)]
        blank = next((found for each in members if (found := each.blank(case_id)) is not None), None)
        apart = blank if blank is None or not 0 <= blank <= 1 else math.nan
        header, shown, digests = scene.header(case_id), beside / MAPS / name, []
        dtype = header.dtype if header.dtype.kind == "f" else np.dtype(np.float32)
        shown.parent.mkdir()
        maps = scene.canvas(case_id, shown, 1, np.dtype(np.float32), apart) if confidence else nullcontext(None)
        with scene.canvas(case_id, beside / name, header.shape[0], dtype, blank) as put, maps as put_map:
            for part in parts:
                values = _encoded(writer, case_id, scene, part, blank)
                put(part.where, values)
                digests += [(part.where, _digest(values))] if writer.verify else []
                if put_map is not None and part.confidence is not None:
                    valid = True if part.valid is None else part.valid.numpy()
                    put_map(part.where, np.where(valid, part.confidence, np.float32(apart or 0))[None])
        again = scene.open_copy(beside)
        if any(_digest(np.asarray(again.part(where).read(case_id).values)) != digest for where, digest in digests):
            raise InputError(
                f"{name} read back has other values, but the same are needed. This is a fault of the disk or of "
                "segcal: nothing was written."
            )
        if confidence and name.lower().endswith(RASTERS):
            shown.with_suffix(".qml").write_text(raster_style(), "utf-8")
            yield shown.with_suffix(".qml")
        yield from [shown, beside / name][not confidence :]

    return writer.records.write(case_id, writer.made_from(case_id), make, name)


def _encoded(writer: CaseWriter, case_id: str, scene: Scene, part: ScenePart, blank: float | None) -> np.ndarray:
    """Return what is to be stored of a window."""
    decision = None if part.decision is None else part.decision.cpu().numpy()
    values = writer.encode(case_id, part.log_probs, decision, scene.part(part.where))
    if part.valid is None or blank is None:
        return values
    valid, nothing = part.valid.numpy(), values.dtype.type(blank)
    if ((values == nothing) & valid).any():
        before, upwards = writer.winner_of(values), writer.kind != "logits" and blank < 0.5
        values[values == nothing] = np.nextafter(nothing, values.dtype.type(math.inf if upwards else -math.inf))
        if not np.array_equal(writer.winner_of(values), before):
            raise InputError(f"nodata is {blank}, but scores lie beside it. Declare a value that no score can have.")
    values[:, ~valid] = nothing
    return values


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()
