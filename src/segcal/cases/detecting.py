"""Which format a folder has, where its files leave no doubt; else the question goes back to the user."""

from pathlib import Path

from segcal.cases.formats import FORMATS, Format, Options
from segcal.cases.formats.nnunet_dataset import find_beside
from segcal.cases.formats.store import FORMAT as STORE
from segcal.cases.labels import find_files
from segcal.cases.nifti_file import open_nifti
from segcal.documents import read_json
from segcal.errors import InputError

# Formats whose files can be told from their ending alone; the others need a look at more.
_BY_ENDING = ("npy", "npz", "zarr", "safetensors", "nifti")


def open_format(folder: Path, name: str | None, options: Options) -> Format:
    """Return the format of a folder: the declared one, or the only one it can be.

    Args:
        folder: where the predictions are.
        name: a name from :data:`~segcal.cases.formats.FORMATS`, or None.
        options: what the user declared about the files.
    """
    if not folder.is_dir():
        raise InputError(f"predictions {folder} is not a folder, but one with a file a case is needed. Check the path.")
    if name is not None and name not in FORMATS:
        raise InputError(f"no format is named {name!r}. Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[detect_format(folder) if name is None else name](folder, options)


def detect_format(folder: Path) -> str:
    """Return the name of the only format that the files of a folder can have."""
    marker = _marker(folder)
    if marker is not None:
        return marker
    found = [name for name in _BY_ENDING if find_files(folder, FORMATS[name].extensions)]
    if not found:
        raise InputError(
            f"predictions {folder} has no files that segcal reads, but one a case is needed. "
            f"Formats: {', '.join(FORMATS)}; folders inside it are not searched."
        )
    if len(found) > 1:
        raise InputError(
            f"predictions {folder} has files of {len(found)} formats ({', '.join(found)}), but which holds the scores "
            "must be known. Pass format= with one of them, or nnunet if nnU-Net wrote the folder."
        )
    return _nifti(folder) if found == ["nifti"] else found[0]


def _marker(folder: Path) -> str | None:
    """Recognise the formats that say what they are: our store and nnU-Net, by their dataset.json."""
    own = folder / "dataset.json"
    if own.is_file() and read_json(own).get("format") == STORE:
        return "store"
    if any(folder.glob("fold_*/validation/*.npz")):
        return "nnunet"
    # A dataset.json further up may belong to anything; the pkl beside the npz is nnU-Net's own.
    beside = find_beside(folder, "dataset.json") if any(folder.glob("*.pkl")) else own
    ours = any(folder.glob("*.npz")) and beside is not None and beside.is_file()
    return "nnunet" if ours and beside is not None and "labels" in read_json(beside) else None


def _nifti(folder: Path) -> str:
    """Tell one file a case from one file a class by the number of axes."""
    path, axes = _first_readable(folder)
    if axes >= 4:
        return "nifti"
    raise InputError(
        f"{path} has {axes} axes: it may be one class of a volume, or all classes of a picture, but which must be "
        "declared. Pass format='nifti_classes' or format='nifti'."
    )


def _first_readable(folder: Path) -> tuple[Path, int]:
    """Return the first file that can be opened, and its number of axes; a damaged one fails its own case, later."""
    failure: InputError | None = None
    for path in find_files(folder, FORMATS["nifti"].extensions).values():
        try:
            return path, len(open_nifti(path).shape)
        except InputError as error:
            failure = failure or error
    assert failure is not None
    raise failure
