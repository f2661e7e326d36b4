r"""segcal's own store: ``dataset.json`` and one ``CASE.safetensors`` per case.

Scores are kept as float16 :math:`\log S(z)`, which loses nine times fewer decisions than float16 logits. There are also
the free energy :math:`F(z)` in float32, so that :math:`z = \log S(z) + F(z)` keeps its offset, and the winning class as
an integer, so near ties keep their decision. ``docs/data-format.md`` describes every field.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from segcal.atomic import write_text
from segcal.cases.base import Case, CaseError
from segcal.cases.formats.base import Format, FormatFacts, Header, Options, Stored
from segcal.cases.formats.safetensors import look_at, write_tensors
from segcal.cases.keep_argmax import keep_decision
from segcal.cases.kinds import check_kind
from segcal.cases.nifti_file import usable_spacing
from segcal.checks import MAX_CLASSES
from segcal.documents import parse_json, read_json, reading
from segcal.errors import InputError
from segcal.names import clean
from segcal.numerics import canonical_logits, compute_dtype, free_energy, winner

FORMAT, VERSION = "segcal-store", 1
DATASET = "dataset.json"
# What most file systems allow.
LONGEST_NAME = 255
_LOWEST = float(np.finfo(np.float16).min)


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a store's dataset.json."""

    format: str = FORMAT
    version: int = VERSION
    kind: str | None = None
    pooling: str | None = None
    num_classes: Annotated[int, msgspec.Meta(ge=2, le=MAX_CLASSES)]
    class_names: list[str] | None = None


class CaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a stored case, beside its tensors."""

    format: str = ""
    version: int | None = None
    id: str = ""
    spacing: Any = None
    group: Any = None


class Store(Format):
    """Folders in segcal's own format."""

    name = "store"
    documented = ("`CASE.safetensors` and `dataset.json`", "segcal's own, see below")
    extensions = (".safetensors",)
    by_ending = False
    has_mask = True
    values_kind = "logits"

    def __init__(self, folder: Path, options: Options) -> None:
        self.dataset = read_dataset(folder)
        super().__init__(folder, options)

    @classmethod
    def claims(cls, folder: Path) -> bool:
        """Recognise a store by its dataset.json."""
        return (folder / DATASET).is_file() and read_json(folder / DATASET).get("format") == FORMAT

    def facts(self) -> FormatFacts:
        """Return what dataset.json and the files' headers say."""
        data = self.dataset
        groups, labelled = {}, False
        for case_id, (path,) in self.files.items():
            try:
                with _opened(path) as (file, case):
                    labelled |= "labels" in file.keys()  # noqa: SIM118
            except InputError:
                continue  # a damaged file fails when its case is read, not when the folder is opened
            if case.group is not None:
                groups[case_id] = clean(str(case.group))
        return FormatFacts(
            kind=check_kind(str(data.kind)),
            pooling=data.pooling,
            class_names=None if data.class_names is None else tuple(data.class_names),
            num_classes=data.num_classes,
            groups=groups,
            labelled=labelled,
        )

    def header(self, case_id: str) -> Header:
        """Look at the shape of the log-probabilities."""
        path = self.path(case_id)
        with _opened(path) as (file, _):
            return Header(*look_at(file, "log_probs", path))

    def read(self, case_id: str) -> Stored:
        """Restore logits whose winner is the stored one."""
        path = self.path(case_id)
        with _opened(path) as (file, case):
            for key in file.keys():  # noqa: SIM118
                look_at(file, key, path)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return Stored(
                _restore(tensors, path),
                mask=None if "mask" not in tensors else tensors["mask"].numpy() != 0,
                spacing=usable_spacing(case.spacing),
                labels=None if "labels" not in tensors else tensors["labels"].numpy(),
            )

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write other log-probabilities; labels, mask, voxel size and group stay. The offset is gone."""
        stored = self.read(case_id)
        with _opened(self.path(case_id)) as (_, facts):
            group = None if facts.group is None else clean(str(facts.group))
        case = Case(
            id=case_id,
            logits=torch.from_numpy(np.ascontiguousarray(values)),
            labels=None if stored.labels is None else torch.from_numpy(stored.labels).to(torch.int64),
            mask=None if stored.mask is None else torch.from_numpy(stored.mask),
            spacing=stored.spacing,
            group=group,
        )
        return [save_case(case, folder, has_offset=False)]

    def write_shared(self, folder: Path) -> None:
        """Write dataset.json for calibrated scores, whose offset is gone."""
        write_dataset(folder, msgspec.structs.replace(self.dataset, kind="probs"))


def save_case(case: Case, folder: Path, has_offset: bool) -> str:
    """Write one case into a folder and return the file's name; an offset that logits still have becomes free energy."""
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    log_probs = canonical_logits(logits, axis=0).clamp(min=_LOWEST).to(torch.float16)
    tensors: dict[str, Tensor] = {
        "log_probs": log_probs.contiguous(),
        "prediction": winner(logits, axis=0).to(torch.uint8 if logits.shape[0] <= 256 else torch.int32),
    }
    if has_offset:
        tensors["free_energy"] = free_energy(logits, axis=0).to(torch.float32)
    if case.labels is not None:
        tensors["labels"] = case.labels.to(torch.int16 if logits.shape[0] <= 2**15 else torch.int32).contiguous()
    if case.mask is not None:
        tensors["mask"] = case.mask.to(torch.uint8).contiguous()
    facts = CaseFacts(format=FORMAT, version=VERSION, id=case.id, spacing=case.spacing, group=case.group)
    name = f"{case.id}.safetensors"
    if len(name.encode()) > LONGEST_NAME:
        raise CaseError(
            case.id, f"its file would have a name of {len(name.encode())} bytes, but {LONGEST_NAME} can be. Rename it."
        )
    write_tensors(tensors, folder / name, {"segcal": json.dumps(msgspec.structs.asdict(facts))})
    return name


