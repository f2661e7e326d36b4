"""Broken cases are found first, left out everywhere, and tried again later."""

import json
import shutil

import numpy as np
import pytest

from segcal.benchmark import broken_cases
from segcal.benchmark.broken_cases import exclude_broken, read_sifted
from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.run import run_benchmark
from segcal.errors import InputError


@pytest.fixture
def broken(data, tmp_path):
    """Return a copy of the task with one case of which the second member is not a number."""
    root, blobs, _ = data
    shutil.copytree(root / "blobs", tmp_path / "blobs")
    path = tmp_path / "blobs" / "member_1" / "p3_v1.npy"
    whole = np.load(path)
    np.save(path, np.full_like(whole, np.nan))
    return tmp_path, blobs, path, whole


def document(task):
    return {
        "tasks": [task, {"name": "drawn", "embedded": "roads"}],
        "pipelines": [{"pooling": "single", "calibrator": "identity"}, {"pooling": "mean_logits", "calibrator": "ts"}],
        "repeats": 1,
        "split": {"cal": 4, "val": 2},
        "metrics": ["nll", "ece", "ace"],
    }


def test_a_broken_case_is_left_out_for_all_pipelines_and_named(broken, tmp_path):
    root, task, path, _ = broken
    failures = []
    protocol = exclude_broken(parse_protocol(document(task), root), tmp_path / "out", failures.append)
    assert [failure.case_id for failure in failures] == ["blobs/p3_v1"]
    assert str(path) in failures[0].reason
    assert [each.exclude for each in protocol.tasks] == [("p3_v1",), ()]
    alone = parse_protocol(document(task) | {"tasks": [task]}, root)
    results = run_benchmark(exclude_broken(alone, tmp_path / "out", failures.append), tmp_path / "out")
    for unit in results.units:
        used = [*unit.header.cal, *unit.header.val, *unit.header.test]
        assert len(used) == 11
        assert "p3_v1" not in used


def test_what_was_read_well_is_not_read_again_and_a_repaired_case_comes_back(broken, tmp_path, monkeypatch):
    root, task, path, whole = broken
    protocol = parse_protocol(document(task), root)
    steps = []
    exclude_broken(protocol, tmp_path / "out", lambda failure: None, steps.append)
    assert steps[-1].total == 12
    read = []
    original = broken_cases.map_cases
    monkeypatch.setattr(
        broken_cases, "map_cases", lambda cases, *rest: [read.append(cases.ids), *original(cases, *rest)]
    )
    failures = []
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ("p3_v1",)
    assert len(failures) == 1
    np.save(path, whole)
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ()
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ()
    assert read == [("p3_v1",), ("p3_v1",), ()]
    assert len(failures) == 1


def test_other_files_are_all_read_again_and_a_record_that_cannot_be_read_is_written_anew(broken, tmp_path):
    root, task, path, whole = broken
    protocol = parse_protocol(document(task), root)
    exclude_broken(protocol, tmp_path / "out", lambda failure: None)
    np.save(path, whole[:, :-1])
    failures = []
    exclude_broken(protocol, tmp_path / "out", failures.append)
    assert "Members of one ensemble must agree" in failures[0].reason
    (tmp_path / "out" / "sifted.json").write_text("[")
    exclude_broken(protocol, tmp_path / "out", failures.append)
    assert json.loads((tmp_path / "out" / "sifted.json").read_text())["blobs"]["broken"].keys() == {"p3_v1"}


def test_a_task_of_broken_cases_alone_is_refused(broken, tmp_path):
    root, task, *_ = broken
    for path in (root / "blobs" / "member_1").iterdir():
        np.save(path, np.full((3, 13, 11), np.nan, np.float32))
    with pytest.raises(InputError, match="task 'blobs' has 12 cases and none can be used, but some are needed"):
        exclude_broken(parse_protocol(document(task), root), tmp_path / "out", lambda failure: None)


@pytest.mark.parametrize("content", ["[1]", '{"t": [1]}', '{"t": {"fingerprint": "x"}}', "[" * 100_000])
def test_a_record_that_holds_something_else_counts_as_none(content, tmp_path):
    (tmp_path / "sifted.json").write_text(content)
    assert read_sifted(tmp_path / "sifted.json") == {}
