"""The state of a fit by gradient on disk: complete or absent; read without running any code it holds."""

import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from segcal.atomic import write_bytes
from segcal.errors import ArtifactError, InputError

VERSION = 1


class FileKeeper:
    """Keeps the state of one training in one file.

    Args:
        path: the file; its folder is made when there is something to write.
        identity: plain data that decides the training; a state of another training is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._identity = {name: _digest(value) for name, value in identity.items()}

    def save(self, state: dict[str, Any]) -> None:
        """Write a state so that a kill at any moment leaves the old file or the new one."""
        content = io.BytesIO()  # a full disk would be an error without a name inside torch
        torch.save({"version": VERSION, "identity": self._identity, **state}, content)
        write_bytes(self._path, content.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """Return the state that was written last; None if there is none."""
        if not self._path.exists():
            return None
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
            raise ArtifactError(
                f"{self._path} is not readable as a checkpoint ({error}), but it must be as segcal wrote it. "
                "Delete it to start again."
            ) from None
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise ArtifactError(
                f"{self._path} is no checkpoint of version {VERSION}, but the fit needs one. Delete it to start again."
            )
        for name, digest in self._identity.items():
            if state["identity"].get(name) != digest:
                raise InputError(
                    f"{self._path} belongs to a fit with another {name}, but the fit goes on only with the same. "
                    "Name another checkpoint folder, or delete this one."
                )
        return state


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
