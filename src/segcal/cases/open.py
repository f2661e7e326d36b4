"""Opening folders of predictions: which format they have, which case has which files, and what does not fit together.

All that can be checked before values are read is reported here, at once. This is cases that one member or the labels
lack, ambiguous formats, and kinds that were not declared. Nothing is concluded from values.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from segcal.arguments import check_fields, typed
from segcal.cases.files import FileCases, ImageFolder, LabelFolder, RaterFolders
from segcal.cases.formats import FORMATS, Format, FormatFacts, Options
from segcal.cases.formats.base import check_folder, find_files
from segcal.cases.formats.store import Store
from segcal.cases.kinds import KINDS, check_kind
from segcal.cases.labels import Axes
from segcal.cases.region_view import folder_regions
from segcal.cases.remote import Remote, here, url_of
from segcal.cases.split import Grouping, resolve_groups
from segcal.errors import InputError
from segcal.pooling import BEST, POOLINGS, check_pooling
from segcal.raters import FORMS, Raters
from segcal.types import Kind

LABEL_AXES = ("xyz", "zyx")


def _declared(text: str, plain: type = str, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, "plain": plain, **more})


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """All that can be declared about predictions; nothing of it is guessed from values.

    The metadata of each field, for command lines and protocols: a sentence (`help`) and its type in a text (`plain`).
    Some have `choices`, the name of the value (`metavar`), and whether it is a `path`.
    """

    kind: str | None = _declared("type of the scores; nnU-Net folders and the segcal store declare it", choices=KINDS)
    pooling: str = _declared("how several member folders are pooled", default="single", choices=(*POOLINGS, BEST))
    format: str | None = _declared("file format, if the endings allow two", choices=tuple(FORMATS))
    ignore: int | None = _declared("ignore label", int, metavar="LABEL")
    class_axis: int | None = _declared("axis of the classes; default 0, for NIfTI the last", int, metavar="N")
    key: str | None = _declared("array in npz, safetensors or zarr files that hold several", metavar="NAME")
    label_key: str | None = _declared("array in npz label files that hold several", metavar="NAME")
    label_axes: Literal["xyz", "zyx"] | None = _declared("axes of array scores beside NIfTI labels", choices=LABEL_AXES)
    images: str | Path | None = _declared("images with the same names", metavar="FOLDER", path=True)
    groups: Grouping | None = _declared(
        "group of a case, kept together, such as '(patient\\d+)_.*'", metavar="REGEX|CSV"
    )
    sites: Grouping | None = _declared("site of a case; a fit holds each site out", metavar="REGEX|CSV")
    class_names: Sequence[str] | None = _declared("one name per class", list, metavar="A,B,...")
    regions: Mapping[str, int | Sequence[int]] | None = _declared(
        "labels of each sigmoid output; nnU-Net folders declare them", dict, metavar="NAME=1+2,..."
    )
    regions_class_order: Sequence[int] | None = _declared(
        "label that each region writes into a label map", tuple, metavar="1,2,..."
    )
    raters: str | None = _declared("labels of several raters in one file", choices=FORMS[1:])
    num_raters: int | None = _declared("number of raters in one file, or of votes for shares", int, metavar="N")
    rater_weights: Sequence[int] | None = _declared("whole number per rater; default 1", tuple, metavar="2,1,...")
    class_pattern: str | None = _declared("names of one NIfTI file per class: groups id and cls", metavar="REGEX")
    properties: str | Path | None = _declared(
        "folder with nnU-Net pkl files that are missing", metavar="FOLDER", path=True
    )
    ignore_geometry: bool | None = _declared("accept headers that disagree in space, if only headers are wrong", bool)

    def __post_init__(self) -> None:
        check_fields(self)


@typed
def open_cases(
    predictions: str | Path | Sequence[str | Path],
    labels: str | Path | Sequence[str | Path] | None = None,
    *,
    strict: bool = True,
    options: ReadOptions | None = None,
    **declared: Any,
) -> FileCases:
    """Open a folder of predictions, or one folder per member, with labels if there are any.

    Args:
        predictions: the folder; or several, one per member of an ensemble, which are pooled as `pooling` says.
        labels: a folder of label maps (npy, npz, PNG, NIfTI) with the same stems; a store may hold its own. Several
            folders are those of several raters; a case may lack some of them.
        strict: refuse cases that are incomplete; if False they are kept and fail one by one when they are read.
        options: all declarations at once.
        **declared: or one by one: the fields of :class:`ReadOptions`.
    """
    chosen = ReadOptions(**declared) if options is None else replace(options, **declared)
    folders = _folders(predictions)
    properties = None if chosen.properties is None else Path(chosen.properties)
    own = Options(chosen.key, chosen.class_axis, properties=properties, calibration=labels is not None)
    if chosen.class_pattern is not None:
        own = replace(own, class_pattern=chosen.class_pattern)
    members = [open_format(folder, chosen.format, replace(own, remote=remote)) for folder, remote in folders]
    facts = [member.facts() for member in members]
    _check_pooling(chosen.pooling, members)
    axes: Axes | None = chosen.label_axes or facts[0].label_axes
    given = [labels] if isinstance(labels, str | Path) else [] if labels is None else list(labels)
    raters = Raters.declared(chosen.raters, chosen.num_raters, chosen.rater_weights, len(given))
    label_folders = [LabelFolder(*here(each), axes, chosen.label_key) for each in given]
    label_folder = RaterFolders(label_folders) if len(given) > 1 else label_folders[0] if given else None
    ids = _match(members, label_folder, strict)
    kind = _kind(chosen.kind, members, facts)
    ignore = _ignore(chosen.ignore, facts[0])
    outputs = chosen.regions, chosen.regions_class_order
    regions = folder_regions(*outputs, kind, ignore, chosen.class_names, facts[0])
    if regions is None:
        num_classes = _num_classes(members[0], ids, facts[0], kind)
        names = _class_names(chosen.class_names, facts[0], num_classes)
    else:
        num_classes, names = len(regions), regions.names
    found = FileCases(
        ids=ids,
        members=members,
        num_classes=num_classes,
        kind=kind,
        pooling=chosen.pooling,
        stored_pooling=facts[0].pooling if len(members) == 1 and chosen.pooling == "single" else None,
        label_folder=label_folder,
        image_folder=None if chosen.images is None else ImageFolder(Path(chosen.images), axes),
        ignore=ignore,
        class_names=names,
        groups=facts[0].groups if chosen.groups is None else resolve_groups(chosen.groups, ids),
        sites=None if chosen.sites is None else resolve_groups(chosen.sites, ids, "site"),
        origin=facts[0].origin,
        has_labels=label_folder is not None or facts[0].labelled,
        regions=regions,
        ignore_geometry=bool(chosen.ignore_geometry),
        raters=raters,
    )
    if isinstance(chosen.groups, str) and not chosen.groups.lower().endswith(".csv"):
        found.grouping = chosen.groups
    return found


def split_folders(paths: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """Return the folders of predictions and that of labels, which comes last; None where stores hold their own."""
    if paths and paths[-1].is_dir() and Store.claims(paths[-1]) and Store(paths[-1], Options()).facts().labelled:
        return list(paths), None
    if len(paths) < 2:
        raise InputError(
            f"PREDICTIONS LABELS is {paths[0]} alone, but both are needed. Name the folder of labels last."
        )
    return list(paths[:-1]), paths[-1]


def _with_fields(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature that a reader of the help sees: each declaration by its name."""
    named = [parameter for parameter in signature.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    each = inspect.signature(ReadOptions).parameters.values()
    return signature.replace(parameters=[*named[:2], *each, *named[2:]])


open_cases.__signature__ = _with_fields(inspect.signature(open_cases))  # type: ignore[attr-defined]


def _folders(predictions: str | Path | Sequence[str | Path]) -> list[tuple[Path, Remote | None]]:
    folders = [predictions] if isinstance(predictions, str | Path) else list(predictions)
    if not folders:
        raise InputError("predictions is empty, but at least one folder is needed. Pass a folder, or one per member.")
    if len({url_of(folder) or str(Path(folder).resolve()) for folder in folders}) < len(folders):
        raise InputError("predictions names one folder twice, but each member counts once. Remove the repetition.")
    return [here(folder) for folder in folders]


def _check_pooling(pooling: str, members: Sequence[Format]) -> None:
    check_pooling(pooling, may_choose=len(members) > 1)
    if len(members) > 1 and pooling == "single":
        raise InputError(
            f"predictions has {len(members)} folders, but pooling is 'single'. Declare how members are pooled: "
            "pooling='mean_logits' or pooling='mean_probs', or pooling='best' to have segcal.choose compare both."
        )


def _match(members: Sequence[Format], labels: LabelFolder | None, strict: bool) -> list[str]:
    """Return the ids of all cases; in strict mode every one must be complete."""
    ids = sorted({case_id for member in members for case_id in member.files})
    problems = []
    for member in members:
        absent = [case_id for case_id in ids if case_id not in member.files]
        if absent:
            problems.append(f"{member.folder} lacks {_listed(absent)}")
    if labels is not None:
        absent = [case_id for case_id in ids if case_id not in labels.files]
        if absent:
            spare = sorted(set(labels.files) - set(ids))
            note = f" (and has {_listed(spare)} without predictions)" if spare else ""
            problems.append(f"{labels.folder} lacks {_listed(absent)}{note}")
    if problems and strict:
        raise InputError(
            f"the folders do not have the same cases: {'; '.join(problems)}, but files of one case must have one stem. "
            "Add, rename or move files away."
        )
    return ids


def _kind(declared: str | None, members: Sequence[Format], facts: Sequence[FormatFacts]) -> Kind:
    known = {fact.kind for fact in facts if fact.kind is not None}
    if declared is None and not known:
        raise InputError(
            f"kind is not declared, but {members[0].name} files do not say what their numbers are. "
            "Pass kind='logits', kind='probs' or kind='sigmoid'."
        )
    if declared is not None:
        known.add(check_kind(declared))
    if len(known) > 1:
        raise InputError(
            f"kind is {' and '.join(repr(kind) for kind in sorted(known))} at once, but declared and stored kinds must "
            f"agree. Leave kind out: {members[0].folder} says what it holds."
        )
    return known.pop()


def _num_classes(member: Format, ids: Sequence[str], facts: FormatFacts, kind: Kind) -> int:
    if facts.num_classes is not None:
        return facts.num_classes
    if kind == "sigmoid":
        return 2
    failure: InputError | None = None
    for case_id in ids:
        try:
            shape = member.header(case_id).shape
        except InputError as error:  # a damaged file fails its own case, later
            failure = failure or error
            continue
        if shape and shape[0] >= 2:
            return shape[0]
        failure = failure or InputError(
            f"{member.path(case_id)} has shape {shape} with classes first, but at least 2 classes are needed. "
            "Declare class_axis if classes are elsewhere, or kind='sigmoid' for one foreground probability."
        )
    assert failure is not None
    raise failure


def _ignore(declared: int | None, facts: FormatFacts) -> int | None:
    if declared is not None and facts.ignore is not None and declared != facts.ignore:
        raise InputError(
            f"ignore is {declared}, but dataset.json says {facts.ignore}. Leave ignore out, or correct the dataset."
        )
    return facts.ignore if declared is None else declared


def _class_names(declared: Sequence[str] | None, facts: FormatFacts, num_classes: int) -> Sequence[str] | None:
    names = facts.class_names if declared is None else declared
    if names is not None and len(names) != num_classes:
        raise InputError(
            f"class_names has {len(names)} names, but the scores have {num_classes} classes. Give one name per class."
        )
    return names


def _listed(ids: Sequence[str]) -> str:
    return f"{len(ids)} cases: {', '.join(ids)}" if len(ids) > 1 else f"case {ids[0]}"


def open_format(folder: Path, name: str | None, options: Options) -> Format:
    """Return the format of a folder: the declared one, or the only one it can be."""
    check_folder(folder, "predictions", "a file")
    if name is not None and name not in FORMATS:
        raise InputError(f"no format is named {name!r}. Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[detect_format(folder, options.remote) if name is None else name](folder, options)


def detect_format(folder: Path, remote: Remote | None = None) -> str:
    """Return the name of the only format that the files of a folder can have; else the question goes back."""
    claimed = next((name for name, kind in FORMATS.items() if kind.claims(folder)), None)
    if claimed is not None:
        return claimed
    found = [name for name, kind in FORMATS.items() if kind.by_ending and find_files(folder, kind.extensions)]
    if not found:
        raise InputError(
            f"predictions {folder} has no files that segcal reads, but one per case is needed. "
            f"Formats: {', '.join(FORMATS)}; folders inside it are not searched."
        )
    if len(found) > 1:
        raise InputError(
            f"predictions {folder} has files of {len(found)} formats ({', '.join(found)}), but which holds the scores "
            "must be known. Pass format= with one of them, or nnunet if nnU-Net wrote the folder."
        )
    FORMATS[found[0]].check_only(folder, remote)
    return found[0]
