"""Held-out cases of the embedded tasks: made and predicted when they are read, and kept where there is a cache."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from segcal.atomic import written
from segcal.benchmark.tasks import EmbeddedTask, OpenTask
from segcal.cases.base import Case, Cases
from segcal.demo.tasks import HELD_OUT, get_task
from segcal.demo.unet import MEMBERS, UNet, load_ensemble, predict
from segcal.errors import InputError
from segcal.pooling import POOLINGS, check_pooling, pool
from segcal.studies.corruptions import corrupt


def open_embedded(task: EmbeddedTask, pooling: str, *, cache: Path | None = None, once: bool = False) -> OpenTask:
    """Open an embedded task of a protocol.

    Predictions are kept in the folder `cache`. Without it they are made anew whenever a case is read, and so they are
    if each case is read `once`.
    """
    indices = range(task.first, task.first + task.cases)
    kept = None if once else cache
    cases = EmbeddedCases(task.embedded, indices, pooling, task.members, task.corruption, kept)
    background = cases.task.background if task.background is None else task.background
    return OpenTask(cases, background, cases.predict)


class EmbeddedCases(Cases):
    """Cases of a task with the pooled logits of its shipped ensemble.

    Args:
        task: a name from :data:`segcal.demo.tasks.TASKS`.
        indices: of the cases; an id is the task's name and the index.
        pooling: a name from :data:`segcal.pooling.POOLINGS`; "single" takes the first network alone.
        members: how many networks of the ensemble.
        corruption: "" or a strength ("mild", "strong"): images are corrupted before the networks see them.
        cache: a folder; when a case is read, all its poolings are kept there. Without it nothing is kept.

    >>> EmbeddedCases("roads", range(3), "mean_logits", members=2).ids
    ('roads_0000', 'roads_0001', 'roads_0002')
    """

    def __init__(
        self,
        task: str,
        indices: Iterable[int],
        pooling: str,
        members: int = MEMBERS,
        corruption: str = "",
        cache: Path | None = None,
    ) -> None:
        self.task = get_task(task)
        if not 1 <= members <= MEMBERS:
            raise InputError(f"members is {members}, but 1 to {MEMBERS} networks are shipped. Choose one of these.")
        self._indices = {f"{task}_{index:04d}": index for index in indices}
        self._poolings = [check_pooling(pooling)] if cache is None else list(POOLINGS)
        self._members = 1 if self._poolings == ["single"] else members
        self._corruption = corruption
        self._cache = None if cache is None else cache / f"{task}-{members}-{corruption or 'clean'}"
        super().__init__(
            list(self._indices), self.task.num_classes, "logits", pooling=pooling, class_names=self.task.class_names
        )

    def read(self, case_id: str) -> Case:
        """Read one case: from the cache, or made and predicted."""
        if case_id not in self._indices:
            raise InputError(f"case_id is {case_id!r}, but there is no such case among {len(self)}. Check `.ids`.")
        found = self._kept(case_id) or self._predicted(case_id)
        return Case(
            id=case_id,
            logits=found[str(self.pooling)],
            labels=found["labels"],
            mask=found.get("mask"),
            spacing=self.task.spacing,
            image=found["image"],
        )

    def predict(self, image: Tensor) -> Tensor:
        """Return the pooled logits of any image ``(channels, *space)``, as studies of inference need them."""
        networks = self._networks[:1] if self.pooling == "single" else self._networks
        return pool((predict(network, image.numpy()) for network in networks), str(self.pooling))

    @cached_property
    def _networks(self) -> list[UNet]:
        return load_ensemble(self.task.name, self._members)

    def __getstate__(self) -> dict[str, object]:
        """Leave the networks out when it is sent to another process, which loads them if it needs them."""
        return {key: value for key, value in self.__dict__.items() if key != "_networks"}

    def _kept(self, case_id: str) -> dict[str, Tensor] | None:
        try:
            return None if self._cache is None else dict(load_file(self._cache / f"{case_id}.safetensors"))
        except (OSError, SafetensorError):
            return None

    def _predicted(self, case_id: str) -> dict[str, Tensor]:
        sample = self.task.sample(self._indices[case_id], HELD_OUT)
        image = corrupt(sample.image, case_id, self._corruption) if self._corruption else sample.image
        members = [predict(network, image) for network in self._networks]
        found = {how: pool(members[:1] if how == "single" else members, how) for how in self._poolings}
        found |= {"labels": torch.from_numpy(sample.labels), "image": torch.from_numpy(image)}
        if sample.mask is not None:
            found["mask"] = torch.from_numpy(sample.mask)
        if self._cache is not None:
            with written(self._cache / f"{case_id}.safetensors") as beside:
                save_file({key: value.contiguous().clone() for key, value in found.items()}, beside)
        return found
