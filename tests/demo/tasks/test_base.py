"""What every embedded task promises."""

import numpy as np
import pytest

from segcal.demo.tasks import HELD_OUT, TASKS, TRAINING, VALIDATION, get_task
from segcal.errors import InputError
from segcal.types import IGNORED


@pytest.fixture(scope="module")
def drawn():
    return {name: [task.sample(index) for index in range(6)] for name, task in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_has_the_types_and_sizes_that_the_task_states(name, drawn):
    task = TASKS[name]
    assert len(set(task.space)) == len(task.space) == len(task.spacing)
    assert len(task.palette) == task.num_classes
    for image, labels, mask in drawn[name]:
        assert (image.dtype, image.shape) == (np.float32, (task.channels, *task.space))
        assert (labels.dtype, labels.shape) == (np.int64, task.space)
        assert np.isfinite(image).all()
        assert set(np.unique(labels)) <= {IGNORED, *range(task.num_classes)}
        if mask is not None:
            assert (mask.dtype, mask.shape) == (np.bool_, task.space)
            assert (labels[~mask] == IGNORED).all()


@pytest.mark.parametrize("name", TASKS)
def test_the_same_numbers_give_the_same_case_and_others_another(name, drawn):
    task, first = TASKS[name], drawn[name][0]
    again = task.sample(0, HELD_OUT)
    assert np.array_equal(again.image, first.image)
    assert np.array_equal(again.labels, first.labels)
    for other in (drawn[name][1], task.sample(0, TRAINING), task.sample(0, VALIDATION)):
        assert not np.array_equal(other.labels, first.labels)


@pytest.mark.parametrize("name", TASKS)
def test_drawing_touches_no_global_random_state(name):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    TASKS[name].sample(1)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("name", TASKS)
def test_every_class_appears_and_class_sizes_differ_a_lot(name, drawn):
    counts = sum(
        np.bincount(labels[labels != IGNORED], minlength=TASKS[name].num_classes) for _, labels, _ in drawn[name]
    )
    assert (counts > 0).all()
    assert counts.max() > 5 * counts.min()


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no embedded task is named 'cells'\. Choose one of: roads, tumour, streets"):
        get_task("cells")
