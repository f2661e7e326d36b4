"""Cases from files: the members of an ensemble, each a folder, read one case and one member at a time."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.cases.base import Case, Cases, naming_case
from segcal.cases.formats import Format, Stored
from segcal.cases.formats.base import check_folder, find_files
from segcal.cases.formats.ome_zarr import read_ome_labels
from segcal.cases.geometry import Geometry, check_alike, file_geometry
from segcal.cases.kept import Read, Rest, narrow
from segcal.cases.kinds import filled
from segcal.cases.labels import Axes, LabelMap, read_channels, read_label_file
from segcal.cases.nifti_file import EXTENSIONS
from segcal.cases.profile import digest_of
from segcal.cases.raster_file import EXTENSIONS as MAPS
from segcal.cases.records import input_digest
from segcal.cases.remote import Remote
from segcal.checks import as_tensor, check_labels, check_mask
from segcal.errors import InputError
from segcal.memory import Footprint
from segcal.pooling import check_pooling
from segcal.raters import Raters, Votes
from segcal.regions import Regions
from segcal.types import IGNORED, Kind

Size: TypeAlias = tuple[float, ...] | None  # of a voxel
LABELS = (*EXTENSIONS, ".npy", ".npz", ".png", *MAPS, ".ome.zarr", ".zarr")
IMAGES = (*EXTENSIONS, ".npy", ".png", ".jpg", ".jpeg", *MAPS)


class LabelFolder:
    """The label maps of one folder; `axes` is None if not declared, `key` the array of an npz file."""

    def __init__(
        self, folder: Path, remote: Remote | None = None, axes: Axes | None = None, key: str | None = None,
        role: str = "labels",
    ) -> None:  # fmt: skip
        check_folder(folder, role, "a label map")
        self.folder, self.remote, self.axes, self.key = folder, remote, axes, key
        self.files = find_files(folder, LABELS)
        if not self.files:
            raise InputError(
                f"{role} {folder} has no label maps, but files ending in {', '.join(LABELS)} are needed. "
                "Lossy formats such as JPEG cannot hold labels."
            )

    def read(self, case_id: str, space: Sequence[int], shares: bool = False) -> LabelMap:
        """Read the label map of a case whose scores have this space, or shares of raters with classes first."""
        if case_id not in self.files:
            raise InputError(
                f"{self.folder} has no label map for it, but one is needed. Add {case_id}.* or leave it out."
            )
        path = self._path(case_id)
        if shares:
            return LabelMap(read_channels(path, tuple(space), self.axes), path)
        return read_ome_labels(path) if path.is_dir() else read_label_file(path, tuple(space), self.axes, self.key)

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return what the file of a case says about where its voxels lie."""
        return file_geometry(self._path(case_id), self.axes) if case_id in self.files else []

    def _path(self, case_id: str) -> Path:
        return self.files[case_id] if self.remote is None else self.remote.fetched(self.files[case_id].name)


class RaterFolders(LabelFolder):
    """The label maps of several raters, each a folder; a case may lack some of them."""

    def __init__(self, raters: Sequence[LabelFolder]) -> None:
        self.raters, first = tuple(raters), raters[0]
        self.folder, self.remote, self.axes, self.key = first.folder, first.remote, first.axes, first.key
        self.files = {case_id: path for one in reversed(raters) for case_id, path in one.files.items()}

    def of_case(self, case_id: str) -> dict[int, LabelFolder]:
        """Return the folders that have a case, by the number of the rater."""
        return {number: one for number, one in enumerate(self.raters) if case_id in one.files}

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return what the files of all raters say."""
        return [each for one in self.of_case(case_id).values() for each in one.geometry(case_id)]


class ImageFolder:
    """The images of one folder; `axes` as for labels."""

    def __init__(self, folder: Path, axes: Axes | None = None) -> None:
        check_folder(folder, "images", "an image")
        self.folder, self.axes = folder, axes
        self.files: dict[str, list[Path]] = {}
        for stem, path in find_files(folder, IMAGES).items():
            self.files.setdefault(stem, []).append(path)
            channel = re.fullmatch(r"(.+)_\d{4}", stem)
            if channel:
                self.files.setdefault(channel[1], []).append(path)

    def read(self, case_id: str, space: tuple[int, ...]) -> np.ndarray:
        """Read the image of a case whose scores have this space."""
        if case_id not in self.files:
            raise InputError(f"{self.folder} has no image for it, but one is needed. Add {case_id}.* or leave it out.")
        image = np.concatenate([read_channels(path, space, self.axes) for path in self.files[case_id]])
        if image.shape[1:] != space:
            turned = "Pass label_axes='zyx', for labels and images, if the axes of the scores are reversed."
            same = "Images must be at the resolution of the scores."
            hint = turned if self.axes is None and image.shape[:0:-1] == space else same
            raise InputError(
                f"{self.files[case_id][0]} has space {image.shape[1:]}, but its scores have {space}. {hint}"
            )
        return image

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return what the files of a case say about where their voxels lie."""
        return [each for path in self.files.get(case_id, []) for each in file_geometry(path, self.axes)]


