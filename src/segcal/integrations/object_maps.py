"""Objects as maps for viewers: NIfTI with one number per object, and DICOM SEG with one segment per object.

``CASE_objects.nii.gz`` holds the number of the object at each voxel, and ``CASE_real.nii.gz`` the probability that it
is real; of several structures, each has files of its own, ``CASE_STRUCTURE_objects.nii.gz``. DICOM SEG
(:mod:`segcal.integrations.dicom`) has the objects that are most likely real, as many as fit :data:`MOST_VALUES`.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from segcal.atomic import written
from segcal.cases.base import CaseError
from segcal.cases.files import FileCases
from segcal.cases.write import write_volume
from segcal.fitting.certificate import Fitted
from segcal.integrations.dicom import write_dicom_seg
from segcal.integrations.segments import read_segments
from segcal.names import class_titles, file_names
from segcal.trust.components import components
from segcal.trust.object_rows import ObjectRow
from segcal.trust.objects import known_objects

# Values of all segments of a case: four bytes each.
MOST_VALUES = 1 << 28


class ObjectMaps:
    """Writes the maps of one case after the other; picklable, for several processes.

    Args:
        fitted: with what it knows of objects.
        cases: as they are opened.
        rows: of :func:`segcal.objects`.
        folder: where to; see :func:`segcal.trust.guarantees.masks_folder`.
        series: a folder with one sub-folder of DICOM images per case, for DICOM SEG; None for NIfTI.
    """

    def __init__(
        self, fitted: Fitted, cases: FileCases, rows: Sequence[ObjectRow], folder: Path, series: Path | None = None
    ) -> None:
        self._fitted, self._cases, self._folder, self._series = fitted, cases.with_disagreement(), folder, series
        self._real = {row[:3]: row.p_real for row in rows}
        known, self._titles = known_objects(fitted), class_titles(fitted.class_names, fitted.calibrator.num_classes)
        self._known, self._names = known, file_names(self._titles)

    def places(self, case_id: str) -> list[Path]:
        """Return where the maps of a case go."""
        if self._series is not None:
            return [self._folder / f"{case_id}_{kind}.dcm" for kind in ("probability", "mask")]
        several = len(self._known.structures) > 1
        names = [f"{case_id}_{self._names[number]}" if several else case_id for number in self._known.structures]
        return [self._folder / f"{name}_{kind}.nii.gz" for name in names for kind in ("objects", "real")]

    def __call__(self, case_id: str) -> tuple[Path, ...]:
        """Write one case."""
        case, paths = self._cases.checked(case_id), self.places(case_id)
        space, segments = tuple(case.logits.shape[1:]), []
        structures, smallest = self._known.structures, self._known.rule.smallest
        for place, found in enumerate(components(self._fitted.calibrator, case, structures, smallest)):
            title, numbers = self._titles[found.structure], np.zeros(space, np.int32)
            numbers[found.box] = found.numbers
            real = [self._real.get((case_id, title, k + 1)) or 0.0 for k in range(numbers.max(initial=0))]
            segments += [(chance, f"{title} {k + 1}", found, k + 1) for k, chance in enumerate(real)]
            pair = (numbers, np.array([0.0, *real], np.float32)[numbers])
            for path, values in zip(paths[2 * place :], pair if self._series is None else (), strict=False):
                with written(path) as beside:
                    write_volume(self._cases, case_id, values, beside, case.spacing)
        if self._series is None:
            return tuple(paths)
        if not segments:
            raise CaseError(case_id, "it has no object, but a DICOM SEG has at least one segment. Leave it out.")
        likely = sorted(segments, key=lambda each: -each[0])[: max(1, MOST_VALUES // prod(space) - 1)]
        probs = np.zeros((len(likely) + 1, *space), np.float32)
        probs[0] = 1
        for number, (chance, _, found, own) in enumerate(likely, start=1):
            mask = found.numbers == own
            probs[0][found.box][mask], probs[number][found.box][mask] = 0, max(chance, 1 / 255)
        coded = read_segments(None, [f"{name} (p = {chance:.2f})" for chance, name, _, _ in likely], "segcal objects")
        return tuple(write_dicom_seg(probs, self._cases, case_id, self._series / case_id, self._folder, coded))
