"""Opening the tasks of a protocol."""

import json

import numpy as np
import pytest

from segcal.benchmark.tasks import OpenTask, open_task, read_task
from segcal.errors import InputError


def test_single_is_the_first_member_and_means_are_means(data):
    root, blobs, _ = data
    task = read_task(blobs, "t")
    first = np.load(root / "blobs" / "member_0" / "p0_v0.npy")
    second = np.load(root / "blobs" / "member_1" / "p0_v0.npy")
    found = {how: open_task(task, how, root).cases for how in ("single", "mean_logits")}
    assert np.array_equal(found["single"].read("p0_v0").logits.numpy(), first)
    assert np.allclose(found["mean_logits"].read("p0_v0").logits.numpy(), (first + second) / 2)
    assert found["single"].groups["p0_v1"] == "p0"
    one = open_task(task, "mean_logits", root, members=1).cases.read("p0_v0").logits
    assert np.array_equal(one, first)
    bare = read_task({**blobs, "background": False}, "t")
    assert [open_task(each, "single", root).background for each in (bare, task)] == [False, True]


def test_an_embedded_task_is_opened_by_the_function_that_was_given(data):
    task = read_task({"name": "x", "embedded": "roads", "members": 3}, "t")
    asked = []

    def opener(which, pooling, once=False):
        asked.append((which.embedded, which.members, pooling, once))
        return OpenTask(None, True)

    open_task(task, "mean_probs", data[0], opener)
    open_task(task, "mean_probs", data[0], opener, members=2)
    assert asked == [("roads", 3, "mean_probs", False), ("roads", 2, "mean_probs", True)]


def test_excluded_cases_are_not_there_and_must_exist(data):
    root, blobs, _ = data
    task = read_task({**blobs, "exclude": ["p0_v1", "p2_v0"]}, "t")
    every = open_task(read_task(blobs, "t"), "mean_logits", root).cases.ids
    found = open_task(task, "mean_logits", root).cases.ids
    assert found == tuple(case_id for case_id in every if case_id not in ("p0_v1", "p2_v0"))
    wrong = read_task({**blobs, "exclude": ["p99"]}, "t")
    with pytest.raises(InputError, match="task 'blobs' has exclude with 'p99', which is none of its cases"):
        open_task(wrong, "mean_logits", root)
    nothing = read_task({**blobs, "exclude": list(every)}, "t")
    with pytest.raises(InputError, match="has exclude with all 12 cases, but cases must remain"):
        open_task(nothing, "mean_logits", root)


def test_every_region_is_a_task_of_two_classes(data):
    root, blobs, _ = data
    table = {**blobs, "name": "blobs", "regions": {"all things": [1, 2], "inner": [2], "first": [1]}}
    tasks = read_task(table, "t").by_region()
    assert [task.name for task in tasks] == ["blobs-all-things", "blobs-inner", "blobs-first"]
    cases = open_task(tasks[0], "mean_logits", root).cases
    assert (cases.num_classes, cases.class_names) == (2, ("not all things", "all things"))
    case, stored = cases.read("p0_v0"), np.load(root / "blobs" / "labels" / "p0_v0.npy")
    assert np.array_equal(case.labels, np.isin(stored, [1, 2]))
    first, second = (np.load(root / "blobs" / f"member_{number}" / "p0_v0.npy") for number in (0, 1))
    assert np.allclose(case.logits[1], (first + second)[0] / 2)
    assert tasks[1].plain()["region"] == "inner"
    assert "region" not in read_task(blobs, "t").plain()
    assert read_task(blobs, "t").by_region() == [read_task(blobs, "t")]


def test_regions_that_a_folder_has_are_declared(tmp_path):
    for folder in ("p", "l"):
        (tmp_path / folder).mkdir()
    np.savez(tmp_path / "p" / "a.npz", probabilities=np.full((2, 3, 4), 0.3, np.float32))
    np.save(tmp_path / "l" / "a.npy", np.zeros((3, 4), np.uint8))
    described = {"labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 2]}
    (tmp_path / "p" / "dataset.json").write_text(json.dumps(described))
    table = {"name": "t", "members": ["p"], "labels": "l"}
    with pytest.raises(
        InputError, match="task 't' has the regions whole, core, but each of them is measured by itself"
    ):
        open_task(read_task(table, "t"), "single", tmp_path)
    tasks = read_task({**table, "regions": {"whole": [1, 2], "core": [2]}}, "t").by_region()
    assert open_task(tasks[1], "single", tmp_path).cases.class_names == ("not core", "core")