class _MembersSeen:
    """Keeps what members of a case decide, where several of them are classes and something is kept."""

    def __init__(self, cases: "FileCases", case_id: str) -> None:
        self._cases = cases
        self._look = cases.kept is not None and len(cases.members) > 1 and cases.regions is None
        self._compare = cases.kept is not None and case_id in cases.kept.compared
        self.decided: list[Tensor] = []
        self.digests: list[bytes] = []

    def watch(self, members: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield members as they are."""
        small = torch.uint8 if self._cases.num_classes <= 256 else torch.int32
        for member in members:
            if self._look:
                self.decided.append(self._cases.decision.mask(member).to(small))
            if self._compare:
                self.digests.append(digest_of(member))
            yield member


class FileCases(Cases):
    """Cases in folders; made by :func:`segcal.open_cases`.

    Attributes:
        members: one format per member, each bound to its folder.
        label_folder: where label maps are, or None.
        image_folder: where images are, or None.
        ignore: the label that does not count.
        has_labels: whether there are labels, in a folder of their own or with the scores.
        ignore_geometry: whether files of one case may say that they lie at different positions.
        footprint: what is done to a case, and the memory for it; a case that needs more is refused before it is read.
    """

    in_threads = True
    footprint = Footprint()

    def __init__(
        self,
        ids: Sequence[str],
        members: Sequence[Format],
        num_classes: int,
        kind: Kind,
        pooling: str,
        stored_pooling: str | None = None,
        label_folder: LabelFolder | None = None,
        image_folder: ImageFolder | None = None,
        ignore: int | None = None,
        class_names: Sequence[str] | None = None,
        groups: Mapping[str, str] | None = None,
        origin: str = "",
        has_labels: bool = False,
        regions: Regions | None = None,
        sites: Mapping[str, str] | None = None,
        ignore_geometry: bool = False,
        raters: Raters | None = None,
    ) -> None:
        self.raters = raters
        self.ignore_geometry = ignore_geometry
        self.members = tuple(members)
        self.label_folder = label_folder
        self.image_folder = image_folder
        self.ignore = ignore
        self.origin = origin
        self.has_labels = has_labels
        self.regions = regions
        self._pooling_rule = check_pooling(pooling, may_choose=True)
        super().__init__(ids, num_classes, kind, stored_pooling or pooling, class_names, groups, sites)

    @typed
    def read(self, case_id: str) -> Case:
        """Read, pool and check one case; a failure is a :class:`CaseError` with the file's name."""
        with naming_case(case_id):
            rule = check_pooling(self._pooling_rule or "single")
            found = None if self.kept is None else self.kept.get(case_id, rule, self.wants_disagreement)
            if found is None:
                found = self._read(case_id, [*dict.fromkeys([rule, *(self.kept.rules if self.kept else ())])])
                if self.kept is not None:
                    self.kept.add(case_id, found)
        disagreement = found.disagreement if self.wants_disagreement else None
        labels = None if found.labels is None else found.labels.long()
        group = self.groups.get(case_id)
        return Case(case_id, found.logits[rule], labels, disagreement=disagreement, group=group, **found.rest)

    def _read(self, case_id: str, rules: Sequence[str]) -> Read:
        """Read a case in one pass over its members."""
        facts: list[Stored] = []
        kind_warnings: list[str] = []
        seen = _MembersSeen(self, case_id)
        wanted = self.wants_disagreement or (self.kept is not None and self.kept.disagreement)
        members = self._member_logits(case_id, facts, kind_warnings)
        pooled, disagreement = self.decision.pool(seen.watch(members), rules, wanted)
        space = tuple(pooled[0].shape[1:])
        mask = self._mask(facts, case_id, space)
        labels, spacing, votes = self.read_labels(case_id, space, facts[0], mask)
        self.check_geometry(case_id)
        image = None if self.image_folder is None else torch.from_numpy(self.image_folder.read(case_id, space))
        warning = max(kind_warnings, default="")
        rest = Rest(mask=mask, spacing=spacing, image=image, kind_warning=warning, votes=votes)
        return Read(
            logits=dict(zip(rules, pooled, strict=True)),
            disagreement=disagreement,
            labels=labels if self.kept is None else narrow(labels, self.num_labels),
            rest=rest,
            decided=tuple(seen.decided),
            digests=tuple(seen.digests),
        )

    def member_logits(self, case_id: str) -> Iterator[Tensor]:
        """Yield the logits of one member after the other, before they are pooled."""
        with naming_case(case_id):
            yield from self._member_logits(case_id, [], [])

    def member_decisions(self, case_id: str) -> Iterator[Tensor]:
        """Yield the mask of one member after the other."""
        found = None if self.kept is None else self.kept.members(case_id)
        yield from super().member_decisions(case_id) if found is None or not found.decided else found.decided

    @property
    def member_names(self) -> tuple[str, ...]:
        """The folders of the members."""
        return tuple(str(member.folder) for member in self.members)

    def read_member(self, case_id: str, member: int = 0) -> Stored:
        """Read one member's scores as they are stored; parts of them that are not there are no logits."""
        with naming_case(case_id):
            source = self.members[member]
            header = source.header(case_id)
            self.footprint.check(header.shape, header.dtype)
            lacking = source.lacking(case_id)
            if lacking and (source.values_kind or self.kind) == "logits":
                raise InputError(
                    f"{source.path(case_id)} {lacking}, which read as 0, but every voxel needs its logits. "
                    "Copy the file again, or write it with all chunks."
                )
            return source.read(case_id)

    def to_logits(self, stored: Stored, member: Format, name: str) -> Tensor:
        """Return what one member has stored in the log domain; `name` is for messages."""
        kind = member.values_kind or self.kind
        values = filled(np.asarray(stored.values), stored.mask, kind) if member.blanks else stored.values
        return self.decision.logits(values, kind, name)

    def kind_warning(self, logits: Tensor, member: Format) -> str:
        """Return why one member's logits hardly are of the declared kind; nothing of a format that knows its own."""
        return "" if member.values_kind is not None else self.decision.kind_warning(logits, self.kind)

    def read_labels(
        self, case_id: str, space: tuple[int, ...], stored: Stored, mask: Tensor | None = None
    ) -> tuple[Tensor | None, Size, Votes | None]:
        """Return the labels, with voxels that do not count marked, the voxel size, and the votes of several raters."""
        spacing, votes = stored.spacing, None
        if self.label_folder is None:
            if stored.labels is None:
                return None, spacing, None
            name = f"labels in {self.members[0].path(case_id)}"
            labels = check_labels(torch.from_numpy(stored.labels), name, space, self.num_labels, IGNORED)
        elif self.raters is None:
            labels, own = self._read_map(self.label_folder, case_id, space)
            spacing = spacing or own
        else:
            votes, own = self._read_votes(self.raters, self.label_folder, case_id, space)
            votes, spacing = votes.inside(mask), spacing or own
            labels = votes.labels()
        if mask is not None:
            labels = labels.where(mask, IGNORED)
        return labels, spacing if spacing is not None and len(spacing) == len(space) else None, votes

    def _read_map(self, folder: LabelFolder, case_id: str, space: tuple[int, ...]) -> tuple[Tensor, Size]:
        found = folder.read(case_id, space)
        labels = check_labels(
            as_tensor(found.values, str(found.path)), str(found.path), space, self.num_labels, self.ignore
        )
        if found.valid is not None:
            labels = labels.where(torch.from_numpy(found.valid), IGNORED)
        return labels, found.spacing

    def _read_votes(
        self, raters: Raters, folder: LabelFolder, case_id: str, space: tuple[int, ...]
    ) -> tuple[Votes, Size]:
        classes = None if self.regions else self.num_classes
        if not isinstance(folder, RaterFolders):
            found, name = folder.read(case_id, space, raters.form == "shares"), str(folder.files[case_id])
            return raters.votes(as_tensor(found.values, name), name, space, classes, self.ignore), found.spacing
        sizes: list[Size] = [None]

        def maps() -> Iterator[tuple[int, np.ndarray]]:
            for number, one in folder.of_case(case_id).items():
                labels, own = self._read_map(one, case_id, space)
                sizes[0] = sizes[0] or own
                yield number, labels.numpy()

        return raters.of_maps(maps(), classes), sizes[0]

    def check_geometry(self, case_id: str) -> None:
        """Refuse a case whose members, labels and images do not lie on each other, as far as their headers tell."""
        folders = [*self.members, self.label_folder, self.image_folder]
        if not self.ignore_geometry:
            check_alike(one for each in folders if each is not None for one in each.geometry(case_id))

    def sources(self, case_id: str) -> list[Path]:
        """Return the files that a case is read from."""
        return [path for member in self.members for path in member.sources(case_id)] + self._beside(case_id)

    def _beside(self, case_id: str) -> list[Path]:
        images = [] if self.image_folder is None else self.image_folder.files.get(case_id, [])
        return [*self._label_files(case_id), *images]

    @property
    def label_folders(self) -> tuple[LabelFolder, ...]:
        """The folders of labels: none, one, or one per rater."""
        folder = self.label_folder
        return () if folder is None else folder.raters if isinstance(folder, RaterFolders) else (folder,)

    def _label_files(self, case_id: str) -> list[Path]:
        return [folder.files[case_id] for folder in self.label_folders if case_id in folder.files]

    def folders(self) -> set[Path]:
        """Return the folders that cases are read from, in full."""
        own = {path.parent for case_id in self.ids for path in self.sources(case_id)}
        return {folder.resolve() for folder in own | {member.folder for member in self.members}}

    def identity(self, case_id: str) -> str:
        """Return a digest of the files that a case is read from, and of how they are read."""
        members = [(member.name, member.options) for member in self.members]
        folders = [None if each is None else each.axes for each in (self.label_folder, self.image_folder)]
        key = None if self.label_folder is None else self.label_folder.key
        meaning = (self.num_classes, self.kind, self.pooling, self._pooling_rule, self.class_names, self.ignore)
        facts = (members, folders, key, meaning, self.groups.get(case_id), *filter(None, [self.regions, self.raters]))
        digest = hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape"))
        found = [each for member in self.members for each in member.digests(case_id)]
        for path in self._beside(case_id):
            remote = self._remote_of(path)
            found.append(input_digest(path) if remote is None else remote.stamp(path.name))
        digest.update("".join(f" {each}" for each in found).encode())
        return digest.hexdigest()

    def size_note(self, case_id: str) -> str:
        """Return the sizes of the case's files; a changed file changes the fingerprint."""
        paths = [path for member in self.members for path in member.files.get(case_id, ())[:1]]
        paths += self._label_files(case_id)
        return "".join(f" {self._size_of(path)}" for path in paths)

    def _size_of(self, path: Path) -> int:
        remote = self._remote_of(path)
        near = path.stat().st_size if path.is_file() else 0
        return near if remote is None else remote.size(path.name)

    def _remote_of(self, path: Path) -> Remote | None:
        folders: list[Format | LabelFolder] = [*self.members, *self.label_folders]
        return next((each.remote for each in folders if each.remote is not None and each.folder == path.parent), None)

    def _member_logits(self, case_id: str, facts: list[Stored], kind_warnings: list[str]) -> Iterator[Tensor]:
        shape = None
        for number, member in enumerate(self.members):
            stored = self.read_member(case_id, number)
            name = str(member.path(case_id))
            logits = self.to_logits(stored, member, name)
            kind_warnings.append(self.kind_warning(logits, member))
            shape = shape or tuple(logits.shape)
            if tuple(logits.shape) != shape:
                raise InputError(
                    f"{name} has shape {tuple(logits.shape)}, but the first member has {shape}. "
                    "Members of one ensemble must agree: export this one again or leave it out."
                )
            yield logits
            # The scores themselves are let go: one member is in memory at a time.
            facts.append(replace(stored, values=np.empty(0)))

    def _mask(self, facts: Sequence[Stored], case_id: str, space: tuple[int, ...]) -> Tensor | None:
        masks = [stored.mask for stored in facts if stored.mask is not None]
        if not masks:
            return None
        return check_mask(as_tensor(reduce(and_, masks), "mask"), f"mask of case {case_id!r}", space)
