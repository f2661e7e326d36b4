"""What a study of losses is to do: plain data, handed to every process."""

import os
from dataclasses import dataclass
from pathlib import Path

from segcal.demo.loss_study.data import FULL, SMALL
from segcal.demo.loss_study.network import Effort
from segcal.demo.loss_study.plan import Unit, plan_units
from segcal.demo.loss_study.unit import Desk
from segcal.demo.tasks import TASKS


@dataclass(frozen=True)
class Study:
    """What is to be run.

    Attributes:
        folder: cases, weights, results and claims; a study goes on from what is there.
        archive: the file that all results are packed into.
        device: where to train.
        trainers: how many processes train.
        at_once: how many networks each of them trains side by side.
        measurers: how many processes measure.
        deadline: seconds after which nothing new is begun.
        seeds: networks of each kind.
        tasks: names of tasks.
        main: only the networks of the main table.
        small: few cases and two epochs, to try it out.
        limit: at most so many networks, or None.
    """

    folder: Path
    archive: Path
    device: str = "cpu"
    trainers: int = 1
    at_once: int = 1
    measurers: int = 1
    deadline: float = 3600.0
    seeds: int = 3
    tasks: tuple[str, ...] = tuple(TASKS)
    main: bool = False
    small: bool = False
    limit: int | None = None

    def units(self) -> list[Unit]:
        """Return the networks, the most important first."""
        return plan_units(self.seeds, self.tasks, self.main)[: self.limit]

    def desk(self, graph: bool = False) -> Desk:
        """Return a place to work at."""
        return Desk(self.folder, SMALL if self.small else FULL, Effort(self.device, 2 if self.small else None, graph))

    def threads(self) -> int:
        """Return how many threads a process may use."""
        return max((os.cpu_count() or 1) // max(self.trainers + self.measurers, 1), 1)
