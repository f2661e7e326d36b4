import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import segcal
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.target import claim


def saved(calibrator, folder, pooling="single"):
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 100, 100)
    segcal.save(Fitted(calibrator, certificate, FitConfig(), pooling=pooling), folder)
    return folder


@pytest.fixture
def hot(tmp_path):
    """A temperature so high that rounding ties almost everything."""
    calibrator = segcal.make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(1e-3)
    return saved(calibrator, tmp_path / "hot")


def near_ties(dtype):
    """Scores whose two or three leaders are equal or one unit in the last place apart, in every order of classes."""
    rng = np.random.default_rng(2)
    scores = (3 * rng.normal(size=(3, 40, 50))).astype(dtype)
    top = scores.max(axis=0)
    for steps in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (2, 1, 1)):
        place = rng.random(top.shape) < 0.3
        for plane, count in zip(scores, steps, strict=True):
            near = top.copy()
            for _ in range(count):
                near = np.nextafter(near, dtype(np.inf))
            plane[place] = near[place]
    return scores


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_near_ties_keep_their_argmax_in_the_files(dtype, kind, hot, run, randomise, tmp_path):
    for name in ("in", "cap"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "in" / "case.npy", near_ties(dtype))
    conditional = saved(randomise(segcal.make_calibrator("cms_ap", 3), 1, edge=True), tmp_path / "cms")
    for number, calibrator in enumerate((hot, conditional)):
        out = tmp_path / f"out{number}"
        done = run("apply", calibrator, tmp_path / "in", "--kind", "logits", "-o", out, "--output-kind", kind)
        assert done.code == 0, done
        before, after = np.load(tmp_path / "in" / "case.npy"), np.load(out / "case.npy")
        assert after.dtype == dtype
        assert np.array_equal(np.argmax(after, 0), np.argmax(before, 0))
        assert not np.array_equal(after, before)


def test_probabilities_are_those_of_the_temperature(folders, hot, run, tmp_path):
    run("apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out", "--output-kind", "probs")
    for name, scores in folders.scores.items():
        shifted = np.exp(1e-3 * scores.astype(float))
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{name}.npy"), shifted / shifted.sum(0), atol=1e-6)


def test_an_nnunet_folder_keeps_names_dtype_properties_labels_and_jsons(make_folders, hot, run, tmp_path):
    folders = make_folders("nnunet")
    done = run("apply", hot, folders.predictions, "-o", tmp_path / "out", "--confidence-map", "--json")
    assert done.code == 0, done
    there, out = folders.predictions, tmp_path / "out"
    names = {path.name for path in there.iterdir()}
    assert {path.name for path in out.iterdir()} == names | {"calibration.json", "confidence", ".segcal"}
    for name in names:
        if not name.endswith(".npz"):
            assert (out / name).read_bytes() == (there / name).read_bytes(), name
    for case_id in folders.scores:
        before, after = (np.load(folder / f"{case_id}.npz")["probabilities"] for folder in (there, out))
        assert after.dtype == np.float32
        assert np.array_equal(after.argmax(0), before.argmax(0))
        assert np.array_equal(after[:, 0], before[:, 0])  # outside the box
        assert after[:, 1:].max() < 0.4
        assert (out / "confidence" / f"{case_id}.nii.gz").is_file()


def test_what_is_there_is_left_and_what_is_older_than_its_input_is_made_again(folders, hot, run, tmp_path):
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out"]
    run(*call)
    np.save(folders.predictions / "b2.npy", folders.scores["a1"])
    (tmp_path / "out" / "c1.npy").unlink()
    later = time.time_ns() + 10**9
    os.utime(folders.predictions / "b2.npy", ns=(later, later))
    document = run(*call, "--json").document
    assert set(document["written"]) == {"b2", "c1"}
    assert document["already_there"] == 4
    assert (tmp_path / "out" / "b2.npy").read_bytes() == (tmp_path / "out" / "a1.npy").read_bytes()
    maps = run(*call, "--confidence-map", "--json").document
    assert len(maps["written"]) == 6


