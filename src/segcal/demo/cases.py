"""Held-out cases of an embedded task, generated and predicted when they are read."""

from collections.abc import Iterable

import torch

from segcal.cases.base import Case, Cases
from segcal.demo.ensembles import MEMBERS, load_ensemble, predict
from segcal.demo.tasks import HELD_OUT, get_task
from segcal.errors import InputError
from segcal.pooling import check_pooling, pool


class EmbeddedCases(Cases):
    """Cases of a task with the pooled logits of its shipped ensemble.

    Nothing is kept: reading a case twice draws and predicts it twice.

    Args:
        task: a name from :data:`segcal.demo.tasks.TASKS`.
        indices: which cases; an id is the task's name and the index.
        pooling: a name from :data:`segcal.pooling.POOLINGS`; "single" takes the first network alone.
        members: how many networks of the ensemble.

    >>> EmbeddedCases("roads", range(3), "mean_logits", members=2).ids
    ('roads_0000', 'roads_0001', 'roads_0002')
    """

    def __init__(self, task: str, indices: Iterable[int], pooling: str, members: int = MEMBERS) -> None:
        self.task = get_task(task)
        if not 1 <= members <= MEMBERS:
            raise InputError(f"members is {members}, but 1 to {MEMBERS} networks are shipped. Choose one of these.")
        self._indices = {f"{task}_{index:04d}": index for index in indices}
        super().__init__(
            list(self._indices),
            self.task.num_classes,
            "logits",
            pooling=check_pooling(pooling),
            class_names=self.task.class_names,
        )
        self._how = pooling
        self._networks = load_ensemble(task, 1 if pooling == "single" else members)

    def read(self, case_id: str) -> Case:
        """Draw one case and predict it."""
        if case_id not in self._indices:
            raise InputError(f"case_id is {case_id!r}, but there is no such case among {len(self)}. Check `.ids`.")
        sample = self.task.sample(self._indices[case_id], HELD_OUT)
        return Case(
            id=case_id,
            logits=pool((predict(network, sample.image) for network in self._networks), self._how),
            labels=torch.from_numpy(sample.labels),
            mask=None if sample.mask is None else torch.from_numpy(sample.mask),
            spacing=self.task.spacing,
            image=torch.from_numpy(sample.image),
        )
