import os

import numpy as np
import pytest

from segcal import open_cases
from segcal.target import claim


def test_the_store_holds_what_came_in_with_labels_and_groups(folders, run, tmp_path):
    call = ["convert", folders.predictions, *folders.options, "--labels", folders.labels, "-o", tmp_path / "store"]
    done = run(*call, "--groups", "([abc])\\d")
    assert done.out == f"6 cases written to {tmp_path / 'store'}\n"
    cases = open_cases(tmp_path / "store")
    assert cases.groups == {name: name[0] for name in folders.scores}
    for case in cases:
        np.testing.assert_allclose(case.logits.numpy(), folders.scores[case.id], atol=0.02)
        assert np.array_equal(case.logits.numpy().argmax(0), folders.scores[case.id].argmax(0))
        assert np.array_equal(case.labels.numpy(), np.load(folders.labels / f"{case.id}.npy"))


def test_what_is_there_is_not_written_again(folders, run, files_of, tmp_path):
    call = ["convert", folders.predictions, *folders.options, "-o", tmp_path / "store"]
    run(*call)
    before = files_of(tmp_path / "store")
    (tmp_path / "store" / "b1.safetensors").unlink()
    done = run(*call)
    assert done.out == f"1 case written to {tmp_path / 'store'}, 5 were there already\n"
    assert files_of(tmp_path / "store") == before


def test_members_are_pooled(folders, make_folders, run, tmp_path):
    other = make_folders(folder="second", seed=6)
    call = ["convert", folders.predictions, other.predictions, "--kind", "logits", "--pool", "mean_logits"]
    assert run(*call, "-o", tmp_path / "store", "--json").document["written"] == sorted(folders.scores)
    cases = open_cases(tmp_path / "store")
    assert cases.pooling == "mean_logits"
    expected = (folders.scores["a1"] + other.scores["a1"]) / 2
    np.testing.assert_allclose(cases.read("a1").logits.numpy(), expected, atol=0.02)


@pytest.fixture
def store(folders, run, tmp_path):
    """A store, and the call that made it."""
    call = ["convert", folders.predictions, *folders.options, "--labels", folders.labels, "-o", tmp_path / "store"]
    assert run(*call).code == 0
    return tmp_path / "store", call


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_an_input_that_was_replaced_is_converted_again_be_it_newer_or_older(seconds, folders, store, run):
    path = folders.predictions / "b2.npy"
    np.save(path, folders.scores["a1"])
    time = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(time, time))
    assert run(*store[1], "--json").document["written"] == ["b2"]
    np.testing.assert_allclose(open_cases(store[0]).read("b2").logits.numpy(), folders.scores["a1"], atol=0.02)
    assert run(*store[1], "--json").document["written"] == []


def test_other_labels_ignored_labels_groups_or_another_folder_are_converted_again(folders, make_folders, store, run):
    everything = sorted(folders.scores)
    np.save(folders.labels / "a1.npy", np.zeros((4, 5, 6), np.uint8))
    assert run(*store[1], "--json").document["written"] == ["a1"]
    assert not open_cases(store[0]).read("a1").labels.any()
    for options in (["--ignore", 0], ["--groups", "([abc])\\d"], []):
        assert run(*store[1], *options, "--json").document["written"] == everything
    without = ["convert", folders.predictions, *folders.options, "-o", store[0], "--json"]
    assert run(*without).document["written"] == everything
    assert open_cases(store[0]).read("a1").labels is None
    other = make_folders(folder="other", seed=6)
    assert run("convert", other.predictions, *without[2:]).document["written"] == everything
    np.testing.assert_allclose(open_cases(store[0]).read("c1").logits.numpy(), other.scores["c1"], atol=0.02)


def test_what_is_cut_short_is_repaired(store, run, files_of):
    before = files_of(store[0])
    path = store[0] / "a2.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert run(*store[1], "--json").document["written"] == ["a2"]
    assert files_of(store[0]) == before


def test_cases_without_an_input_are_named_and_go_when_that_is_meant(folders, store, run):
    (folders.predictions / "b1.npy").unlink()
    done = run(*store[1], "--json")
    assert done.document["stale"] == ["b1"]
    assert "holds results of b1, which have no input any more: --overwrite removes them" in done.err
    assert (store[0] / "b1.safetensors").exists()
    done = run(*store[1], "--overwrite", "--json")
    assert (done.document["stale"], done.document["written"], done.err) == ([], [], "")
    assert not (store[0] / "b1.safetensors").exists()


def test_another_kind_needs_to_be_meant(folders, store, run, tmp_path):
    call = ["convert", folders.predictions, "--kind", "logits", "--class-names", "x,y,z", "-o", store[0]]
    done = run(*call)
    assert done.code == 2
    assert "another class_names (None), but ['x', 'y', 'z'] is to be written. Name a new folder, or pass --" in done.err
    assert len(run(*call, "--overwrite", "--json").document["written"]) == 6
    assert open_cases(store[0]).class_names == ("x", "y", "z")


def test_calibrated_predictions_stay_so_in_a_store(folders, calibrator, run, tmp_path):
    run("apply", calibrator, folders.predictions, *folders.options, "-o", tmp_path / "out")
    assert run("convert", tmp_path / "out", "--kind", "logits", "-o", tmp_path / "store").code == 0
    assert run("convert", tmp_path / "store", "-o", tmp_path / "again").code == 0
    for place in (tmp_path / "store", tmp_path / "again"):
        done = run("apply", calibrator, place, "-o", tmp_path / "twice")
        assert done.code == 2
        assert "holds predictions that are calibrated already" in done.err
    done = run("convert", folders.predictions, *folders.options, "-o", tmp_path / "store")
    assert done.code == 2
    assert "holds a store with another calibration" in done.err


def test_a_folder_of_something_else_is_refused(folders, run, tmp_path):
    for place in (folders.labels, tmp_path):
        before = sorted(place.rglob("*"))
        done = run("convert", folders.predictions, *folders.options, "-o", place, "--overwrite")
        assert done.code == 2
        assert "has files that are no store, but they would be mixed. Name a new folder." in done.err
        assert sorted(place.rglob("*")) == before


def test_two_at_once_are_one_too_many(folders, store, run):
    with claim(store[0]):
        done = run(*store[1])
    assert done.code == 2
    assert f"is being written to by another segcal (process {os.getpid()}), but two would mix" in done.err
    assert run(*store[1]).code == 0