def test_another_calibrator_does_not_share_the_folder(folders, hot, calibrator, run, tmp_path):
    call = [folders.predictions, *folders.options, "-o", tmp_path / "out"]
    run("apply", hot, *call)
    done = run("apply", calibrator, *call)
    assert done.code == 2
    assert "was calibrated with another digest" in done.err
    done = run("apply", hot, *call, "--output-kind", "probs")
    assert done.code == 2
    assert "was calibrated with another kind ('logits'), but 'probs' is to be written" in done.err


def test_files_of_something_else_are_not_taken_for_results(folders, make_folders, hot, run, tmp_path):
    other = make_folders(folder="other", ids=("b1", "x1"))
    done = run("apply", hot, folders.predictions, *folders.options, "-o", other.predictions)
    assert done.code == 2
    assert "holds b1.npy, which segcal apply did not write" in done.err


def test_predictions_are_calibrated_once(folders, hot, run, tmp_path):
    run("apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out")
    done = run("apply", hot, tmp_path / "out", *folders.options, "-o", tmp_path / "twice")
    assert done.code == 2
    assert "holds predictions that are calibrated already" in done.err
    assert not (tmp_path / "twice").exists()


def test_a_calibrator_for_another_model_is_refused_before_anything_is_written(folders, run, tmp_path):
    more = saved(segcal.make_calibrator("ts", 5), tmp_path / "five")
    pooled = saved(segcal.make_calibrator("ts", 3), tmp_path / "pooled", pooling="mean_logits")
    shifted = saved(segcal.make_calibrator("vs", 3), tmp_path / "vs")
    call = [folders.predictions, "-o", tmp_path / "out", "--kind"]
    for cal, kind, reason in (
        (more, "logits", "the calibrator has 5 classes, but the predictions have 3"),
        (pooled, "logits", "pooled by 'single', but the calibrator was fitted for 'mean_logits'"),
        (shifted, "probs", "'vs' depends on the offset of the logits, but kind is 'probs'"),
    ):
        done = run("apply", cal, *call, kind)
        assert done.code == 2
        assert reason in done.err
        assert not (tmp_path / "out").exists()
    assert run("apply", pooled, *call, "logits", "--ignore-pooling").code == 0


def test_a_calibrator_that_may_change_the_mask_says_how_much_it_did(folders, run, tmp_path):
    flipping = segcal.make_calibrator("vs", 3)
    with torch.no_grad():
        flipping.bias.copy_(torch.tensor([0.0, 0.0, 100.0]))
    cal = saved(flipping, tmp_path / "vs")
    document = run("apply", cal, folders.predictions, *folders.options, "-o", tmp_path / "out", "--json").document
    expected = sum(int((scores.argmax(0) != 2).sum()) for scores in folders.scores.values())
    assert document["flips"] == expected
    assert (np.load(tmp_path / "out" / "a1.npy").argmax(0) == 2).all()


