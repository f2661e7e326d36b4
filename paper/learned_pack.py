"""Pack the three ensembles of `protocols/conic.toml` for a machine that has no data.

``python -m paper.learned_pack DATA PACKED`` writes one archive per ensemble, about 107 MiB together: per case the
gaps of the mean logits to their winner, the labels, and how much the members disagree. Gaps are rounded to steps of
about (1 + gap) / 32; of a class that is not the winner at least one step is left. Of street scenes every second voxel
along both axes is kept. All that is compared on packed cases sees the same numbers.
"""

import argparse
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from segcal.benchmark.protocol import Protocol, load_protocol
from segcal.cases.arrays import HeldCases, Raw
from segcal.cases.base import Case
from segcal.cases.split import resolve_groups

PROTOCOL = Path(__file__).parent / "protocols" / "conic.toml"
GAP_STEPS, DISAGREEMENT_STEPS, LEAST_INFORMATION = 32, 4, 1e-6
# Every n-th voxel along the last two axes.
STRIDES = {"camvid": 2}


def pack(protocol: Protocol, folder: Path) -> None:
    """Write the archives."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in protocol.tasks:
        step = STRIDES.get(task.name, 1)
        cases = protocol.open(task, "mean_logits").cases
        with zipfile.ZipFile(folder / f"{task.name}.zip", "x", zipfile.ZIP_LZMA) as archive:
            for case in cases:
                for name, values in packed(case, step).items():
                    content = io.BytesIO()
                    np.save(content, values)
                    archive.writestr(f"{case.id}/{name}.npy", content.getvalue())


def packed(case: Case, step: int) -> dict[str, np.ndarray]:
    """Return what is kept of a case, in bytes."""
    logits = case.logits[..., ::step, ::step].double()
    gaps = logits.amax(0, keepdim=True) - logits
    codes = (GAP_STEPS * gaps.log1p()).round().clamp(1, 255)
    codes.scatter_(0, logits.argmax(0, keepdim=True), 0)
    assert case.disagreement is not None
    assert case.labels is not None
    information = (case.disagreement.double().clamp(min=LEAST_INFORMATION) / LEAST_INFORMATION).log()
    kept = {"gaps": codes, "disagreement": (DISAGREEMENT_STEPS * information).round()[..., ::step, ::step]}
    parts = {name: values.to(torch.uint8).numpy() for name, values in kept.items()}
    return parts | {"labels": case.labels[..., ::step, ::step].to(torch.int8).numpy()}


class PackedCases(HeldCases):
    """Cases of an archive; with `images`, by case, what a calibrator is to see beside the logits."""

    def __init__(self, path: Path, groups: str, images: Mapping[str, Tensor] | None = None) -> None:
        self._archive, self.images = zipfile.ZipFile(path), images or {}
        ids = list(dict.fromkeys(name.split("/")[0] for name in self._archive.namelist()))
        super().__init__(ids, self.logits(ids[0]), -1, resolve_groups(groups, ids), "logits", "mean_logits", None)

    def _part(self, case_id: str, name: str) -> Tensor:
        return torch.from_numpy(np.load(io.BytesIO(self._archive.read(f"{case_id}/{name}.npy"))))

    def logits(self, case_id: str) -> Tensor:
        """Return the logits, zero for the winner."""
        return -torch.expm1(self._part(case_id, "gaps").float() / GAP_STEPS)

    def log_information(self, case_id: str) -> Tensor:
        """Return the logarithm of the members' mutual information."""
        codes = self._part(case_id, "disagreement").float()
        return codes / DISAGREEMENT_STEPS + float(np.log(LEAST_INFORMATION))

    def raw(self, case_id: str) -> Raw:
        """Return one case."""
        labels = self._part(case_id, "labels").long()
        return Raw(self.logits(case_id), labels, image=self.images.get(case_id))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="the data root")
    parser.add_argument("packed", type=Path, help="a folder for the archives")
    chosen = parser.parse_args()
    pack(load_protocol(PROTOCOL, chosen.data), chosen.packed)
