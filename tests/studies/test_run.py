"""From a protocol to tables and studies in one call."""

import numpy as np
import pytest

from segcal.benchmark.protocol import parse_protocol
from segcal.errors import InputError
from segcal.studies.run import run


@pytest.fixture
def blobs(tmp_path):
    """Return a folder with a task of one member, and its table."""
    rng = np.random.default_rng(0)
    for name in ("labels", "member"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for number in range(12):
        rough = rng.normal(size=(3, 13, 11)).cumsum(1).cumsum(2)
        np.save(tmp_path / "data" / "labels" / f"{number}.npy", rough.argmax(0).astype(np.uint8))
        noisy = 0.7 * rough + 2 * rng.normal(size=rough.shape)
        np.save(tmp_path / "data" / "member" / f"{number}.npy", noisy.astype(np.float32))
    return tmp_path / "data", {"name": "blobs", "members": ["member"], "labels": "labels", "kind": "logits"}


def test_results_tables_and_studies_are_there_and_a_second_run_does_nothing(blobs, tmp_path):
    root, table = blobs
    document = {
        "tasks": [table],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in ("identity", "ts")],
        "split": {"cal": 4, "val": 2},
        "repeats": 2,
        "metrics": ["nll", "ece", "ace"],
        "bootstrap": {"replicates": 20},
        "studies": ["binning", "padding"],
    }
    protocol = parse_protocol(document, root)
    folder = tmp_path / "results"
    steps, failures = [], []
    whole = run(protocol, folder, progress=steps.append, failed=failures.append)
    assert list(whole.studies) == ["binning"]
    assert whole.left_out == {"padding": "no task has logits with their offset and a mask"}
    assert failures == []
    assert steps[0].message == "reading cases of blobs"
    assert [step.message for step in steps][-3:] == ["study: binning", "study: padding", ""]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")}
    assert len(before) == 4
    files = {path.name for path in (folder / "tables").iterdir()}
    assert {"table4_results.tex", "figure6_binning.csv"} <= files
    again = run(protocol, folder)
    assert again.setting.summary == whole.setting.summary
    assert whole.setting.results.protocol.studies == ("binning", "padding")
    assert again.studies["binning"].data == whole.studies["binning"].data
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")} == before


def test_a_study_that_does_not_exist_is_refused_before_anything_is_written(blobs, tmp_path):
    root, table = blobs
    protocol = parse_protocol({"tasks": [table], "studies": ["weather"]}, root)
    with pytest.raises(InputError, match="no study is named 'weather'"):
        run(protocol, tmp_path / "results")
    assert not (tmp_path / "results").exists()
