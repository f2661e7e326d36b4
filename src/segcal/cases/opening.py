"""Opening folders of predictions: which format they have, which case has which files, and what does not fit together.

Everything that can be said before values are read is said here, all of it at once: cases that one member or the labels
lack, formats that could be two things, kinds that were not declared. Nothing is concluded from values.
"""

from collections.abc import Sequence
from pathlib import Path

from segcal.cases.detecting import open_format
from segcal.cases.files import FileCases
from segcal.cases.formats import Facts, Format, Options
from segcal.cases.grouping import Grouping, resolve_groups
from segcal.cases.images import ImageFolder
from segcal.cases.kinds import check_kind
from segcal.cases.labels import Axes, LabelFolder
from segcal.errors import InputError
from segcal.pooling import check_pooling
from segcal.types import Kind

LABEL_AXES = ("xyz", "zyx")


def open_cases(
    predictions: str | Path | Sequence[str | Path],
    labels: str | Path | None = None,
    *,
    kind: str | None = None,
    pool: str = "single",
    format: str | None = None,
    ignore: int | None = None,
    class_axis: int | None = None,
    key: str | None = None,
    label_key: str | None = None,
    label_axes: Axes | None = None,
    images: str | Path | None = None,
    groups: Grouping | None = None,
    class_names: Sequence[str] | None = None,
    class_pattern: str | None = None,
    properties: str | Path | None = None,
    strict: bool = True,
) -> FileCases:
    """Open a folder of predictions, or one folder a member, with labels if there are any.

    Args:
        predictions: the folder; or several, one a member of an ensemble, which are pooled as `pool` says.
        labels: a folder of label maps (npy, npz, PNG, NIfTI) with the same stems.
        kind: what the numbers are: "logits", "probs" or "sigmoid". Needed, except for formats that know theirs.
        pool: "single", "mean_logits" or "mean_probs".
        format: a name from :data:`~segcal.cases.FORMATS`; None where the folder can be only one.
        ignore: the label that does not count.
        class_axis: the axis of the classes; None is the first one, for NIfTI the last.
        key: the array of npz, safetensors or zarr groups that holds the scores, where there are several.
        label_key: the array of npz label maps, where there are several.
        label_axes: how the axes of NIfTI labels (x, y, z) lie in scores that are not NIfTI: "xyz" or "zyx".
        images: a folder of images with the same stems.
        groups: what must stay in one split: case id -> group, a regular expression with one group, or a CSV file.
        class_names: one name a class.
        class_pattern: for one file a class, a regular expression with the groups id and cls.
        properties: for nnU-Net, a folder with the pkl files where the predictions' own are missing or damaged.
        strict: refuse cases that are incomplete; if False they are kept and fail one by one when they are read.
    """
    folders = _folders(predictions)
    options = Options(
        key=key,
        class_axis=class_axis,
        properties=None if properties is None else Path(properties),
        calibration=labels is not None,
        **({} if class_pattern is None else {"class_pattern": class_pattern}),
    )
    members = [open_format(folder, format, options) for folder in folders]
    facts = [member.facts() for member in members]
    _check_pool(pool, members)
    axes = _label_axes(label_axes, members[0], facts[0])
    label_folder = None if labels is None else LabelFolder(Path(labels), axes, label_key)
    ids = _match(members, label_folder, strict)
    resolved = _kind(kind, members, facts)
    num_classes = _num_classes(members[0], ids, facts[0], resolved)
    return FileCases(
        ids=ids,
        members=members,
        num_classes=num_classes,
        kind=resolved,
        pooling=pool,
        stored_pooling=facts[0].pooling if len(members) == 1 and pool == "single" else None,
        label_folder=label_folder,
        image_folder=None if images is None else ImageFolder(Path(images), axes),
        ignore=_ignore(ignore, facts[0]),
        class_names=_class_names(class_names, facts[0], num_classes),
        groups=facts[0].groups if groups is None else resolve_groups(groups, ids),
        origin=facts[0].origin,
    )


def _folders(predictions: str | Path | Sequence[str | Path]) -> list[Path]:
    folders = [predictions] if isinstance(predictions, str | Path) else list(predictions)
    if not folders:
        raise InputError("predictions is empty, but at least one folder is needed. Pass a folder, or one a member.")
    paths = [Path(folder) for folder in folders]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("predictions names one folder twice, but each member counts once. Remove the repetition.")
    return paths


def _check_pool(pool: str, members: Sequence[Format]) -> None:
    check_pooling(pool, may_choose=len(members) > 1)
    if len(members) > 1 and pool == "single":
        raise InputError(
            f"predictions has {len(members)} folders, but pool is 'single'. Declare how members are pooled: "
            "pool='mean_logits' or pool='mean_probs', or pool='best' to have segcal.choose compare both."
        )


def _label_axes(declared: Axes | None, member: Format, facts: Facts) -> Axes | None:
    if declared is not None and declared not in LABEL_AXES:
        raise InputError(f"no label_axes is named {declared!r}. Choose one of: {', '.join(LABEL_AXES)}.")
    if declared is None and member.name in ("nifti", "nifti_classes"):
        return "xyz"
    return declared or facts.label_axes


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


def _kind(declared: str | None, members: Sequence[Format], facts: Sequence[Facts]) -> Kind:
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


def _num_classes(member: Format, ids: Sequence[str], facts: Facts, kind: Kind) -> int:
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


def _ignore(declared: int | None, facts: Facts) -> int | None:
    if declared is not None and facts.ignore is not None and declared != facts.ignore:
        raise InputError(
            f"ignore is {declared}, but dataset.json says {facts.ignore}. Leave ignore out, or correct the dataset."
        )
    return facts.ignore if declared is None else declared


def _class_names(declared: Sequence[str] | None, facts: Facts, num_classes: int) -> Sequence[str] | None:
    names = facts.class_names if declared is None else declared
    if names is not None and len(names) != num_classes:
        raise InputError(
            f"class_names has {len(names)} names, but the scores have {num_classes} classes. Give one name a class."
        )
    return names


def _listed(ids: Sequence[str]) -> str:
    return f"{len(ids)} cases: {', '.join(ids)}" if len(ids) > 1 else f"case {ids[0]}"
