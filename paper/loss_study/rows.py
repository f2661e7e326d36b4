"""The results of the study on disk: one JSON file per network and pictures, and lines that pages read.

A trained network stands here between the process that trains it and the one that measures it. Weights are float16, as
those of the shipped networks, and the statistics of normalisation float32; the record of the training is JSON in the
same file.
"""

import io
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from segcal.atomic import write_bytes, write_text
from segcal.documents import parse_json
from segcal.errors import ArtifactError

# What is kept of the row of a network.
Keep: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
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


def write_picture(folder: Path, name: str, picture: np.ndarray) -> None:
    """Write numbers of 8 bits, ``(rows, columns)`` or with three colours, as a PNG; signs come back by ``view``."""
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture).view(np.uint8)).save(content, "PNG")
    write_bytes(folder / f"{name}.png", content.getvalue())


def collect(folder: Path, lines: Path, keep: Keep = dict) -> int:
    """Write what pages are made from beside each other: rows as lines of JSON, pictures in a folder of the same name.

    Args:
        folder: one JSON file per network, and pictures.
        lines: the file of lines; the same results are the same bytes.
        keep: returns what is kept of a row.

    Returns:
        How many networks there are.
    """
    rows = {path.stem: parse_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("[!.]*.json"))}
    kept = ({"name": name, **(row if name == FACTS else keep(row))} for name, row in rows.items())
    write_text(lines, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept))
    for path in sorted(folder.glob("[!.]*.png")):
        write_bytes(lines.with_suffix("") / path.name, path.read_bytes())
    return len(rows.keys() - {FACTS})


def read_lines(sources: Iterable[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of all networks in the order of their names, the first of equal names, and the facts of runs."""
    rows: dict[str, dict[str, Any]] = {}
    facts = []
    for source in sources:
        for line in source.read_text(encoding="utf-8").splitlines():
            row = parse_json(line)
            name = row.pop("name", "a line")
            if row.get("schema") != SCHEMA:
                raise ArtifactError(f"{name} in {source} is not of schema {SCHEMA}. Run the study again.")
            if name == FACTS:
                facts.append(row)
            else:
                rows.setdefault(name, row)
    return [rows[name] for name in sorted(rows)], facts


def read_picture(sources: Iterable[Path], name: str) -> np.ndarray | None:
    """Read the picture of one name, or None where there is none."""
    for source in sources:
        path = source.with_suffix("") / f"{name}.png"
        if path.exists():
            with Image.open(path) as picture:
                return np.asarray(picture)
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
