"""Several trainings on one device that take turns, step by step, from one process.

A small network leaves most of a GPU idle, and kernels of different processes do not run at the same time. Here each
training has a stream of its own, so that the steps of several run side by side. On a CPU they simply alternate. The
result of each is that of training it alone, unless its module draws random numbers: these come from one generator.
"""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from paper.loss_study.trainer import Steps, Trained
from segcal.errors import InputError

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Ended(Generic[Name]):
    """A training that has ended: its name, and its result or what went wrong."""

    name: Name
    trained: Trained | None
    error: Exception | None = None


@dataclass
class _Place(Generic[Name]):
    """One of the trainings in progress, and its stream."""

    name: Name
    steps: Steps
    stream: "torch.cuda.Stream | None"

    def turn(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def take_turns(trainings: Iterable[tuple[Name, Steps]], at_once: int, device: str) -> Iterator[Ended[Name]]:
    """Run trainings side by side and return each when it ends.

    Args:
        trainings: a name and the generator of `train_steps` of each; the next one is asked for when there is a free
            place, so what it claims or reads is claimed and read then.
        at_once: how many places there are.
        device: that all of them train on.

    Returns:
        each training as it ends; an exception in one leaves the others alone.

    >>> from segcal.losses import make_loss
    >>> from paper.loss_study.training import TrainConfig
    >>> from segcal.demo.unet import UNet
    >>> from paper.loss_study.trainer import train_steps
    >>> case, config = (torch.rand(1, 8, 8), torch.ones(8, 8, dtype=torch.int64)), TrainConfig(epochs=2)
    >>> def job(name):
    ...     return name, train_steps(UNet(1, 2, widths=(4,)), make_loss(name), [case], config)
    >>> sorted(ended.name for ended in take_turns(map(job, ("ce", "nacl")), at_once=2, device="cpu"))
    ['ce', 'nacl']
    """
    if at_once < 1:
        raise InputError(f"at_once is {at_once}, but at least 1 is needed. Choose how many trainings run side by side.")
    on_gpu = torch.device(device).type == "cuda"
    free: list[torch.cuda.Stream | None] = [torch.cuda.Stream(device) if on_gpu else None for _ in range(at_once)]
    places: list[_Place[Name]] = []
    waiting = iter(trainings)
    more = True
    while more or places:
        while more and free:
            entry = next(waiting, None)
            if entry is None:
                more = False
            else:
                places.append(_Place(*entry, stream=free.pop()))
        for place in list(places):
            ended = _step(place)
            if ended is not None:
                places.remove(place)
                free.append(place.stream)
                yield ended


def _step(place: _Place[Name]) -> Ended[Name] | None:
    try:
        with place.turn():
            next(place.steps)
    except StopIteration as end:
        if place.stream is not None:
            place.stream.synchronize()  # its weights may be read on another stream
        return Ended(place.name, end.value)
    except Exception as error:  # whatever it is, it is this training's alone
        return Ended(place.name, None, error)
    return None