def test_a_broken_promise_is_found_out_and_nothing_is_written(folders, run, tmp_path):
    broken = segcal.make_calibrator("ts", 3)
    with torch.no_grad():
        broken.inverse_temperature.fill_(-1.0)
    done = run("apply", saved(broken, tmp_path / "bad"), folders.predictions, *folders.options, "-o", tmp_path / "out")
    assert done.code == 3
    assert "voxels changed their class, but the calibrator promises to keep it" in done.err
    assert not list((tmp_path / "out").glob("*.npy"))


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_in_the_middle_it_leaves_complete_files_and_goes_on(
    workers, make_folders, hot, run, files_of, tmp_path
):
    folders = make_folders(ids=[f"case{number:03d}" for number in range(60)], space=(160, 170))
    call = ["apply", hot, folders.predictions, *folders.options, "--confidence-map", "--quiet", "--workers", workers]
    whole = run(*call, "--workers", 1, "-o", tmp_path / "whole")
    assert whole.code == 0, whole
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", "from segcal.cli import main; main()", *map(str, call), "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches every process of a terminal: so does this signal
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.npy"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err == "interrupted: what is written is complete; run the command again to go on\n"
    done = {path.name for path in out.glob("*.npy")}
    assert 3 <= len(done) < 60
    for name in done:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = run(*call, "--workers", 1, "-o", out, "--json")
    assert again.code == 0
    assert again.document["already_there"] == len(done)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_the_record_says_what_made_the_folder(folders, calibrator, run, tmp_path):
    run("apply", calibrator, folders.predictions, *folders.options, "-o", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert record["format"] == "segcal-applied"
    assert record["calibrator"] == "ts"
    assert record["preserves"] == "order"
    assert record["fitted_on"] == segcal.load(calibrator).fingerprint


def test_an_input_that_was_replaced_by_an_older_file_is_calibrated_again(folders, hot, run, tmp_path):
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out", "--json"]
    run(*call)
    np.save(folders.predictions / "b2.npy", folders.scores["a1"])
    os.utime(folders.predictions / "b2.npy", (1, 1))
    assert list(run(*call).document["written"]) == ["b2"]
    assert (tmp_path / "out" / "b2.npy").read_bytes() == (tmp_path / "out" / "a1.npy").read_bytes()
    assert not run(*call).document["written"]


def test_other_options_are_calibrated_again(folders, hot, run, tmp_path):
    scores = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", scores)
    call = ["apply", hot, tmp_path / "in", "--kind", "logits", "-o", tmp_path / "out", "--json"]
    for axis in (0, 2):
        assert list(run(*call, "--class-axis", axis).document["written"]) == ["a"]
    np.testing.assert_allclose(np.exp(np.load(tmp_path / "out" / "a.npy")).sum(2), 1, atol=1e-5)


def test_damaged_results_are_repaired_and_maps_belong_to_their_scores(folders, hot, run, files_of, tmp_path):
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out", "--json"]
    run(*call, "--confidence-map")
    before = files_of(tmp_path / "out")
    maps = sorted((tmp_path / "out" / "confidence").iterdir())
    for path in (tmp_path / "out" / "a1.npy", maps[1]):
        path.write_bytes(path.read_bytes()[:-10])
    (tmp_path / "out" / ".segcal" / "b1.json").write_text("{")
    done = run(*call, "--confidence-map")
    assert done.code == 2  # nobody knows who wrote b1.npy
    assert "holds b1.npy, of which segcal has no record, but a result would take its place" in done.err
    (tmp_path / "out" / "b1.npy").unlink()
    assert list(run(*call, "--confidence-map").document["written"]) == ["a1", "a2", "b1"]
    assert files_of(tmp_path / "out") == before
    np.save(folders.predictions / "c2.npy", folders.scores["a1"])
    assert list(run(*call).document["written"]) == ["c2"]
    assert sorted((tmp_path / "out" / "confidence").iterdir()) == maps[:-1]  # the map of other scores went


def test_results_without_an_input_are_named_and_go_when_that_is_meant(folders, hot, run, tmp_path):
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out", "--json"]
    run(*call)
    (tmp_path / "out" / "mine.npy").write_bytes(b"precious")
    (folders.predictions / "b1.npy").unlink()
    done = run(*call)
    assert done.document["stale"] == ["b1"]
    assert "holds results of b1, which have no input any more: --overwrite removes them" in done.err
    assert (tmp_path / "out" / "b1.npy").exists()
    assert run(*call, "--overwrite").document["stale"] == []
    assert not (tmp_path / "out" / "b1.npy").exists()
    assert (tmp_path / "out" / "mine.npy").read_bytes() == b"precious"


def test_another_calibrator_takes_over_a_folder_when_that_is_meant(folders, hot, calibrator, run, files_of, tmp_path):
    call = [folders.predictions, *folders.options, "-o"]
    run("apply", hot, *call, tmp_path / "out")
    assert len(run("apply", calibrator, *call, tmp_path / "out", "--overwrite", "--json").document["written"]) == 6
    run("apply", calibrator, *call, tmp_path / "new")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "new")


