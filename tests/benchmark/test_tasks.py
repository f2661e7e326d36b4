"""Opening the tasks of a protocol."""

import numpy as np

from segcal.benchmark.tasks import FolderTask, OpenTask, open_task, read_tasks


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
