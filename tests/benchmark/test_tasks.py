"""Opening the tasks of a protocol."""

import numpy as np
import pytest

from segcal.benchmark.tasks import FolderTask, OpenTask, open_task, read_tasks
from segcal.errors import InputError


def test_single_is_the_first_member_and_means_are_means(data):
    root, blobs, _ = data
    (task,) = read_tasks([blobs])
    first = np.load(root / "blobs" / "member_0" / "p0_v0.npy")
    second = np.load(root / "blobs" / "member_1" / "p0_v0.npy")
    found = {how: open_task(task, how, root, None).cases for how in ("single", "mean_logits")}
    assert np.array_equal(found["single"].read("p0_v0").logits.numpy(), first)
    assert np.allclose(found["mean_logits"].read("p0_v0").logits.numpy(), (first + second) / 2)
    assert found["single"].groups["p0_v1"] == "p0"


def test_paths_begin_at_the_root_and_background_is_on_unless_declared(data):
    root, blobs, _ = data
    (task,) = read_tasks([{**blobs, "background": False}])
    assert isinstance(task, FolderTask)
    assert task.labels == "blobs/labels"
    assert open_task(task, "single", root, None).background is False
    assert open_task(read_tasks([blobs])[0], "single", root, None).background is True


def test_an_embedded_task_is_opened_by_the_function_that_was_given(data):
    (task,) = read_tasks([{"name": "x", "embedded": "roads", "members": 3}])
    asked = []

    def opener(which, pooling):
        asked.append((which.embedded, which.members, pooling))
        return OpenTask(None, True)

    open_task(task, "mean_probs", data[0], opener)
    assert asked == [("roads", 3, "mean_probs")]


def test_excluded_cases_are_not_there_and_must_exist(data):
    root, blobs, _ = data
    (task,) = read_tasks([{**blobs, "exclude": ["p0_v1", "p2_v0"]}])
    every = open_task(read_tasks([blobs])[0], "mean_logits", root, None).cases.ids
    found = open_task(task, "mean_logits", root, None).cases.ids
    assert found == tuple(case_id for case_id in every if case_id not in ("p0_v1", "p2_v0"))
    (wrong,) = read_tasks([{**blobs, "exclude": ["p99"]}])
    with pytest.raises(InputError, match="task 'blobs' has exclude with 'p99', which is none of its cases"):
        open_task(wrong, "mean_logits", root, None)
    (nothing,) = read_tasks([{**blobs, "exclude": list(every)}])
    with pytest.raises(InputError, match="has exclude with all 12 cases, but cases must remain"):
        open_task(nothing, "mean_logits", root, None)
