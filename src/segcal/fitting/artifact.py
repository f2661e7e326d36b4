"""Saving and loading: a folder with ``calibrator.json`` and ``weights.safetensors``, never a pickle.

The folder is complete or absent, and an older one in its place is the old one or the new one whatever happens. The JSON
carries a digest of itself and of the weights, so edited or incomplete files are refused. The digest also tells an
artefact of segcal from another file of the same name.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from segcal.arguments import typed
from segcal.atomic import remove_leftovers, written
from segcal.calibrators import make_calibrator, saved_entry
from segcal.calibrators.base import Calibrator
from segcal.documents import parse_json, read_text
from segcal.errors import ArtifactError, InputError
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.object_reference import VERSION as OBJECTS_VERSION
from segcal.fitting.object_reference import ObjectReference
from segcal.fitting.reference import VERSION, Reference
from segcal.raters import Raters
from segcal.version import __version__

SCHEMA = 1
Known = TypeVar("Known")
DESCRIPTION = "calibrator.json"
WEIGHTS = "weights.safetensors"
# No fit comes near it. Beyond the range of float32 a parameter becomes infinite, and zero times infinity is no number.
LARGEST = 1e20
# What a safetensors file of ours has before its values.
MAX_HEADER = 1 << 20


@typed
def save(fitted: Fitted, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a fitted calibrator to a folder; an older artefact in its place is replaced as a whole.

    Args:
        fitted: what :func:`segcal.fit` returned.
        folder: where to; must not exist, be empty, or hold an older artefact.
        overwrite: replace files of an artefact's names that are damaged or not ours as well.
    """
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
    """Refuse a target where an artefact cannot go: one that is not new, empty or an older artefact."""
    target = Path(folder)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    foreign = sorted({child.name for child in target.iterdir()} - {DESCRIPTION, WEIGHTS}) if target.is_dir() else ["."]
    if foreign:
        more = f" alone: it holds {foreign[0]}" if target.is_dir() else ""
        raise InputError(
            f"{target} exists and is not a calibrator of segcal{more}, but a new or empty folder is needed. "
            "Choose another name."
        )
    if not overwrite:
        try:
            digest = _read_plain(target).get("weights_sha256")
            if (target / WEIGHTS).exists():
                _read_weights(target, digest)
        except ArtifactError:
            raise InputError(
                f"{target} holds a {DESCRIPTION} that is not as segcal wrote it, or other weights, but only a "
                "calibrator of segcal is replaced. Choose another name, or pass overwrite=True."
            ) from None


