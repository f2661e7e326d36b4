"""Embedded tasks for a benchmark: opened by name, and predicted once however often they are read."""

from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from segcal.atomic import written
from segcal.benchmark.corruptions import corrupt
from segcal.benchmark.tasks import EmbeddedTask, OpenTask
from segcal.cases.base import Case, Cases
from segcal.demo.ensembles import MEMBERS, load_ensemble, predict
from segcal.demo.tasks import HELD_OUT, get_task
from segcal.demo.unet import UNet
from segcal.errors import InputError
from segcal.pooling import POOLINGS, check_pooling, pool


def open_embedded(task: EmbeddedTask, pooling: str, cache: Path | None = None) -> OpenTask:
    """Open an embedded task of a protocol.

    Args:
        task: which one, and how many of its cases and networks.
        pooling: a name from :data:`segcal.POOLINGS`; "single" takes the first network alone.
        cache: a folder in which predictions are kept; without it they are made anew whenever a case is read.
    """
    facts = get_task(task.embedded)
    background = facts.background if task.background is None else task.background
    cases = PredictedCases(task, pooling, cache)
    return OpenTask(cases, background, cases.predict)


class PredictedCases(Cases):
    """Cases of an embedded task, with all poolings kept when one is read.

    Args:
        task: which one.
        pooling: a name from :data:`segcal.POOLINGS`.
        cache: where predictions are kept, or None.
    """

    def __init__(self, task: EmbeddedTask, pooling: str, cache: Path | None) -> None:
        self.facts = get_task(task.embedded)
        if not 1 <= task.members <= MEMBERS:
            raise InputError(
                f"task {task.name!r} has members = {task.members}, but 1 to {MEMBERS} networks are shipped. "
                "Choose one of these."
            )
        self._task = task
        self._indices = {f"{task.embedded}_{i:04d}": i for i in range(task.first, task.first + task.cases)}
        place = f"{task.embedded}-{task.members}-{task.corruption or 'clean'}"
        self._cache = None if cache is None else cache / place
        super().__init__(
            list(self._indices),
            self.facts.num_classes,
            "logits",
            pooling=check_pooling(pooling),
            class_names=self.facts.class_names,
        )

    def read(self, case_id: str) -> Case:
        """Read one case: from the cache, or drawn and predicted."""
        if case_id not in self._indices:
            raise InputError(f"case_id is {case_id!r}, but there is no such case among {len(self)}. Check `.ids`.")
        found = self._cached(case_id) or self._predicted(case_id)
        return Case(
            id=case_id,
            logits=found[str(self.pooling)],
            labels=found["labels"],
            mask=found.get("mask"),
            spacing=self.facts.spacing,
            image=found["image"],
        )

    def predict(self, image: Tensor) -> Tensor:
        """Return the pooled logits of any image ``(channels, *space)``, as studies of inference need them."""
        networks = self._networks[:1] if self.pooling == "single" else self._networks
        return pool((predict(network, image.numpy()) for network in networks), str(self.pooling))

    @cached_property
    def _networks(self) -> list[UNet]:
        return load_ensemble(self._task.embedded, self._task.members)

    def __getstate__(self) -> dict[str, object]:
        """Leave the networks behind when it travels to another process; they are loaded there if they are needed."""
        return {key: value for key, value in self.__dict__.items() if key != "_networks"}

    def _cached(self, case_id: str) -> dict[str, Tensor] | None:
        if self._cache is None:
            return None
        try:
            return dict(load_file(self._cache / f"{case_id}.safetensors"))
        except (OSError, SafetensorError):
            return None

    def _predicted(self, case_id: str) -> dict[str, Tensor]:
        sample = self.facts.sample(self._indices[case_id], HELD_OUT)
        image = sample.image
        if self._task.corruption:
            image = corrupt(image, case_id, self._task.corruption)
        members = [predict(network, image) for network in self._networks]
        wanted = list(POOLINGS) if self._cache is not None else [str(self.pooling)]
        found = {how: pool(members[:1] if how == "single" else members, how) for how in wanted}
        found |= {"labels": torch.from_numpy(sample.labels), "image": torch.from_numpy(image)}
        if sample.mask is not None:
            found["mask"] = torch.from_numpy(sample.mask)
        if self._cache is not None:
            with written(self._cache / f"{case_id}.safetensors") as beside:
                save_file({key: value.contiguous().clone() for key, value in found.items()}, beside)
        return found
