"""Cases from whatever a user holds in memory: arrays, a loader of batches, a network with a loader of images.

Of a loader one batch is in memory at a time. A first pass counts the cases and takes a digest of each batch; it runs no
network. Every later pass must give the same batches in the same order: a loader that shuffles is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from segcal.arguments import shown, typed
from segcal.cases.arrays import ArrayCases, HeldCases, Raw, check_length
from segcal.cases.base import Cases
from segcal.cases.profile import digest_of
from segcal.checks import as_tensor, memory_limit
from segcal.errors import InputError
from segcal.raters import DECLARED, Raters

KEPT = 4 << 30  # the most bytes that are kept of a generator, which can be read only once


@typed
def as_cases(
    data: Any,
    labels: Any = None,
    *,
    kind: str = "logits",
    pooling: str | None = None,
    model: Callable[..., Any] | list[Callable[..., Any]] | None = None,
    inferer: Callable[[Tensor, Any], Tensor] | None = None,
    groups: Sequence[str] | Mapping[str, str] | None = None,
    ignore: int | None = None,
    ids: Sequence[str] | None = None,
    masks: Any = None,
    images: Any = None,
    spacing: Sequence[tuple[float, ...] | None] | None = None,
    class_names: Sequence[str] | None = None,
    regions: Mapping[str, int | Sequence[int]] | None = None,
    regions_class_order: Sequence[int] | None = None,
    sites: Sequence[str] | Mapping[str, str] | None = None,
    raters: str | None = None,
    num_raters: int | None = None,
    rater_weights: Sequence[int] | None = None,
) -> Cases:
    """Return cases from whatever holds scores and labels; :class:`Cases` as they are.

    Args:
        data: an array or tensor ``(batch, classes, *space)`` on any device (``(voxels, classes)``, without space, is
            one case); a list of such, one per member, with `pooling`; a list of cases, each ``(classes, *space)`` or a
            list of members; a DataLoader, a Dataset or anything else that can be iterated again, of batches (or cases)
            ``(scores, labels)``; or a generator of those, which is read once and kept, up to :data:`KEPT` bytes.
        labels: ``(batch, *space)``, or one ``(*space)`` per case of a list; None where `data` holds them too.
        kind: what the numbers are: "logits", "probs" or "sigmoid". They are never looked at to find out.
        pooling: how members are pooled.
        model: a network, or a list of them with `pooling`, run in evaluation mode: `data` holds ``(images, labels)``.
        inferer: how it is run, ``inferer(images, model)``, such as over a sliding window.
        groups: one group name per case, or by id; a group is never divided between splits.
        ignore: the label that does not count.
        ids: one name per case, or numbers.
        masks: one ``(*space)`` per case, true where the prediction is real.
        images: one ``(channels, *space)`` per case.
        spacing: one tuple of voxel sizes per case.
        class_names: one name per class.
        regions: of sigmoids, as :class:`ArrayCases` takes them.
        regions_class_order: the same.
        sites: the same.
        raters: how labels of several raters are given, as :class:`ArrayCases` takes it; a loader then gives batches.
        num_raters: the same.
        rater_weights: the same.

    >>> cases = as_cases(torch.zeros(4, 2, 3, 5), torch.ones(4, 3, 5, dtype=int))
    >>> len(cases), cases.num_classes, cases.kind
    (4, 2, 'logits')
    """
    columns = {"masks": masks, "images": images, "spacing": spacing}
    shared: dict[str, Any] = {"pooling": pooling, "groups": groups, "ignore": ignore, "class_names": class_names}
    shared |= {"regions": regions, "regions_class_order": regions_class_order, "sites": sites}
    shared |= {"raters": raters, "num_raters": num_raters, "rater_weights": rater_weights}
    if isinstance(data, Cases):
        _refuse({"labels": labels, "model": model, "ids": ids, **columns, **shared}, "cases, which know theirs")
        return data
    shared["kind"], array = kind, isinstance(data, np.ndarray | Tensor)
    if model is None and array:
        scores, truth = _with_space(*_batched(data, labels, "data", raters is not None))
        return ArrayCases(scores, truth, ids=ids, **shared, **columns)  # type: ignore[arg-type]
    listed = model is None and isinstance(data, list | tuple) and len(data) > 0
    if listed and (labels is not None or not _is_pair(data[0], raters == "shares")):
        return ArrayCases(_cases_of(data, labels, pooling), labels, ids=ids, **shared, **columns)
    _check_source(data, model, inferer)
    _refuse({"labels": None if array else labels, **columns}, "a loader, which gives (scores, labels)")
    several = Raters.declared(*(shared.pop(name) for name in DECLARED))
    source = [(data, labels)] if array else data
    models = tuple(model) if isinstance(model, list | tuple) else () if model is None else (model,)
    networks = _Networks(models, isinstance(model, list | tuple), inferer)
    source = _kept(source, several is not None) if hasattr(source, "__next__") else source
    reader = _Reader(source, networks, several is not None)
    if not reader.places:
        raise InputError("data is empty, but at least one case is needed. A generator can be read only once.")
    check_length("ids", ids, len(reader.places))
    names = [str(name) for name in (range(len(reader.places)) if ids is None else ids)]
    return LoaderCases(reader, names, raters=several, **shared)


def _check_source(data: Any, model: Any, inferer: object) -> None:
    if isinstance(data, str | bytes | Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__len__")):
        raise InputError(
            f"data is {shown(data)}, but arrays, a list, a loader or cases are needed. "
            "Open folders with segcal.open_cases."
        )
    for name, given in (("data", data), ("model", model)):
        if isinstance(given, list | tuple) and not given:
            raise InputError(f"{name} is empty, but at least one case is needed. Check the list.")
    if model is None and inferer is not None:
        raise InputError("inferer is given without a model, but it runs one. Pass model= too, or leave it out.")


class LoaderCases(HeldCases):
    """Cases of a loader; made by :func:`as_cases`."""

    def __init__(self, reader: "_Reader", ids: Sequence[str], **shared: Any) -> None:
        self._reader = reader
        self._place = dict(zip(ids, reader.places, strict=True))
        super().__init__(ids, self.raw(ids[0]).logits, **shared)

    def raw(self, case_id: str) -> Raw:
        """Return one case of its batch."""
        number, row = self._place[case_id]
        return _row(*self._reader.scores(number), row)


class _Batch(NamedTuple):
    """Inputs ``(batch, ...)``, which are scores or the images of a network, and the labels of each."""

    inputs: Tensor
    labels: Tensor | None

    def digest(self) -> bytes:
        return digest_of(self.inputs) + (b"" if self.labels is None else digest_of(self.labels))


_Scores = Tensor | list[Tensor]  # of a batch, of several networks one each


class _Networks(NamedTuple):
    """The members of an ensemble, and how they are run; without any, inputs are scores."""

    models: tuple[Any, ...]
    several: bool
    inferer: Callable[[Tensor, Any], Tensor] | None

    def __call__(self, inputs: Tensor) -> _Scores:
        found = [self._run(model, inputs) for model in self.models]
        return found if self.several else found[0] if found else inputs

    def _run(self, model: Any, inputs: Tensor) -> Tensor:
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        inputs = inputs if parameter is None else inputs.to(parameter.device)
        with _evaluating(model), torch.no_grad():
            scores = model(inputs) if self.inferer is None else self.inferer(inputs, model)
        if not isinstance(scores, Tensor) or len(scores) != len(inputs):
            raise InputError(
                f"model returned {type(scores).__name__}, but a tensor of scores (batch, classes, *space) is needed. "
                "Pass inferer=, a function of the images and the model that returns it."
            )
        return scores


class _Reader:
    """The batches of a loader, by number: it goes on where it stands, or starts again."""

    def __init__(self, source: Any, networks: _Networks, several: bool) -> None:
        self._source, self._networks, self._several = source, networks, several
        self._held: tuple[int, _Batch, _Scores] | None = None
        self._stream, self._next = _batches(source, several), 0
        self.places: list[tuple[int, int]] = []
        self._digests: list[bytes] = []
        for number, batch in enumerate(self._stream):
            self.places += [(number, row) for row in range(len(batch.inputs))]
            self._digests.append(batch.digest())
        self._next = len(self._digests)

    def scores(self, number: int) -> tuple[_Batch, _Scores]:
        if self._held is None or self._held[0] != number:
            self._held = None  # one at a time
            batch = self._read(number)
            self._held = (number, batch, self._networks(batch.inputs))
        return self._held[1:]

    def _read(self, number: int) -> _Batch:
        if self._next > number:
            self._stream, self._next = _batches(self._source, self._several), 0
        for batch in self._stream:
            self._next += 1
            if self._next <= number:
                continue
            if batch.digest() != self._digests[number]:
                break
            return batch
        self._next = len(self._digests)
        raise InputError(
            f"batch {number} of the loader is another one than in the first pass, but a case must stay the same. "
            "Leave shuffling and random transforms out: DataLoader(..., shuffle=False)."
        )

    def __getstate__(self) -> dict[str, object]:  # an open loader stays in its process
        return {**self.__dict__, "_stream": None, "_held": None, "_next": len(self._digests)}


def _batches(source: Any, several: bool) -> Iterator[_Batch]:
    items = source if hasattr(source, "__iter__") else (source[index] for index in range(len(source)))
    for number, item in enumerate(items):
        pair = isinstance(item, list | tuple)
        if len(item) != 2 if pair else np.ndim(item) == 0:
            raise InputError(
                f"batch {number} is a {type(item).__name__}, but (scores, labels) are needed. "
                "Wrap the loader in one that gives these two."
            )
        scores, labels = item if pair else (item, None)
        yield _Batch(*_batched(scores, labels, f"batch {number}", several))


def _kept(source: Iterator[Any], several: bool) -> list[_Batch]:
    """Read a generator once and keep copies of its batches: it may use the same memory again."""
    most = min(KEPT, memory_limit() // 2)
    kept, size = list[_Batch](), 0
    for batch in _batches(source, several):
        inputs, labels = (None if one is None else one.detach().to("cpu", copy=True) for one in batch)
        assert inputs is not None
        kept.append(_Batch(inputs, labels))
        size += inputs.nbytes + (0 if labels is None else labels.nbytes)
        if size > most:
            raise InputError(
                f"data is a generator, which can be read only once, and gives more than {most / 2**30:.1f} GiB, "
                "but it is read several times. Pass what can be iterated again: a list, a Dataset, a DataLoader."
            )
    return kept


def _row(batch: _Batch, scores: _Scores, row: int) -> Raw:
    """Return one case of a batch; what a network saw is its image, where that has the size of the scores."""
    one = [member[row] for member in scores] if isinstance(scores, list) else scores[row]
    image = batch.inputs[row]
    seen = scores is not batch.inputs and image.shape[1:] == (one[0] if isinstance(one, list) else one).shape[1:]
    return Raw(one, None if batch.labels is None else batch.labels[row], image=image if seen else None)


def _refuse(given: Mapping[str, object], beside: str) -> None:
    extra = next((name for name, value in given.items() if value is not None), None)
    if extra is not None:
        raise InputError(f"{extra} is given beside {beside}, but one of the two is needed. Leave {extra} out.")


def _batched(scores: Any, labels: Any, name: str, several: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return scores ``(batch, classes, *space)`` and labels ``(batch, *space)``; a single case becomes a batch of one.

    Labels may have an axis of length one where scores have classes. Where a batch and a single case both fit, it is a
    batch. Those of several raters are one more array per case, whose axes their declaration says.
    """
    scores = as_tensor(scores, name)
    if labels is None:
        return scores, None
    labels = as_tensor(labels, "labels")
    space = scores.shape[2:]
    if several and labels.shape[:1] == scores.shape[:1]:
        return scores, labels
    if labels.ndim == scores.ndim and labels.shape[1:2] == (1,) and labels.shape[2:] == space:
        labels = labels[:, 0]
    if labels.shape[:1] == scores.shape[:1] != () and (labels.shape[1:] == space or labels.shape == scores.shape):
        return scores, labels
    if labels.shape == scores.shape[1:]:
        return scores[None], labels[None]
    raise InputError(
        f"{name} has shape {tuple(scores.shape)} and labels {tuple(labels.shape)}, but (batch, classes, *space) and "
        "(batch, *space) are needed. Give both at one resolution; axis 1 holds the classes."
    )


