"""``segcal evaluate`` and ``segcal report`` as a user calls them."""

import csv
import json
import shutil

import numpy as np
import pytest

import segcal


def mean_nll(scores, labels):
    log_probs = scores - np.log(np.exp(scores).sum(0))
    return -np.take_along_axis(log_probs, labels[None].astype(int), 0).mean()


@pytest.fixture
def call(folders, calibrator):
    return ["evaluate", *folders.both, "--calibrator", calibrator]


def test_held_out_cases_are_reported_apart_from_those_fitted_on(folders, calibrator, call, run):
    fitted = segcal.load(calibrator)
    seen = {*fitted.calibration_ids, *fitted.validation_ids}
    document = run(*call, "--json").document
    assert (document["part"], document["cases"], document["fitted_on"]["cases"]) == ("held out", 2, 4)
    beta = float(fitted.calibrator.inverse_temperature.detach())
    for part, ids in ((document, set(folders.scores) - seen), (document["fitted_on"], seen)):
        for stage, factor in (("before", 1.0), ("after", beta)):
            values = [
                mean_nll(factor * folders.scores[name].astype(float), np.load(folders.labels / f"{name}.npy"))
                for name in ids
            ]
            found = part[stage]["nll"]
            assert found["value"] == pytest.approx(np.mean(values), abs=1e-6)
            if part is document:  # two cases have no interval
                assert found["low"] is found["high"] is None
            else:
                assert found["low"] <= found["value"] <= found["high"]
    printed = run(*call)
    assert printed.out.index("held-out cases:") < printed.out.index("cases that the calibrator was fitted or chosen on")
    assert "2 cases: mean (too few for an interval)" in printed.out
    assert printed.err == ""


def test_without_a_calibrator_there_is_no_after(folders, run):
    document = run("evaluate", *folders.both, "--json").document
    assert (document["after"], document["cases"]) == (None, 6)
    assert set(document["before"]["ece"]) >= {"value", "low", "high"}
    assert "what it is" in run("evaluate", *folders.both).out


def test_cases_fitted_on_alone_and_relatives_of_them_bring_a_warning(folders, call, run, fit_once, tmp_path):
    relatives = run(*call, "--groups", ".(\\d)")
    assert "2 held-out cases belong to groups of which other cases were fitted on" in relatives.err
    shutil.rmtree(call[-1])
    fit_once(folders)
    done = run(*call, "--report", tmp_path / "page.html")
    assert done.code == 0
    assert "warning: no case was held out" in done.err
    assert "No case was held out" in (tmp_path / "page.html").read_text("utf-8")


def test_groups_of_the_fit_are_taken_over_unless_others_are_declared(folders, run, tmp_path):
    made = tmp_path / "grouped"
    fit = ["fit", *folders.both, "-o", made, "--calibrator", "ts", "--trust-on", "none"]
    assert run(*fit, "--groups", "([abc])").code == 0
    assert segcal.load(made).grouping == "([abc])"
    call = ["evaluate", *folders.both, "--calibrator", made]
    done = run(*call)
    assert "groups as declared for the fit: ([abc]) (--groups declares others)" in done.out
    assert "6 cases in 3 groups" in done.out
    own = run(*call, "--groups", "(..)")
    assert ("6 cases: mean" in own.out, "declared for the fit" in own.out) == (True, False)
    cases = segcal.open_cases(folders.predictions, folders.labels, kind="logits")
    assert {row["group"] for row in segcal.evaluate(cases, segcal.load(made)).rows} == {"a", "b", "c"}
    assert {row["group"] for row in segcal.evaluate(cases, segcal.load(made).calibrator).rows} == {None}


def test_groups_that_later_cases_cannot_take_over_bring_a_warning(folders, run, tmp_path):
    table, made = tmp_path / "groups.csv", tmp_path / "tabled"
    table.write_text("id,group\n" + "".join(f"{name},{name[0]}\n" for name in folders.scores))
    fit = ["fit", *folders.both, "-o", made, "--calibrator", "ts", "--trust-on", "none"]
    assert run(*fit, "--groups", table).code == 0
    done = run("evaluate", *folders.both, "--calibrator", made)
    text = "the fit declared groups in a table. Without --groups every case here counts as independent"
    assert text in " ".join(done.err.split())
    assert run(*fit, "--overwrite", "--groups", "(^[abc])[0-9]").code == 0
    for path in [*folders.predictions.iterdir(), *folders.labels.iterdir()]:
        path.rename(path.with_name(f"x{path.name}"))
    done = run("evaluate", *folders.both, "--calibrator", made)
    assert "declared groups by '(^[abc])[0-9]', which matches no case here" in done.err


def test_rows_summary_and_page_are_written(folders, call, run, tmp_path):
    files = {option: tmp_path / f"{option}.txt" for option in ("csv", "summary", "report")}
    given = [word for option, path in files.items() for word in (f"--{option}", path)]
    done = run(*call, *given, "--metrics", "nll,dice")
    assert done.code == 0
    assert f"written: {', '.join(str(path) for path in files.values())}\n" in done.out
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert {(row["case"], row["stage"]) for row in rows} == {
        (name, stage) for name in folders.scores for stage in ("before", "after")
    }
    assert sum(row["part"] == "held out" for row in rows) == 4
    for row in (row for row in rows if row["stage"] == "before"):
        labels = np.load(folders.labels / f"{row['case']}.npy")
        assert float(row["nll"]) == pytest.approx(mean_nll(folders.scores[row["case"]].astype(float), labels))
    summary = json.loads(files["summary"].read_text())  # as nnU-Net's
    assert set(summary["mean"]) >= {"nll", "dice"}
    assert len(summary["metric_per_case"]) == 2
    assert set(summary["metric_per_case"][0]["metrics"]) == set(summary["mean"])
    document = json.loads(files["report"].read_text("utf-8").split('id="data">')[1].split("</script>")[0])
    assert document["kind"] == "evaluation"
    assert document["places"][0]["division"] == {"cal": 4, "val": 0, "test": 2, "repeats": 1, "seen": 0}


