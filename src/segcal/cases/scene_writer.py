"""Writing a scene window by window, like the one that came in.

What was written is read back where that is asked for, window by window, and must be the same bytes. Pixels without
data in any member have none in the result, and no other pixel gets the value that says so. The map of confidence is a
scene of one channel; beside one in GeoTIFF lies a style of QGIS, which loads it by its name.
"""

import hashlib
import math
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.atomic import naming, temporary
from segcal.cases.base import naming_case
from segcal.cases.formats.scene import Scene
from segcal.cases.qgis_style import raster_style
from segcal.cases.raster_file import EXTENSIONS, Where
from segcal.cases.write import MAPS, CaseWriter
from segcal.errors import InputError


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
    made_from, scene = writer.made_from(case_id), writer.format
    assert isinstance(scene, Scene)
    name = scene.path(case_id).name
    with naming_case(case_id), naming(writer.folder / name), temporary(writer.folder) as beside:
        members = [member for member in writer.cases.members if isinstance(member, Scene)]
        blank = next((found for each in members if (found := each.blank(case_id)) is not None), None)
        apart = blank if blank is None or not 0 <= blank <= 1 else math.nan
        header, shown = scene.header(case_id), beside / MAPS / name
        dtype = header.dtype if header.dtype.kind == "f" else np.dtype(np.float32)
        shown.parent.mkdir()
        maps = scene.canvas(case_id, shown, 1, np.dtype(np.float32), apart) if confidence else nullcontext(None)
        digests = []
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
        names = [name]
        if confidence:
            names.insert(0, f"{MAPS}/{name}")
        if confidence and name.lower().endswith(EXTENSIONS):
            names.insert(0, f"{MAPS}/{shown.stem}.qml")
            (beside / names[0]).write_text(raster_style(), "utf-8")
        return writer.records.place(case_id, made_from, beside, names)


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
