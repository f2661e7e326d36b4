"""What an embedded task is: cases drawn from a random generator, never stored.

A case is fixed by three numbers, the task's key, a seed and an index. The seeds keep what a network was trained on
apart from what it is judged on: no index of :data:`HELD_OUT` is ever seen in training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HELD_OUT = 0
TRAINING = 1
VALIDATION = 2


class Sample(NamedTuple):
    """One case of a task.

    Attributes:
        image: float32 ``(channels, *space)``; pictures lie in [0, 1].
        labels: int64 ``(*space)`` with :data:`segcal.types.IGNORED` where a voxel does not count.
        mask: bool ``(*space)``, False outside the field of view, or None where there is data everywhere.
    """

    image: NDArray[np.float32]
    labels: NDArray[np.int64]
    mask: NDArray[np.bool_] | None


@dataclass(frozen=True)
class Task:
    """The facts of a task and the function that draws its cases.

    Attributes:
        name: its name in :data:`segcal.demo.tasks.TASKS`.
        key: enters the random generator, so that two tasks with one seed share nothing.
        class_names: one name a class.
        channels: of the image.
        space: the size of a case.
        spacing: the size of a voxel along each axis, in millimetres or pixels.
        background: class 0 is what is left over, and Dice leaves it out; if False all classes count.
        palette: one RGB colour a class, for pictures of the labels.
        draw: makes one case from a generator.
    """

    name: str
    key: int
    class_names: tuple[str, ...]
    channels: int
    space: tuple[int, ...]
    spacing: tuple[float, ...]
    background: bool
    palette: tuple[tuple[int, int, int], ...]
    draw: Callable[[np.random.Generator], Sample]

    @property
    def num_classes(self) -> int:
        """Return C."""
        return len(self.class_names)

    def sample(self, index: int, seed: int = HELD_OUT) -> Sample:
        """Draw the case number `index` of a seed; the same numbers give the same case."""
        return self.draw(np.random.default_rng([self.key, seed, index]))
