"""``segcal apply`` and ``segcal convert``: what is written, what goes on, and what is never replaced."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import segcal
from segcal import open_cases
from segcal.target import claim


@pytest.fixture
def hot(saved):
    """A temperature so high that rounding ties almost everything."""
    return saved("ts", inverse_temperature=1e-3)


@pytest.fixture
def call(hot, folders, tmp_path):
    return ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out", "--json"]


@pytest.fixture
def store(folders, tmp_path):
    made = [folders.predictions, *folders.options, "--labels", folders.labels, "-o", tmp_path / "store", "--json"]
    return ["convert", *made]


def refused(done, text):
    assert done.code == 2, done
    assert text in done.err
    return True


def replace(path, scores, seconds):
    """Put other scores in place, of a time before or after."""
    when = path.stat().st_mtime_ns + seconds * 10**9
    np.save(path, scores)
    os.utime(path, ns=(when, when))


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


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "logits"), (np.float16, "probs"), (np.float32, "probs")])
def test_near_ties_keep_their_argmax_in_the_files(dtype, kind, hot, saved, run, randomise, tmp_path):
    (tmp_path / "in").mkdir()
    before = near_ties(dtype)
    np.save(tmp_path / "in" / "case.npy", before)
    conditional = saved("cms_ap", make=randomise(segcal.make_calibrator("cms_ap", 3), 1, edge=True))
    for number, calibrator in enumerate((hot, conditional)):
        out = tmp_path / f"out{number}"
        done = run("apply", calibrator, tmp_path / "in", "--kind", "logits", "-o", out, "--output-kind", kind)
        assert done.code == 0, done
        after = np.load(out / "case.npy")
        assert after.dtype == dtype
        assert np.array_equal(np.argmax(after, 0), np.argmax(before, 0))
        assert not np.array_equal(after, before)


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


@pytest.mark.parametrize(("command", "seconds"), [("call", -3600), ("store", 3600)])
def test_what_is_there_is_left_and_what_changed_is_made_again(command, seconds, folders, run, files_of, request):
    call = request.getfixturevalue(command)
    out, ending = (call[-2], "npy") if command == "call" else (call[-2], "safetensors")
    run(*call)
    before = files_of(out)
    (out / f"c1.{ending}").unlink()
    done = run(*call)
    assert ([*done.document["written"]], done.document["already_there"]) == (["c1"], 5)
    path = out / f"a2.{ending}"
    path.write_bytes(path.read_bytes()[:-10])
    assert [*run(*call).document["written"]] == ["a2"]
    assert files_of(out) == before
    replace(folders.predictions / "b2.npy", folders.scores["a1"], seconds)
    assert [*run(*call).document["written"]] == ["b2"]
    assert np.array_equal(
        open_cases(out, kind="logits").read("b2").logits, open_cases(out, kind="logits").read("a1").logits
    )
    assert not run(*call).document["written"]


@pytest.mark.parametrize("command", ["call", "store"])
def test_results_without_an_input_are_named_and_go_when_that_is_meant(command, folders, run, request):
    call = request.getfixturevalue(command)
    run(*call)
    mine, stale = call[-2] / "mine.txt", next(call[-2].glob("b1.*"))
    if command == "call":  # a store has nothing else in it
        mine.write_bytes(b"precious")
    (folders.predictions / "b1.npy").unlink()
    done = run(*call)
    assert done.document["stale"] == ["b1"]
    assert "holds results of b1, which have no input any more: --overwrite removes them" in done.err
    assert stale.exists()
    done = run(*call, "--overwrite")
    assert (done.document["stale"], [*done.document["written"]], done.err) == ([], [], "")
    assert not stale.exists()
    assert command == "store" or mine.read_bytes() == b"precious"


@pytest.mark.parametrize("command", ["call", "store"])
def test_two_at_once_are_one_too_many(command, run, request):
    call = request.getfixturevalue(command)
    with claim(call[-2]):
        refused(run(*call), f"is being written to by another segcal (process {os.getpid()}), but two would mix")
    assert run(*call).code == 0


def test_another_calibrator_takes_a_folder_over_only_when_that_is_meant(call, calibrator, run, files_of, tmp_path):
    run(*call)
    other = ["apply", calibrator, *call[2:]]
    refused(run(*other), "was calibrated with another digest")
    probs = run(*call, "--output-kind", "probs")
    refused(probs, "was calibrated with another kind ('logits'), but 'probs' is to be written")
    assert len(run(*other, "--overwrite").document["written"]) == 6
    run("apply", calibrator, *call[2:-2], tmp_path / "new")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "new")


def test_predictions_are_calibrated_once_also_in_a_store(call, store, run, tmp_path):
    run(*call)
    assert run("convert", tmp_path / "out", "--kind", "logits", "-o", tmp_path / "first").code == 0
    assert run("convert", tmp_path / "first", "-o", tmp_path / "again").code == 0
    for name in ("out", "first", "again"):
        declared = ["--kind", "logits"] if name == "out" else []
        done = run("apply", call[1], tmp_path / name, *declared, "-o", tmp_path / "twice")
        refused(done, "holds predictions that are calibrated already")
        assert not (tmp_path / "twice").exists()
    refused(run(*store, "-o", tmp_path / "first"), "holds a store with another calibration")


def test_files_of_something_else_are_not_taken_for_results(folders, make_folders, hot, call, run, files_of):
    other = make_folders(folder="other", ids=("b1", "x1"))
    done = run(*call, "-o", other.predictions)
    refused(done, "holds b1.npy, which segcal apply did not write")
    before = files_of(folders.labels)
    for more in ([], ["--overwrite"]):
        named = make_folders("nnunet", folder=f"nnunet{len(more)}", ids=("z1",))  # labels of other names than scores
        done = run("apply", hot, named.predictions, "-o", named.labels, *more)
        assert refused(done, "which segcal apply did not write, but results would be mixed with it")
    for place in (folders.labels, folders.labels.parent):
        done = run("convert", folders.predictions, *folders.options, "-o", place, "--overwrite")
        refused(done, "has files that are no store, but they would be mixed. Name a new folder.")
    assert {name: content for name, content in files_of(folders.labels).items() if "z1" not in name} == before


def test_what_becomes_of_masks_is_said_and_a_broken_promise_is_found_out(folders, saved, run, tmp_path):
    call = [folders.predictions, *folders.options, "-o"]
    document = run("apply", saved("vs", bias=[0.0, 0.0, 100.0]), *call, tmp_path / "out", "--json").document
    assert document["flips"] == sum(int((scores.argmax(0) != 2).sum()) for scores in folders.scores.values())
    assert (np.load(tmp_path / "out" / "a1.npy").argmax(0) == 2).all()
    done = run("apply", saved("ts", inverse_temperature=-1.0), *call, tmp_path / "bad")
    assert done.code == 3
    assert "voxels changed their class, but the calibrator promises to keep it" in done.err
    assert not list((tmp_path / "bad").glob("*.npy"))


def test_interrupted_in_the_middle_it_leaves_complete_files_and_goes_on(make_folders, hot, run, files_of, tmp_path):
    folders = make_folders(ids=[f"case{number:03d}" for number in range(30)], space=(160, 170))
    call = ["apply", hot, folders.predictions, *folders.options, "--confidence-map", "--quiet", "--workers", 2]
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
    assert 3 <= len(done) < 30
    for name in done:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = run(*call, "--workers", 1, "-o", out, "--json")
    assert again.code == 0
    assert again.document["already_there"] == len(done)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_other_options_are_calibrated_again(hot, run, tmp_path):
    scores = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", scores)
    call = ["apply", hot, tmp_path / "in", "--kind", "logits", "-o", tmp_path / "out", "--json"]
    for axis in (0, 2):
        assert list(run(*call, "--class-axis", axis).document["written"]) == ["a"]
    np.testing.assert_allclose(np.exp(np.load(tmp_path / "out" / "a.npy")).sum(2), 1, atol=1e-5)


def test_damaged_records_are_not_trusted_and_maps_belong_to_their_scores(folders, call, run, files_of, tmp_path):
    run(*call, "--confidence-map")
    before = files_of(tmp_path / "out")
    maps = sorted((tmp_path / "out" / "confidence").iterdir())
    for path in (tmp_path / "out" / "a1.npy", maps[1]):
        path.write_bytes(path.read_bytes()[:-10])
    (tmp_path / "out" / ".segcal" / "b1.json").write_text("{")
    done = run(*call, "--confidence-map")  # nobody knows who wrote b1.npy
    refused(done, "holds b1.npy, of which segcal has no record, but a result would take its place")
    (tmp_path / "out" / "b1.npy").unlink()
    assert list(run(*call, "--confidence-map").document["written"]) == ["a1", "a2", "b1"]
    assert files_of(tmp_path / "out") == before
    np.save(folders.predictions / "c2.npy", folders.scores["a1"])
    assert list(run(*call).document["written"]) == ["c2"]
    assert sorted((tmp_path / "out" / "confidence").iterdir()) == maps[:-1]  # the map of other scores went


KILLED_WHILE_REMOVING = """
import os
from segcal import atomic
atomic._remove = lambda beside: os.kill(os.getpid(), 9)
from segcal.cli import main
main()
"""


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
    words = [sys.executable, "-c", KILLED_WHILE_REMOVING, *map(str, call)]
    killed = subprocess.run(words, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert np.array_equal(zarr.open_array(str(tmp_path / "out" / "a.zarr"), mode="r")[...], first)
    assert [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".segcal-")]
    assert run(*call).code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".segcal", "a.zarr", "calibration.json"]


LIMITED = """
import resource
import sys
from segcal.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
main()
"""


def test_a_full_disk_is_one_sentence_with_the_file_s_name(make_folders, hot, tmp_path):
    folders = make_folders("nnunet", ids=("a1", "a2"))
    call = ["apply", hot, folders.predictions, *folders.options, "-o", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", LIMITED, *map(str, call)], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {tmp_path / 'out' / 'a1.n'}"), done.stderr
    assert "could not be written (" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("a*"))


def test_probabilities_declared_as_logits_are_named_before_anything_is_calibrated(folders, call, run):
    for path in folders.predictions.iterdir():
        scores = np.exp(np.load(path) / 4)
        np.save(path, scores / scores.sum(0))
    done = run(*call)
    assert done.code == 0
    assert done.err == (
        "warning: a1: scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare --kind probs if so.\n"
    )


def test_a_store_holds_what_came_in_with_labels_and_groups_and_is_made_again_for_others(
    folders, make_folders, store, run, tmp_path
):
    done = run(*store[:-1], "--groups", "([abc])\\d")
    assert done.out == f"6 cases written to {tmp_path / 'store'}\n"
    cases = open_cases(tmp_path / "store")
    assert cases.groups == {name: name[0] for name in folders.scores}
    for case in cases:
        np.testing.assert_allclose(case.logits.numpy(), folders.scores[case.id], atol=0.02)
        assert np.array_equal(case.logits.numpy().argmax(0), folders.scores[case.id].argmax(0))
        assert np.array_equal(case.labels.numpy(), np.load(folders.labels / f"{case.id}.npy"))
    everything = sorted(folders.scores)
    for options in ([], ["--ignore", 0], []):
        assert run(*store, *options).document["written"] == everything
    np.save(folders.labels / "a1.npy", np.zeros((4, 5, 6), np.uint8))
    assert run(*store).document["written"] == ["a1"]
    assert not open_cases(tmp_path / "store").read("a1").labels.any()
    without = ["convert", folders.predictions, *folders.options, "-o", tmp_path / "store", "--json"]
    assert run(*without).document["written"] == everything
    assert open_cases(tmp_path / "store").read("a1").labels is None
    other = make_folders(folder="other", seed=6)
    assert run("convert", other.predictions, *without[2:]).document["written"] == everything
    np.testing.assert_allclose(open_cases(tmp_path / "store").read("c1").logits.numpy(), other.scores["c1"], atol=0.02)


def test_members_are_pooled_in_a_store_and_another_kind_of_it_needs_to_be_meant(folders, make_folders, run, tmp_path):
    other, out = make_folders(folder="second", seed=6), ["-o", tmp_path / "store", "--json"]
    call = ["convert", folders.predictions, other.predictions, "--kind", "logits", "--pooling", "mean_logits", *out]
    assert run(*call).document["written"] == sorted(folders.scores)
    cases = open_cases(tmp_path / "store")
    assert cases.pooling == "mean_logits"
    expected = (folders.scores["a1"] + other.scores["a1"]) / 2
    np.testing.assert_allclose(cases.read("a1").logits.numpy(), expected, atol=0.02)
    named = [*call, "--class-names", "x,y,z"]
    refused(run(*named), "another class_names (None), but ['x', 'y', 'z'] is to be written. Name a new folder, or pass")
    assert len(run(*named, "--overwrite").document["written"]) == 6
    assert open_cases(tmp_path / "store").class_names == ("x", "y", "z")
