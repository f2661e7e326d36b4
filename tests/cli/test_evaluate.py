import csv
import json

import numpy as np
import pytest

import segcal


def mean_nll(scores, labels):
    log_probs = scores - np.log(np.exp(scores).sum(0))
    return -np.take_along_axis(log_probs, labels[None].astype(int), 0).mean()


def test_held_out_cases_are_reported_apart_from_those_fitted_on(folders, calibrator, run):
    fitted = segcal.load(calibrator)
    seen = {*fitted.calibration_ids, *fitted.validation_ids}
    document = run("evaluate", *folders.both, "--calibrator", calibrator, "--json").document
    assert document["part"] == "held out"
    assert document["cases"] == 2
    assert document["fitted_on"]["cases"] == 4
    beta = float(fitted.calibrator.inverse_temperature.detach())
    for part, ids in ((document, set(folders.scores) - seen), (document["fitted_on"], seen)):
        for stage, factor in (("before", 1.0), ("after", beta)):
            values = [
                mean_nll(factor * folders.scores[name].astype(float), np.load(folders.labels / f"{name}.npy"))
                for name in ids
            ]
            assert part[stage]["nll"]["value"] == pytest.approx(np.mean(values), abs=1e-6)
            low, high = part[stage]["nll"]["low"], part[stage]["nll"]["high"]
            if part is document:  # two cases have no interval
                assert low is high is None
            else:
                assert low <= part[stage]["nll"]["value"] <= high
    printed = run("evaluate", *folders.both, "--calibrator", calibrator)
    assert printed.out.index("held-out cases:") < printed.out.index("cases that the calibrator was fitted or chosen on")
    assert "2 cases: mean (too few for an interval)" in printed.out
    assert printed.err == ""


def test_without_a_calibrator_there_is_no_after(folders, run):
    document = run("evaluate", *folders.both, "--json").document
    assert document["after"] is None
    assert document["cases"] == 6
    assert set(document["before"]["ece"]) >= {"value", "low", "high"}
    assert "what it is" in run("evaluate", *folders.both).out


def test_cases_fitted_on_alone_bring_a_warning(folders, run, tmp_path):
    run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    done = run("evaluate", *folders.both, "--calibrator", tmp_path / "cal")
    assert done.code == 0
    assert "warning: no case was held out" in done.err


def test_relatives_of_cases_fitted_on_bring_a_warning(folders, calibrator, run):
    done = run("evaluate", *folders.both, "--calibrator", calibrator, "--groups", ".(\\d)")
    assert "2 held-out cases belong to groups of which other cases were fitted on" in done.err


def test_rows_of_all_cases_are_written_with_their_part(folders, calibrator, run, tmp_path):
    run("evaluate", *folders.both, "--calibrator", calibrator, "--csv", tmp_path / "cases.csv", "--metrics", "nll,dice")
    rows = list(csv.DictReader((tmp_path / "cases.csv").read_text().splitlines()))
    assert {(row["case"], row["stage"]) for row in rows} == {
        (name, stage) for name in folders.scores for stage in ("before", "after")
    }
    assert sum(row["part"] == "held out" for row in rows) == 4
    for row in rows:
        if row["stage"] == "before":
            labels = np.load(folders.labels / f"{row['case']}.npy")
            assert float(row["nll"]) == pytest.approx(mean_nll(folders.scores[row["case"]].astype(float), labels))


def test_the_summary_has_the_shape_of_nnunets(folders, calibrator, run, tmp_path):
    run("evaluate", *folders.both, "--calibrator", calibrator, "--summary", tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["mean"]) >= {"nll", "dice"}
    assert len(summary["metric_per_case"]) == 2
    assert set(summary["metric_per_case"][0]["metrics"]) == set(summary["mean"])


def test_a_narrow_terminal_gets_a_narrow_table(folders, calibrator, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    wide = run("evaluate", *folders.both, "--calibrator", calibrator).out
    assert "better/equal/worse" in wide
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("evaluate", *folders.both, "--calibrator", calibrator).out
    assert "better/equal/worse" not in narrow
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 90


def test_a_calibrator_of_another_pooling_or_class_count_is_refused(folders, calibrator, make_folders, run):
    other = make_folders(folder="second", seed=6)
    call = [folders.predictions, other.predictions, folders.labels, "--kind", "logits", "--pool", "mean_logits"]
    done = run("evaluate", *call, "--calibrator", calibrator)
    assert done.code == 2
    assert "pooled by 'mean_logits', but the calibrator was fitted for 'single'" in done.err
    assert run("evaluate", *call, "--calibrator", calibrator, "--ignore-pooling").code == 0


def test_one_of_two_parts_may_fail_as_a_whole(folders, calibrator, run):
    fitted = segcal.load(calibrator)
    for name in set(folders.scores) - {*fitted.calibration_ids, *fitted.validation_ids}:
        (folders.predictions / f"{name}.npy").write_bytes(b"nothing")
    done = run("evaluate", *folders.both, "--calibrator", calibrator, "--json")
    assert done.code == 3
    assert done.document["part"] == "fitted on"
    assert len(done.document["failed"]) == 2


def test_neither_inputs_nor_files_of_others_are_overwritten(folders, calibrator, run, files_of, tmp_path):
    call = ["evaluate", *folders.both, "--calibrator", calibrator]
    mine = {name: tmp_path / name for name in ("my.csv", "summary.json", "page.html")}
    for path in mine.values():
        path.write_text("precious")
    before = files_of(tmp_path)
    options = {"--csv": "my.csv", "--summary": "summary.json", "--report": "page.html"}
    for option, name in options.items():
        done = run(*call, option, mine[name])
        assert done.code == 2
        assert f"{name} exists and was not written by this command, but it would be lost. Choose another" in done.err
        assert done.err.endswith("or pass --overwrite.\n")
        for path in (folders.predictions / "a1.npy", folders.labels / "b1.npy", calibrator / "calibrator.json"):
            done = run(*call, option, path, "--overwrite")
            assert done.code == 2
            assert f"{path.name} is one of the inputs, but they are never overwritten" in done.err
    assert files_of(tmp_path) == before
    for option, name in options.items():
        assert run(*call, option, mine[name], "--overwrite").code == 0
        assert run(*call, option, mine[name]).code == 0  # its own earlier output


def test_a_file_that_cannot_be_written_is_known_before_the_work(folders, run, tmp_path, monkeypatch):
    monkeypatch.setattr(segcal, "evaluate", None)
    done = run("evaluate", *folders.both, "--csv", tmp_path / "none" / "cases.csv")
    assert done.code == 2
    assert "cases.csv is in a folder that does not exist, but results go there. Make the folder first." in done.err


def test_probabilities_declared_as_logits_are_named(folders, run):
    for path in folders.predictions.iterdir():
        scores = np.exp(np.load(path) / 4)
        np.save(path, scores / scores.sum(0))
    done = run("evaluate", *folders.both, "--metrics", "nll", "--json")
    assert done.code == 0
    assert done.err == (
        "warning: a1, a2, b1, b2, c1 and 1 more: scores are declared as logits, but all lie in 0 to 1 and sum to 1. "
        "Declare --kind probs if so.\n"
    )
