"""A trained network of the study on disk, between the process that trains it and the one that measures it.

Weights are float16, as those of the shipped networks, and the statistics of normalisation float32. What happened in
training stands beside them as JSON, in the same file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from segcal.atomic import write_bytes
from segcal.documents import parse_json
from segcal.errors import ArtifactError


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