def test_a_narrow_terminal_gets_a_narrow_table(call, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    wide = run(*call).out
    assert "better/equal/worse" in wide
    assert "--csv and --json" not in wide
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run(*call).out
    assert "better/equal/worse" not in narrow
    assert "for intervals of each and counts of cases: a terminal of 125 columns, or --csv and --json" in " ".join(
        narrow.split()
    )
    assert narrow.count("Calibration ") == 1  # not of cases that it was fitted on
    assert "…" not in narrow
    assert max(len(line) for line in narrow.splitlines() if not line.startswith("Calibration ")) <= 90


def test_a_calibrator_of_another_pooling_is_refused(folders, calibrator, make_folders, run):
    other = make_folders(folder="second", seed=6)
    both = [folders.predictions, other.predictions, folders.labels, "--kind", "logits", "--pooling", "mean_logits"]
    done = run("evaluate", *both, "--calibrator", calibrator)
    assert done.code == 2
    assert "pooled by 'mean_logits', but the calibrator was fitted for 'single'" in done.err
    assert run("evaluate", *both, "--calibrator", calibrator, "--ignore-pooling").code == 0


def test_files_of_others_are_not_overwritten(call, run, files_of, tmp_path):
    options = {"--csv": tmp_path / "my.csv", "--summary": tmp_path / "summary.json", "--report": tmp_path / "page.html"}
    for path in options.values():
        path.write_text("precious")
    before = files_of(tmp_path)
    for option, mine in options.items():
        done = run(*call, option, mine)
        assert done.code == 2
        assert f"{mine} exists and was not written by this command, but it would be lost. Choose another" in done.err
        assert done.err.endswith("or pass --overwrite.\n")
    assert files_of(tmp_path) == before
    for option, mine in options.items():
        assert run(*call, option, mine, "--overwrite").code == 0
        assert run(*call, option, mine).code == 0  # its own earlier output


def test_a_file_that_cannot_be_written_is_known_before_the_work(call, run, tmp_path, monkeypatch):
    monkeypatch.setattr("segcal.cli.evaluate.evaluate_by_part", None)
    done = run(*call, "--csv", tmp_path / "none" / "cases.csv")
    assert done.code == 2
    assert "cases.csv is in a folder that does not exist, but results go there. Make the folder first." in done.err


def test_a_report_of_a_calibrator_and_predictions_is_an_evaluation_with_a_page(
    folders, calibrator, call, run, tmp_path, monkeypatch
):
    expected = run(*call, "--report", tmp_path / "expected.html", "--json").out
    report = ["report", calibrator, *folders.both]
    assert run(*report, "-o", tmp_path / "page.html", "--json").out == expected
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "expected.html").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert run(*report).code == 0
    assert (tmp_path / "report.html").is_file()
    refused = run(*report, "--figures", tmp_path / "f")
    assert refused.code == 2
    assert "--figures are those of a folder of results, but a calibrator was named" in refused.err


def test_a_report_of_results_is_a_page_and_its_figures(folders, run, tmp_path):
    none = run("report", tmp_path)
    said = f"error: {tmp_path} has no protocol.json, but a folder written by segcal benchmark is needed"
    assert (none.code, none.err.count("\n")) == (2, 1)
    assert none.err.startswith(said)
    protocol, results = tmp_path / "protocol.toml", tmp_path / "results"
    protocol.write_text(
        'repeats = 1\nstudies = ["worst_cases"]\nsplit = {cal = 3, val = 1}\n'
        'pipelines = [{pooling = "single", calibrator = "identity"}, {pooling = "single", calibrator = "ts"}]\n'
        "bootstrap = {replicates = 20}\n"
        '[[tasks]]\nname = "blobs"\nkind = "logits"\n'
        f'members = ["{folders.predictions}"]\nlabels = "{folders.labels}"\n'
    )
    assert run("benchmark", protocol, "-o", results).code == 0
    assert (results / "report.html").is_file()
    page, figure = tmp_path / "r.html", tmp_path / "f" / "inputs_blobs.svg"
    done = run("report", results, "-o", page, "--figures", tmp_path / "f", "--json")
    assert done.document["report"] == str(page)
    options = ["-o", page, "--figures", tmp_path / "f"]
    for path in (page, figure):
        own = path.read_bytes()
        path.write_text("precious")
        refused = run("report", results, *options)
        assert refused.code == 2
        assert f"{path} exists and was not written by this command, but it would be lost" in refused.err
        path.write_bytes(own)
    page.write_text("precious")
    assert run("report", results, *options, "--overwrite").code == 0
    assert run("report", results, *options).code == 0
    refused = run("report", results, "-o", results / "summary.json", "--overwrite")
    assert refused.code == 2
    assert "summary.json is one of the inputs, but they are never overwritten" in refused.err
