"""Saving and loading: a folder with ``calibrator.json`` and ``weights.safetensors``, never a pickle.

The folder is written beside its place and renamed into it, so that it is complete or absent. The JSON carries a digest
of itself and of the weights: what was edited or cut short is noticed, and says so instead of answering wrongly.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from segcal.calibrators import make_calibrator, registry_entry
from segcal.calibrators.base import Calibrator
from segcal.errors import ArtifactError, InputError
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.version import __version__

SCHEMA = 1
DESCRIPTION = "calibrator.json"
WEIGHTS = "weights.safetensors"


def save(fitted: Fitted, folder: str | os.PathLike[str]) -> Path:
    """Write a fitted calibrator to a folder; an older artefact in its place is replaced as a whole.

    Args:
        fitted: what :func:`segcal.fit` returned.
        folder: where to; must not exist, be empty, or hold an older artefact.
    """
    if not isinstance(fitted, Fitted):
        raise InputError(
            f"fitted is {type(fitted).__name__}, but the result of segcal.fit is needed. Pass that object."
        )
    target = Path(folder)
    if target.exists() and not _replaceable(target):
        raise InputError(
            f"{target} exists and is not a calibrator of segcal, but a new or empty folder is needed. "
            "Choose another name."
        )
    weights = save_tensors(
        {key: value.detach().cpu().contiguous() for key, value in fitted.calibrator.state_dict().items()}
    )
    description = _describe(fitted, hashlib.sha256(weights).hexdigest())
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (beside / WEIGHTS).write_bytes(weights)
        (beside / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", "utf-8")
        beside.chmod(0o755)
        _put_in_place(beside, target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return target


def load(folder: str | os.PathLike[str]) -> Fitted:
    """Read a fitted calibrator back, exactly as it was saved."""
    path = Path(folder)
    description = _read_description(path)
    calibrator = _empty_calibrator(path, description)
    _load_weights(path, description, calibrator)
    try:
        certificate = _revive(description["certificate"])
        config = FitConfig(**description["config"])
        names = description["class_names"]
        return Fitted(
            calibrator=calibrator.eval().requires_grad_(False),
            certificate=certificate,
            config=config,
            class_names=None if names is None else tuple(names),
            pooling=description["pooling"],
            kind=description["kind"],
            fingerprint=description["fingerprint"],
            calibration_ids=tuple(description["calibration_ids"]),
            validation_ids=tuple(description["validation_ids"]),
            origin=str(description.get("origin", "")),
        )
    except (KeyError, TypeError) as error:
        raise _broken(path / DESCRIPTION, f"lacks or misspells {error}") from None


def _describe(fitted: Fitted, weights_digest: str) -> dict[str, Any]:
    entry = registry_entry(fitted.calibrator)
    if entry is None:
        raise InputError(
            f"the calibrator is a {type(fitted.calibrator).__name__}, but only calibrators of segcal.CALIBRATORS "
            "can be saved. Save its state_dict yourself."
        )
    name, options = entry
    description = {
        "schema": SCHEMA,
        "segcal": __version__,
        "name": name,
        "num_classes": fitted.calibrator.num_classes,
        "options": options,
        "translation_invariant": fitted.calibrator.translation_invariant,
        "preserves": fitted.calibrator.preserves,
        "class_names": None if fitted.class_names is None else list(fitted.class_names),
        "pooling": fitted.pooling,
        "kind": fitted.kind,
        "config": fitted.config.to_dict(),
        "certificate": fitted.certificate.to_dict(),
        "fingerprint": fitted.fingerprint,
        "calibration_ids": list(fitted.calibration_ids),
        "validation_ids": list(fitted.validation_ids),
        "origin": fitted.origin,
        "weights_sha256": weights_digest,
    }
    return {**description, "digest": _digest(description)}


def _digest(description: dict[str, Any]) -> str:
    plain = json.dumps({key: value for key, value in description.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def _read_description(path: Path) -> dict[str, Any]:
    file = path / DESCRIPTION
    if not file.is_file():
        raise ArtifactError(
            f"{path} has no {DESCRIPTION}, but a folder written by segcal.save is needed. Check the path, or fit again."
        )
    try:
        description = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _broken(file, f"is not readable as JSON ({error})") from None
    if not isinstance(description, dict) or not isinstance(description.get("schema"), int):
        raise _broken(file, "does not name its schema")
    if description["schema"] > SCHEMA:
        raise ArtifactError(
            f"{file} has schema {description['schema']}, but this segcal reads up to {SCHEMA}. "
            f"Update segcal; it was written by version {description.get('segcal')}."
        )
    if description.get("digest") != _digest(description):
        raise _broken(file, "was changed after it was written")
    return description


def _empty_calibrator(path: Path, description: dict[str, Any]) -> Calibrator:
    try:
        return make_calibrator(description["name"], description["num_classes"], **description["options"])
    except InputError as error:
        raise ArtifactError(
            f"{path / DESCRIPTION} describes a calibrator that this segcal does not know: {error} Update segcal."
        ) from None
    except (KeyError, TypeError) as error:
        raise _broken(path / DESCRIPTION, f"lacks or misspells {error}") from None


def _load_weights(path: Path, description: dict[str, Any], calibrator: Calibrator) -> None:
    file = path / WEIGHTS
    if not file.is_file():
        raise ArtifactError(f"{path} has no {WEIGHTS}, but it belongs to {DESCRIPTION}. Copy the whole folder again.")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != description.get("weights_sha256"):
        raise _broken(file, f"is not the one that {DESCRIPTION} describes: cut short, edited or mixed up")
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise _broken(file, f"is not readable as safetensors ({error})") from None
    wanted = {key: tuple(value.shape) for key, value in calibrator.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in tensors.items()}
    if wanted != found:
        raise _broken(file, f"holds {found}, but {description['name']} needs {wanted}")
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise _broken(file, "holds values that are not finite")
    calibrator.load_state_dict(tensors)


def _replaceable(target: Path) -> bool:
    return target.is_dir() and {child.name for child in target.iterdir()} <= {DESCRIPTION, WEIGHTS}


def _put_in_place(beside: Path, target: Path) -> None:
    if not target.exists():
        beside.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / target.name)
    beside.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _revive(data: dict[str, Any]) -> Certificate:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Certificate(**fields)


def _broken(file: Path, what: str) -> ArtifactError:
    return ArtifactError(f"{file} {what}, but it must be as segcal wrote it. Copy the folder again, or fit again.")
