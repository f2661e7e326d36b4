"""Saving and loading: a folder with ``calibrator.json`` and ``weights.safetensors``, never a pickle.

The folder is complete or absent, and an older one in its place is the old one or the new one whatever happens. The
JSON carries a digest of itself and of the weights: what was edited or cut short is noticed, and says so instead of
answering wrongly; and by its digest an artefact of ours is known from a file of somebody else's with the same name.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from segcal.atomic import sweep, written
from segcal.calibrators import make_calibrator, registry_entry
from segcal.calibrators.base import Calibrator
from segcal.documents import parse_json, read_text
from segcal.errors import ArtifactError, InputError
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.version import __version__

SCHEMA = 1
DESCRIPTION = "calibrator.json"
WEIGHTS = "weights.safetensors"
# No fit comes near it. Beyond the range of float32 a parameter becomes infinite, and zero times infinity is no number.
LARGEST = 1e20
# What a safetensors file of ours has before its values.
MAX_HEADER = 1 << 20


def save(fitted: Fitted, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a fitted calibrator to a folder; an older artefact in its place is replaced as a whole.

    Args:
        fitted: what :func:`segcal.fit` returned.
        folder: where to; must not exist, be empty, or hold an older artefact.
        overwrite: replace files of an artefact's names that are damaged or not ours as well.
    """
    if not isinstance(fitted, Fitted):
        raise InputError(
            f"fitted is {type(fitted).__name__}, but the result of segcal.fit is needed. Pass that object."
        )
    check_place(folder, overwrite)
    weights = save_tensors(
        {key: value.detach().cpu().contiguous() for key, value in fitted.calibrator.state_dict().items()}
    )
    description = _describe(fitted, hashlib.sha256(weights).hexdigest())
    with written(Path(folder).resolve()) as beside:  # where a link leads, it stays
        beside.mkdir()
        (beside / WEIGHTS).write_bytes(weights)
        (beside / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return Path(folder)


def check_place(folder: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Refuse a place where an artefact cannot go: one that is neither new, nor empty, nor an older artefact of ours."""
    target = Path(folder)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    foreign = sorted({child.name for child in target.iterdir()} - {DESCRIPTION, WEIGHTS}) if target.is_dir() else ["."]
    if foreign:
        raise InputError(
            f"{target} exists and is not a calibrator of segcal, but a new or empty folder is needed. "
            "Choose another name."
        )
    if not overwrite:
        try:
            description = _read_description(target)
            if (target / WEIGHTS).exists():
                _read_weights(target, description)
        except ArtifactError:
            raise InputError(
                f"{target} holds a {DESCRIPTION} that is not as segcal wrote it, or other weights, but only a "
                "calibrator of segcal is replaced. Choose another name, or pass overwrite=True."
            ) from None


def load(folder: str | os.PathLike[str]) -> Fitted:
    """Read a fitted calibrator back, exactly as it was saved."""
    path = Path(folder)
    if not path.exists():
        sweep(path.parent)  # a writer that died may have had it aside
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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
        description = parse_json(read_text(file))
    except ValueError as error:
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
            f"{path / DESCRIPTION} describes a calibrator that this segcal cannot make: {error} Update segcal."
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise _broken(path / DESCRIPTION, f"lacks or misspells {error}") from None


def _read_weights(path: Path, description: dict[str, Any]) -> bytes:
    content = (path / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != description.get("weights_sha256"):
        raise _broken(path / WEIGHTS, f"is not the one that {DESCRIPTION} describes: cut short, edited or mixed up")
    return content


def _load_weights(path: Path, description: dict[str, Any], calibrator: Calibrator) -> None:
    file = path / WEIGHTS
    if not file.is_file():
        raise ArtifactError(f"{path} has no {WEIGHTS}, but it belongs to {DESCRIPTION}. Copy the whole folder again.")
    room = sum(value.numel() * value.element_size() for value in calibrator.state_dict().values()) + MAX_HEADER
    if file.stat().st_size > room:
        raise _broken(file, f"has {file.stat().st_size} bytes, which {description['name']} cannot need")
    content = _read_weights(path, description)
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise _broken(file, f"is not readable as safetensors ({error})") from None
    wanted = {key: (value.dtype, tuple(value.shape)) for key, value in calibrator.state_dict().items()}
    found = {key: (value.dtype, tuple(value.shape)) for key, value in tensors.items()}
    if wanted != found:
        raise _broken(file, f"holds {found}, but {description['name']} needs {wanted}")
    if not all(bool((value.abs() <= LARGEST).all()) for value in tensors.values()):
        raise _broken(file, f"holds values that are not finite or beyond {LARGEST:g}")
    calibrator.load_state_dict(tensors)


def _revive(data: dict[str, Any]) -> Certificate:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Certificate(**fields)


def _broken(file: Path, what: str) -> ArtifactError:
    return ArtifactError(f"{file} {what}, but it must be as segcal wrote it. Copy the folder again, or fit again.")
