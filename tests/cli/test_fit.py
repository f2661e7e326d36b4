import os

import numpy as np
import pytest

import segcal
from segcal.target import claim_beside

SMALL = ["--voxels", "60", "--lam", "0.01", "--mu", "0.01"]


def test_what_must_be_kept_decides_who_competes(make_folders, run, tmp_path):
    folders = make_folders(ids=[f"c{k:02}" for k in range(12)], space=(30, 20))
    names = {}
    for preserve in ("order", "none"):
        document = run(
            "fit", *folders.both, "-o", tmp_path / preserve, "--preserve", preserve, *SMALL, "--json"
        ).document
        names[preserve] = {row["name"] for row in document["certificate"]["details"]["candidates"]}
    assert names["order"] == {"identity", "ts", "ets", "cms_op", "conic", "pts", "iop", "isotonic"}
    assert {"dc", "cdc", "ms_c", "vs_ti"} <= names["none"]
    assert not {"vs", "ms"} & names["none"]


def test_an_ensemble_without_a_declared_pooling_gets_the_better_one(folders, make_folders, run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    other = make_folders(folder="second", seed=6)
    call = [folders.predictions, other.predictions, folders.labels, "--kind", "logits"]
    done = run("fit", *call, "-o", tmp_path / "cal", *SMALL)
    assert done.code == 0
    assert "ts (mean_probs)" in done.out
    assert "ts (mean_logits)" in done.out
    assert segcal.load(tmp_path / "cal").pooling in ("mean_probs", "mean_logits")
    assert run("evaluate", *call, "--calibrator", tmp_path / "cal").code == 0  # pooled as the calibrator says
    assert run("fit", *call, "-o", tmp_path / "ts", "--calibrator", "ts").code == 0
    assert segcal.load(tmp_path / "ts").pooling in ("mean_probs", "mean_logits")


def test_an_ensemble_is_pooled_as_declared_and_the_calibrator_remembers(folders, make_folders, run, tmp_path):
    other = make_folders(folder="second", seed=6)
    call = [folders.predictions, other.predictions, folders.labels, "--kind", "logits", "--pool", "mean_probs"]
    assert run("fit", *call, "-o", tmp_path / "cal", "--calibrator", "ts").code == 0
    assert segcal.load(tmp_path / "cal").pooling == "mean_probs"


def test_the_temperature_is_that_of_a_search_over_one_variable(folders, run, tmp_path):
    scipy_optimize = pytest.importorskip("scipy.optimize")
    run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--voxels", "all")
    logits = np.concatenate([folders.scores[name].reshape(3, -1) for name in sorted(folders.scores)], 1).astype(float)
    labels = np.concatenate([np.load(path).reshape(-1) for path in sorted(folders.labels.iterdir())])

    def nll(beta):
        scores = beta * logits
        return (np.log(np.exp(scores).sum(0)) - scores[labels, np.arange(len(labels))]).mean()

    best = scipy_optimize.minimize_scalar(nll, bounds=(1e-3, 10), method="bounded", options={"xatol": 1e-10})
    found = segcal.load(tmp_path / "cal").calibrator.inverse_temperature.detach()
    assert float(found) == pytest.approx(best.x, abs=1e-5)


def test_a_folder_that_is_no_calibrator_is_not_replaced(folders, run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a1.npy").write_text("precious")
    done = run("fit", *folders.both, "-o", tmp_path / "mine", "--calibrator", "ts")
    assert done.code == 2
    assert "mine exists and is not a calibrator of segcal alone: it holds a1.npy, but a new or empty" in done.err
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_a_calibrator_of_something_else_is_not_replaced(folders, run, files_of, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts"]
    (tmp_path / "cal").mkdir()
    (tmp_path / "cal" / "calibrator.json").write_text('{"colour": "blue"}')
    done = run(*call)
    assert done.code == 2
    assert "holds a calibrator.json that is not as segcal wrote it, or other weights, but only a calibrator" in done.err
    assert done.err.endswith("Choose another name, or pass --overwrite.\n")
    assert files_of(tmp_path / "cal") == {"calibrator.json": b'{"colour": "blue"}'}
    assert run(*call, "--overwrite").code == 0
    (tmp_path / "cal" / "notes.txt").write_text("precious")
    for more in ([], ["--overwrite"]):
        assert "exists and is not a calibrator of segcal" in run(*call, *more).err
    assert (tmp_path / "cal" / "notes.txt").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_known_before_the_work(folders, run, tmp_path):
    (tmp_path / "file").touch()
    (folders.predictions / "a1.npy").write_bytes(b"nothing")  # would be found first otherwise
    done = run("fit", *folders.both, "-o", tmp_path / "file" / "cal", "--calibrator", "ts", "--strict")
    assert done.code == 2
    assert "file is a file, but a folder is needed. Name a new one." in done.err


def test_two_at_once_are_one_too_many(folders, run, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts"]
    with claim_beside(tmp_path / "cal"):
        done = run(*call)
        assert run(*call[:-3], tmp_path / "other", *call[-2:]).code == 0
    assert done.code == 2
    assert f"is being written to by another segcal (process {os.getpid()}), but two would mix" in done.err
    assert run(*call).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cal", "labels", "other", "predictions"]


def test_what_is_seldom_meant_is_a_line_before_the_fit(scene_folder, run, tmp_path):
    predictions, labels = scene_folder(change=lambda number, labels: labels[::-1])
    done = run("fit", predictions, labels, "-o", tmp_path / "cal", "--kind", "logits", "--calibrator", "ts", "--json")
    assert done.code == 0
    line, *later = done.err.splitlines()  # what comes of it, such as a temperature at its bound, is said after the fit
    assert not any("numpy.flip" in other for other in later)
    assert line.startswith(
        "warning: c0, c1, c2, c3, c4 and 1 more: labels fit clearly better as numpy.flip(labels, 0) ("
    )
    assert done.document["certificate"]["converged"]


def test_a_calibrator_is_replaced_only_if_asked(folders, run, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", *SMALL]
    assert run(*call).code == 0
    written = (tmp_path / "cal" / "calibrator.json").stat().st_mtime_ns
    done = run(*call)
    assert done.code == 2
    assert done.err.endswith(
        "holds a calibrator already, but a fit does not replace one unasked. "
        "Choose another name, or pass --overwrite.\n"
    )
    assert (tmp_path / "cal" / "calibrator.json").stat().st_mtime_ns == written
    assert run(*call, "--overwrite").code == 0


def test_where_all_cases_failed_the_first_reason_is_said(folders, run, tmp_path):
    for path in folders.predictions.iterdir():
        np.save(path, np.full_like(np.load(path), np.nan))
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    assert done.code == 2
    assert "all 6 cases failed, but at least one is needed. First: case 'a1'" in done.err
    assert "finite" in done.err
