"""From a protocol to tables and studies in one call."""

from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.whole import run_protocol


def test_results_tables_and_studies_are_there_and_a_second_run_does_nothing(data, tmp_path):
    root, blobs, _ = data
    document = {
        "tasks": [blobs],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in ("identity", "ts")],
        "split": {"cal": 4, "val": 2},
        "repeats": 2,
        "metrics": ["nll", "ece", "ace"],
        "bootstrap": {"replicates": 20},
        "studies": ["binning", "padding"],
    }
    protocol = parse_protocol(document, root)
    steps, failures = [], []
    whole = run_protocol(protocol, tmp_path, progress=steps.append, failed=failures.append)
    assert list(whole.studies) == ["binning"]
    assert whole.left_out == {"padding": "no task has logits with their offset and a mask"}
    assert failures == []
    assert steps[0].message == "reading cases of blobs"
    assert [step.message for step in steps][-3:] == ["study: binning", "study: padding", ""]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    assert len(before) == 4
    files = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"table4_results.tex", "figure6_binning.csv"} <= files
    again = run_protocol(protocol, tmp_path)
    assert again.setting.summary == whole.setting.summary
    assert again.studies["binning"].data == whole.studies["binning"].data
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before
