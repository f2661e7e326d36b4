"""The results of the study on disk: one JSON file per network, small arrays beside it, and one archive of them all.

A trained network stands here between the process that trains it and the one that measures it. Weights are float16, as
those of the shipped networks, and the statistics of normalisation float32; the record of the training is JSON in the
same file.
"""

import json
import sys
import traceback
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from segcal.atomic import write_bytes, write_text, written
from segcal.documents import parse_json
from segcal.errors import ArtifactError

SCHEMA = 1
FACTS = "facts"


def write_row(folder: Path, name: str, row: Mapping[str, Any]) -> None:
    """Write the result of one network; the reason of an earlier failure goes."""
    write_text(folder / f"{name}.json", json.dumps({"schema": SCHEMA, **row}, separators=(",", ":")))
    (folder / f"{name}.error.txt").unlink(missing_ok=True)


def write_failure(folder: Path, name: str, error: Exception) -> None:
    """Say that a network failed, and keep the reason beside the results."""
    text = "".join(traceback.format_exception(error))
    (folder / f"{name}.error.txt").write_text(text, encoding="utf-8")
    print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)


def write_arrays(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    """Write small arrays."""
    with written(folder / f"{name}.npz") as beside:
        np.savez_compressed(beside, **arrays)


def pack(folder: Path, archive: Path) -> int:
    """Put all finished files of a folder into one archive and return how many."""
    files = sorted(
        path for path in folder.iterdir() if path.suffix in (".json", ".npz", ".txt") and path.name[0] != "."
    )
    packed = 0
    with written(archive) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as target:
        for path in files:
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # a failure, and another process has just written the row
                continue
            # A fixed date: the same results are the same bytes.
            target.writestr(zipfile.ZipInfo(path.name), data, zipfile.ZIP_DEFLATED)
            packed += 1
    return packed


def unpack(archive: Path, folder: Path) -> None:
    """Take the files of an archive out, so that a study can go on from them; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as source:
        for name in source.namelist():
            if Path(name).name == name and not (folder / name).exists():
                (folder / name).write_bytes(source.read(name))


def read_rows(archives: Iterable[Path]) -> list[dict[str, Any]]:
    """Read the results of all networks from archives, in the order of their names; the first of equal names counts."""
    rows: dict[str, dict[str, Any]] = {}
    for archive in archives:
        with zipfile.ZipFile(archive) as source:
            for name in source.namelist():
                if name.endswith(".json") and name != f"{FACTS}.json":
                    row = parse_json(source.read(name))
                    if row.get("schema") != SCHEMA:
                        raise ArtifactError(f"{name} in {archive} is not of schema {SCHEMA}. Run the study again.")
                    rows.setdefault(name, row)
    return [rows[name] for name in sorted(rows)]


def read_arrays(archives: Iterable[Path], name: str) -> dict[str, np.ndarray] | None:
    """Read the arrays of one name, or None where there are none."""
    for archive in archives:
        with zipfile.ZipFile(archive) as source:
            if f"{name}.npz" in source.namelist():
                with source.open(f"{name}.npz") as file, np.load(file) as arrays:
                    return dict(arrays)
    return None


def write_weights(path: Path, network: nn.Module, record: Mapping[str, Any]) -> None:
    """Write a network and its record."""
    tensors = {name: _narrowed(name, value) for name, value in network.state_dict().items()}
    write_bytes(path, save(tensors, {"record": json.dumps(record)}))


def read_weights(path: Path, network: nn.Module) -> dict[str, Any]:
    """Put weights into a network, and return the record; a file that is damaged is removed, to be made again."""
    try:
        with safe_open(path, framework="pt") as file:
            record: dict[str, Any] = parse_json(file.metadata()["record"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        path.unlink(missing_ok=True)
        raise ArtifactError(
            f"{path} was not readable as weights ({error}) and is removed. Run the study again."
        ) from None
    network.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    )
    return record


def _narrowed(name: str, value: Tensor) -> Tensor:
    narrow = value.is_floating_point() and not name.endswith(("running_mean", "running_var"))
    return (value.to(torch.float16) if narrow else value).detach().cpu().contiguous()