def check_vacant(folder: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Refuse a target where an artefact cannot go, and one that holds a calibrator, which would be lost."""
    check_place(folder, overwrite)
    if not overwrite and (Path(folder) / DESCRIPTION).exists():
        raise InputError(
            f"{folder} holds a calibrator already, but a fit does not replace one unasked. Choose another name, or "
            "pass overwrite=True."
        )


@typed
def load(folder: str | os.PathLike[str], calibrators: Sequence[type[Calibrator]] = ()) -> Fitted:
    """Read a fitted calibrator back, exactly as it was saved.

    Args:
        folder: where :func:`save` wrote it.
        calibrators: classes of your own, one of which it may be. What a file names is never imported.
    """
    path = Path(folder)
    if not path.exists():
        remove_leftovers(path.parent)  # a writer that died may have had it aside
    plain = _read_plain(path)
    record = _revive(path, plain)
    calibrator = _empty_calibrator(path, record, calibrators)
    _load_weights(path, record, calibrator)
    try:
        config = FitConfig(**record.config)
    except (TypeError, ValueError) as error:
        raise _broken(path / DESCRIPTION, f"lacks or misspells {error}") from None
    kept = {name: getattr(record, name) for name in PROVENANCE}
    return Fitted(calibrator.eval().requires_grad_(False), record.certificate, config, **kept)


def to_fitted(source: Known | str | os.PathLike[str]) -> Known | Fitted:
    """Return the fitted calibrator of a folder; anything else as it is."""
    return load(source) if isinstance(source, str | os.PathLike) else source


class Description(msgspec.Struct):
    """The content of ``calibrator.json``, without its digest, in the order in which it is written."""

    schema: int
    segcal: str
    name: str
    num_classes: int
    options: dict[str, object]
    translation_invariant: bool
    preserves: str | None
    class_names: tuple[str, ...] | None
    pooling: str | None
    kind: str
    config: dict[str, Any]
    certificate: Certificate
    fingerprint: str
    calibration_ids: tuple[str, ...]
    validation_ids: tuple[str, ...]
    origin: str = ""
    grouping: str | None = None
    weights_sha256: str = ""
    reference: Reference | None = None
    objects: ObjectReference | None = None
    raters: Raters | None = None


# What a Fitted and its description have in common.
PROVENANCE = (
    "class_names", "pooling", "kind", "fingerprint", "calibration_ids", "validation_ids", "origin", "grouping",
    "reference", "objects", "raters",
)  # fmt: skip


def _describe(fitted: Fitted, weights_digest: str) -> dict[str, object]:
    calibrator, entry = fitted.calibrator, saved_entry(fitted.calibrator)
    record = Description(
        schema=SCHEMA,
        segcal=__version__,
        name=entry[0],
        num_classes=calibrator.num_classes,
        options=entry[1],
        translation_invariant=calibrator.translation_invariant,
        preserves=calibrator.preserves,
        config=fitted.config.to_dict(),
        certificate=fitted.certificate,
        weights_sha256=weights_digest,
        **{name: getattr(fitted, name) for name in PROVENANCE},
    )
    try:
        plain: dict[str, object] = msgspec.to_builtins(record, enc_hook=float)  # numpy has floats of its own
    except (TypeError, ValueError):
        raise InputError(
            f"options of {entry[0]} are {entry[1]}, but numbers, text, lists and dictionaries can be saved. Keep "
            "others as parameters or buffers."
        ) from None
    return {**plain, "digest": _digest(plain)}


def _revive(path: Path, plain: dict[str, object]) -> Description:
    for name, newest in (("reference", VERSION), ("objects", OBJECTS_VERSION)):
        found = plain.get(name)
        version = found.get("version") if isinstance(found, dict) else None
        if isinstance(version, int) and version > newest:
            raise ArtifactError(
                f"{path / DESCRIPTION} has {'a reference' if name == 'reference' else name} of version {version}, but "
                f"this segcal reads up to {newest}. Update segcal; it was written by version {plain.get('segcal')}."
            )
    try:
        found = msgspec.convert(plain, Description)
        if found.grouping and re.compile(found.grouping).groups != 1:
            raise ValueError("grouping, which has not one group")
        return found
    except re.error as error:
        raise _broken(path / DESCRIPTION, f"has a grouping that is no regular expression ({error})") from None
    except ValueError as error:  # also of lone surrogates
        required = [field.name for field in msgspec.structs.fields(Description) if field.required]
        missing = [repr(name) for name in required if name not in plain]
        raise _broken(path / DESCRIPTION, f"lacks or misspells {[*missing, error][0]}") from None


def _digest(description: dict[str, object]) -> str:
    plain = json.dumps({key: value for key, value in description.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def _read_plain(path: Path) -> dict[str, Any]:
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


def _empty_calibrator(path: Path, record: Description, calibrators: Sequence[type[Calibrator]]) -> Calibrator:
    _, own, name = record.name.rpartition(":")  # of a script run alone the module is another one when it is imported
    kind = next((one for one in calibrators if own and one.__qualname__ == name), None)
    if own and kind is None:
        raise ArtifactError(
            f"{path} holds a calibrator of the class {record.name}, but what a file names is not imported. "
            f"Pass the class: calibrators=[{name}], or --calibrator-class {record.name} on the command line."
        )
    try:
        if kind is not None:
            return kind(record.num_classes, **record.options)
        return make_calibrator(record.name, record.num_classes, **record.options)
    except InputError as error:
        raise ArtifactError(
            f"{path / DESCRIPTION} describes a calibrator that this segcal cannot make: {error} Update segcal."
        ) from None
    except (TypeError, AttributeError) as error:
        raise _broken(path / DESCRIPTION, f"lacks or misspells {error}") from None


def _read_weights(path: Path, digest: str | None) -> bytes:
    content = (path / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise _broken(path / WEIGHTS, f"is not the one that {DESCRIPTION} describes: cut short, edited or mixed up")
    return content


def _load_weights(path: Path, record: Description, calibrator: Calibrator) -> None:
    file = path / WEIGHTS
    if not file.is_file():
        raise ArtifactError(f"{path} has no {WEIGHTS}, but it belongs to {DESCRIPTION}. Copy the whole folder again.")
    room = sum(value.numel() * value.element_size() for value in calibrator.state_dict().values()) + MAX_HEADER
    if file.stat().st_size > room:
        raise _broken(file, f"has {file.stat().st_size} bytes, which {record.name} cannot need")
    content = _read_weights(path, record.weights_sha256)
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise _broken(file, f"is not readable as safetensors ({error})") from None
    wanted = {key: (value.dtype, tuple(value.shape)) for key, value in calibrator.state_dict().items()}
    found = {key: (value.dtype, tuple(value.shape)) for key, value in tensors.items()}
    if wanted != found:
        raise _broken(file, f"holds {found}, but {record.name} needs {wanted}")
    if not all(bool((value.abs() <= LARGEST).all()) for value in tensors.values()):
        raise _broken(file, f"holds values that are not finite or beyond {LARGEST:g}")
    calibrator.load_state_dict(tensors)


def _broken(file: Path, what: str) -> ArtifactError:
    return ArtifactError(f"{file} {what}, but it must be as segcal wrote it. Copy the folder again, or fit again.")