def test_a_folder_of_labels_is_refused(make_folders, hot, run, files_of, tmp_path):
    folders = make_folders("nnunet")  # whose labels have other names than the scores
    before = files_of(folders.labels)
    for more in ([], ["--overwrite"]):
        done = run("apply", hot, folders.predictions, "-o", folders.labels, *more)
        assert done.code == 2
        assert "holds a1.nii.gz, which segcal apply did not write, but results would be mixed with it" in done.err
    assert files_of(folders.labels) == before


def test_a_changed_chunk_of_a_zarr_is_noticed_and_a_killed_run_keeps_a_result(hot, run, tmp_path):
    zarr = pytest.importorskip("zarr")
    (tmp_path / "in").mkdir()
    scores = (3 * np.random.default_rng(0).normal(size=(3, 4, 5))).astype(np.float32)
    array = zarr.create_array(str(tmp_path / "in" / "a.zarr"), shape=scores.shape, chunks=(3, 2, 5), dtype="f4")
    array[...] = scores
    call = ["apply", hot, tmp_path / "in", "--kind", "logits", "-o", tmp_path / "out", "--json"]
    assert list(run(*call).document["written"]) == ["a"]
    first = np.asarray(zarr.open_array(str(tmp_path / "out" / "a.zarr"), mode="r")[...])
    chunk = next(path for path in (tmp_path / "in" / "a.zarr" / "c").rglob("*") if path.is_file())
    folder_time = (tmp_path / "in" / "a.zarr").stat().st_mtime_ns
    chunk.write_bytes(chunk.read_bytes())  # its folder does not change
    assert (tmp_path / "in" / "a.zarr").stat().st_mtime_ns == folder_time
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_REMOVING, *map(str, call)], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert np.array_equal(zarr.open_array(str(tmp_path / "out" / "a.zarr"), mode="r")[...], first)
    assert [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".segcal-")]
    assert run(*call).code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".segcal", "a.zarr", "calibration.json"]


KILLED_WHILE_REMOVING = """
import os
from segcal import atomic
atomic._remove = lambda beside: os.kill(os.getpid(), 9)
from segcal.cli import main
main()
"""


def test_two_at_once_are_one_too_many(folders, hot, run, tmp_path):
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out"]
    with claim(tmp_path / "out"):
        done = run(*call)
    assert done.code == 2
    assert f"is being written to by another segcal (process {os.getpid()}), but two would mix" in done.err
    assert run(*call).code == 0


LIMITED = """
import resource
import sys
from segcal.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
main()
"""


@pytest.mark.parametrize("name", ["npy", "nifti", "nnunet"])
def test_a_full_disk_is_one_sentence_with_the_file_s_name(name, make_folders, hot, tmp_path):
    folders = make_folders(name, ids=("a1", "a2"), space=(8, 9, 10) if name != "nnunet" else (4, 5, 6))
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", LIMITED, *map(str, call)], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {tmp_path / 'out' / 'a1.n'}"), done.stderr
    assert "could not be written (" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("a*"))


def test_probabilities_declared_as_logits_are_named_before_anything_is_calibrated(folders, hot, run, tmp_path):
    for path in folders.predictions.iterdir():
        scores = np.exp(np.load(path) / 4)
        np.save(path, scores / scores.sum(0))
    done = run("apply", hot, folders.predictions, "-o", tmp_path / "out", "--kind", "logits")
    assert done.code == 0
    assert done.err == (
        "warning: a1: scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare --kind probs if so.\n"
    )