def _with_space(scores: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return voxels without space, ``(voxels, classes)``, as one case along one axis; all else as it is."""
    flat = labels is not None and scores.ndim == 2 and labels.shape == scores.shape[:1]
    return (scores.T[None], labels[None]) if flat else (scores, labels)  # type: ignore[index]


def _is_pair(item: Any, shares: bool) -> bool:
    """Whether an item of a list is ``(scores, labels)``: two arrays, the second of whole numbers or shares."""
    pair = isinstance(item, list | tuple) and len(item) == 2 and hasattr(item[1], "dtype")
    return pair and (shares or not as_tensor(item[1], "labels").is_floating_point())


def _cases_of(data: Sequence[Any], labels: Any, pooling: str | None) -> Sequence[Any]:
    """Return one entry per case: of a list of members ``(batch, classes, *space)``, one list of members per case."""
    if labels is None and pooling not in (None, "single") and all(hasattr(one, "shape") for one in data):
        raise InputError(
            f"data is a list of {len(data)} arrays with pooling={pooling!r} and no labels, but without these it is not "
            "known whether they are members or cases. Pass one list of members per case: [[member, ...], ...]."
        )
    if labels is None or isinstance(labels, list | tuple) or not all(hasattr(one, "shape") for one in data):
        return data
    shape = tuple(as_tensor(labels, "labels").shape)
    whole = all(len(one) == len(labels) and (one.ndim == len(shape) + 1 or tuple(one.shape) == shape) for one in data)
    return [list(members) for members in zip(*data, strict=True)] if whole else data


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put a network into evaluation mode, and then each of its modules into the mode it was in."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        if modes:
            model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
