"""The box of a trial: a small world with all that commands read and write, and with what is none of their business.

It is made once, by segcal's own commands, and copied for every trial to the place where it was made (parts keep whole
paths). ``work`` is where commands run, ``home`` and ``tmp`` are HOME and TMPDIR, ``elsewhere`` is somebody else's.
"""

import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.campaign.commands import MADE
from benchmarks.campaign.judge import look
from benchmarks.campaign.watch import Step, run_step

CASES = 10
FOLDER = "a folder"
PROTOCOL = """repeats = 1
metrics = ["nll"]
studies = []
split = {cal = 5, val = 3}
pipelines = [{pooling = "single", calibrator = "ts"}]
bootstrap = {replicates = 10}

[[tasks]]
name = "t"
members = ["p"]
labels = "y"
kind = "logits"
"""


class Box:
    """One box: `own` has the command that made each path of segcal's, `faults` what a trial found by itself."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self._kept = root, root / "work", root.with_name(root.name + "-kept")
        self.faults: list[tuple[str, str]] = []
        self._made: dict[str, str] = {}
        self.own: dict[str, str] = {}

    def build(self) -> None:
        """Make the inputs and let segcal make the rest, then keep a copy."""
        for name in ("work", "home", "tmp", "elsewhere"):
            (self.root / name).mkdir(parents=True)
        self._fork(lambda: inputs(self.root))
        for command in MADE:
            before = look(self.root)
            outcome = run_step(Step(command), self.root)
            self._made |= {path: command[0] for path in look(self.root) if path not in before}
            if outcome.code != 0:
                raise RuntimeError(f"segcal {' '.join(command)} ended with {outcome.code}: {outcome.err}")
        shutil.copytree(self.root, self._kept, symlinks=True)

    def reset(self) -> None:
        """Bring the box back to its beginning; what is as it was stays."""
        for folder, _, _ in os.walk(self.root):
            Path(folder).chmod(0o755)
        there, kept = _stamps(self.root), _stamps(self._kept)
        for name in sorted(there, reverse=True):
            if kept.get(name) != there[name]:
                (self.root / name).rmdir() if there[name] == FOLDER else (self.root / name).unlink()
        for name in sorted(kept):
            if kept[name] == FOLDER:
                (self.root / name).mkdir(exist_ok=True)
            elif there.get(name) != kept[name]:
                shutil.copy2(self._kept / name, self.root / name, follow_symlinks=False)
        one, other = self.work / "hard.npy", self.work / "q" / "c0.npy"
        if not one.samefile(other):  # a link is made anew only if it must be: that is seen in the time of the file
            one.unlink()
            one.hardlink_to(other)
        self.own, self.faults = dict(self._made), []

    def __truediv__(self, name: str) -> Path:
        return self.work / name

    @staticmethod
    def _fork(make: Callable[[], None]) -> None:
        """Make something in a process of its own: libraries that start threads must not do so in this one."""
        child = os.fork()
        if not child:
            try:
                make()
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def _stamps(root: Path) -> dict[str, tuple[int, ...] | str]:
    """Return what tells by path whether an entry was changed: where links lead, and size and time of files."""
    found: dict[str, tuple[int, ...] | str] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            facts = path.lstat()
            plain = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
            link = str(path.readlink()) if stat.S_ISLNK(facts.st_mode) else None
            found[str(path.relative_to(root))] = link or (FOLDER if stat.S_ISDIR(facts.st_mode) else plain)
    return found


def inputs(root: Path) -> None:
    """Write predictions in every format, labels, images, and files that are nobody's business."""
    work = root / "work"
    (root / "elsewhere" / "secret.txt").write_text("not yours\n")
    (root / "home" / ".netrc").write_text("machine planted.invalid login a password b\n")
    (work / "notes.txt").write_text("what the user knows\n")
    (work / ".hidden").write_text("settings of the user\n")
    (work / "link.txt").symlink_to(root / "elsewhere" / "secret.txt")
    (work / "folder").symlink_to(root / "elsewhere")
    (work / "protocol.toml").write_text(PROTOCOL)
    (work / "groups.csv").write_text("id,group\n" + "".join(f"c{n},g{n // 2}\n" for n in range(CASES)))
    (work / "subgroups.csv").write_text("case,subgroup\n" + "".join(f"c{n},s{n % 2}\n" for n in range(CASES)))
    rng = np.random.default_rng(0)
    for number in range(CASES):
        logits = 3 * rng.normal(size=(3, 6, 5)).astype(np.float32)
        labels = np.where(rng.random((6, 5)) < 0.2, 0, logits.argmax(0)).astype(np.uint8)
        _arrays(work, f"c{number}", logits, labels, few=number < 3)
    dataset = {"labels": {"background": 0, "a": 1, "b": 2}, "file_ending": ".nii.gz"}
    (work / "hard.npy").hardlink_to(work / "q" / "c0.npy")
    (work / "nn" / "dataset.json").write_text(json.dumps(dataset))
    (work / "nn" / "plans.json").write_text(json.dumps({"transpose_forward": [0, 1, 2]}))


def _arrays(work: Path, name: str, logits: np.ndarray, labels: np.ndarray, few: bool) -> None:
    """Write one case in every format; `few`: in the formats beside npy too."""
    for folder in ("p", "y", "q", "m", "npz", "st", "zarr", "nii", "niiy", "nn", "png", "images"):
        (work / folder).mkdir(exist_ok=True)
    np.save(work / "p" / f"{name}.npy", logits)
    np.save(work / "y" / f"{name}.npy", labels)
    if not few:
        return
    import nibabel
    import zarr
    from PIL import Image
    from safetensors.numpy import save_file

    np.save(work / "q" / f"{name}.npy", logits)
    np.save(work / "m" / f"{name}.npy", logits[:, ::-1] / 2)
    np.savez(work / "npz" / f"{name}.npz", logits)
    save_file({"logits": logits}, work / "st" / f"{name}.safetensors")
    stored = zarr.create_array(str(work / "zarr" / f"{name}.zarr"), shape=logits.shape, chunks=(3, 6, 5), dtype="f4")
    stored[...] = logits
    volume = np.moveaxis(logits, 0, -1)[:, :, None]
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), work / "nii" / f"{name}.nii.gz")
    nibabel.save(nibabel.Nifti1Image(labels[..., None], np.eye(4)), work / "niiy" / f"{name}.nii.gz")
    shares = np.exp(logits) / np.exp(logits).sum(0)
    np.savez(work / "nn" / f"{name}.npz", probabilities=shares.transpose(0, 2, 1)[:, None])
    facts = {
        "spacing": [1.0, 1.0, 1.0],
        "shape_before_cropping": (1, 5, 6),
        "bbox_used_for_cropping": [[0, 1], [0, 5], [0, 6]],
    }
    (work / "nn" / f"{name}.pkl").write_bytes(pickle.dumps(facts))
    shown = nibabel.Nifti1Image(logits.argmax(0).astype(np.uint8)[..., None], np.eye(4))
    nibabel.save(shown, work / "nn" / f"{name}.nii.gz")
    Image.fromarray(labels).save(work / "png" / f"{name}.png")
    kinds = {"c0": "png", "c1": "jpg", "c2": "tif"}
    Image.fromarray(40 * labels).save(work / "images" / f"{name}.{kinds[name]}")