def read_dataset(folder: Path) -> StoreFacts:
    """Read and check a store's dataset.json."""
    path = folder / DATASET
    content = read_json(path)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InputError(
            f"{path} has format {content.get('format')!r} version {content.get('version')!r}, but {FORMAT!r} version "
            f"{VERSION} is needed. Convert the predictions again, or declare their format."
        )
    try:
        return msgspec.convert(content, StoreFacts)
    except ValueError as error:  # also of lone surrogates
        what = f"has num_classes = {content.get('num_classes')!r}, but 2 to {MAX_CLASSES} are"
        if "num_classes" not in str(error):
            what = "has no valid class_names and pooling, but both are"
        raise InputError(f"{path} {what} needed. Convert again.") from None


def write_dataset(folder: Path, facts: StoreFacts) -> None:
    """Write a store's dataset.json, unless it says that already: then its time stays too."""
    text = json.dumps(msgspec.structs.asdict(facts), indent=1) + "\n"
    if not (folder / DATASET).is_file() or (folder / DATASET).read_bytes() != text.encode():
        write_text(folder / DATASET, text)


def is_stored_case(path: Path) -> bool:
    """Whether a file is a case of a store."""
    try:
        with _opened(path):
            return True
    except InputError:
        return False


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, CaseFacts]]:
    """Open a stored case, with what it says about itself."""
    with reading(path), safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get("segcal")
        facts = msgspec.convert({} if text is None else parse_json(text), CaseFacts)
        if (facts.format, facts.version) != (FORMAT, VERSION):
            raise InputError(
                f"{path} is not a case of {FORMAT!r} version {VERSION}, but the folder's dataset.json says so. "
                "Convert the predictions again, or declare format='safetensors'."
            )
        yield file, facts


def _restore(tensors: dict[str, Tensor], path: Path) -> Tensor:
    log_probs, prediction = tensors["log_probs"], tensors["prediction"]
    if tuple(prediction.shape) != tuple(log_probs.shape[1:]):
        raise InputError(f"{path} has a prediction of another shape than its scores. It is damaged: convert again.")
    logits = log_probs.to(torch.float32)
    if "free_energy" in tensors:
        logits = logits + tensors["free_energy"]
    keep_decision(logits.numpy(), prediction.to(torch.int64).numpy(), str(path))
    return logits
