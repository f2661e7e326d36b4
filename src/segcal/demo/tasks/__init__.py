"""Three procedural tasks of our own making, each standing for a kind of real data."""

from segcal.checks import check_choice
from segcal.demo.tasks.roads import ROADS
from segcal.demo.tasks.scene import HELD_OUT, TRAINING, VALIDATION, Sample, Task
from segcal.demo.tasks.streets import STREETS
from segcal.demo.tasks.tumour import TUMOUR

TASKS: dict[str, Task] = {"roads": ROADS, "tumour": TUMOUR, "streets": STREETS}


def get_task(name: str) -> Task:
    """Return the task of this name.

    >>> get_task("roads").class_names
    ('other', 'road')
    """
    check_choice(name, "embedded task", TASKS)
    return TASKS[name]


__all__ = ["HELD_OUT", "TASKS", "TRAINING", "VALIDATION", "Sample", "Task", "get_task"]
