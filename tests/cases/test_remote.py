"""Cases in a bucket: a real S3 server in this process, with failures injected on the way."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.cases.base import CaseError
from segcal.cases.remote import KEPT, check_new, here, upload, url_of
from segcal.errors import InputError

s3fs = pytest.importorskip("s3fs", reason="needs the extra cloud")
server_module = pytest.importorskip("moto.server", reason="needs moto[server]")
fsspec = pytest.importorskip("fsspec")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries of the bucket


@pytest.fixture(scope="module")
def server():
    made = server_module.ThreadedMotoServer(port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """A fresh bucket with seven cases of three classes; return its URL and a folder with the same."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": server, "use_listings_cache": False})
    s3fs.S3FileSystem.clear_instance_cache()
    fs = fsspec.filesystem("s3")
    name = f"bucket-{os.urandom(4).hex()}"
    fs.mkdir(name)
    rng = np.random.default_rng(0)
    for folder in ("predictions", "labels"):
        (tmp_path / folder).mkdir()
    for number in range(7):
        scores = (3 * rng.normal(size=(3, 5 + number, 4))).astype(np.float32)
        np.save(tmp_path / "predictions" / f"c{number}.npy", scores)
        labels = (scores / 2 + rng.gumbel(size=scores.shape)).argmax(0).astype(np.uint8)
        np.save(tmp_path / "labels" / f"c{number}.npy", labels)
    for folder in ("predictions", "labels"):
        fs.put(f"{tmp_path / folder}/", f"{name}/{folder}/", recursive=True)
    return f"s3://{name}", tmp_path


def measured(cases, **more):
    found = segcal.evaluate(cases, segcal.make_calibrator("ts", 3), replicates=20, **more)
    return repr(found.to_plain())


def open_both(bucket):
    url, folder = bucket
    there = segcal.open_cases(f"{url}/predictions", f"{url}/labels", kind="logits")
    return there, segcal.open_cases(folder / "predictions", folder / "labels", kind="logits")


def test_cases_of_a_bucket_are_those_of_a_folder_and_each_is_fetched_once(bucket, monkeypatch):
    there, local = open_both(bucket)
    fetched = []
    fs = fsspec.filesystem("s3")
    get = fs.get_file

    def counted(path, local):
        fetched.append(path.rpartition("/")[2])
        return get(path, local)

    monkeypatch.setattr(fs, "get_file", counted)
    assert measured(there) == measured(local)
    # c0 was opened for its header before.
    assert sorted(fetched) == sorted([*(f"c{n}.npy" for n in range(1, 7)), *(f"c{n}.npy" for n in range(7))])
    held = list(there.members[0].path("c0").parent.iterdir())
    assert len(held) == KEPT
    assert not any(path.stat().st_size for path in there.members[0].folder.iterdir())
    assert there.fingerprint() == local.fingerprint()


def test_what_does_not_come_is_asked_for_again(bucket, monkeypatch):
    there, local = open_both(bucket)
    fs, seen = fsspec.filesystem("s3"), set()
    get = fs.get_file

    def flaky(path, local):
        if path not in seen:
            seen.add(path)
            raise ConnectionResetError("connection reset by peer")
        return get(path, local)

    monkeypatch.setattr(fs, "get_file", flaky)
    again = pickle.loads(pickle.dumps(there))  # another process fetches by itself
    assert measured(again) == measured(local)
    assert len(seen) == 14


def test_a_case_that_is_cut_off_or_never_comes_fails_alone_with_a_reason(bucket, monkeypatch):
    there, _ = open_both(bucket)
    fs = fsspec.filesystem("s3")
    get = fs.get_file

    def broken(path, local):
        get(path, local)
        if path.endswith("predictions/c3.npy"):
            os.truncate(local, 100)
        if path.endswith("labels/c5.npy"):
            raise TimeoutError("no answer")

    monkeypatch.setattr(fs, "get_file", broken)
    failed: list[CaseError] = []
    measured(there, failed=failed.append)
    cut, silent = failed
    assert (cut.case_id, silent.case_id) == ("c3", "c5")
    assert "predictions/c3.npy could not be read in 3 attempts (OSError: 100 of " in cut.reason
    assert "labels/c5.npy could not be read in 3 attempts (TimeoutError: no answer), but it is needed." in silent.reason


def test_an_object_that_is_replaced_is_another_case(bucket):
    there, _ = open_both(bucket)
    before = there.identity("c1")
    fsspec.filesystem("s3").pipe_file(f"{bucket[0]}/labels/c1.npy", b"another")
    again, _ = open_both(bucket)
    assert again.identity("c1") != before
    assert again.identity("c2") == there.identity("c2")


def test_what_is_not_there_is_one_sentence(bucket):
    with pytest.raises(InputError, match=r"^s3://.*/nothing is missing, but it is needed. Check the URL.$"):
        segcal.open_cases(f"{bucket[0]}/nothing", kind="logits")
    with pytest.raises(InputError, match=r"names one folder twice"):
        segcal.open_cases([f"{bucket[0]}/predictions"] * 2, kind="logits", pooling="mean_logits")


def test_results_come_as_a_whole_or_not_at_all(bucket, tmp_path, monkeypatch):
    (tmp_path / "out" / "inner").mkdir(parents=True)
    for name in ("a.json", "inner/b.csv", "c.json"):
        (tmp_path / "out" / name).write_text(name)
    url = f"{bucket[0]}/results"
    fs = fsspec.filesystem("s3")
    put = fs.put_file

    def refused(local, path):
        if path.endswith("c.json"):
            raise PermissionError("quota exceeded")
        return put(local, path)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "put_file", refused)
        with pytest.raises(
            InputError, match=r"could not be written \(PermissionError: quota exceeded\), but results go"
        ):
            upload(tmp_path / "out", url)
    fs.invalidate_cache()
    assert fs.find(url) == []
    check_new(url)
    upload(tmp_path / "out", url)
    assert fs.cat_file(f"{url}/inner/b.csv") == b"inner/b.csv"
    with pytest.raises(InputError, match="holds results already, but nothing there is overwritten"):
        check_new(url)


def save_zarr(path, values):
    array = pytest.importorskip("zarr").create_array(str(path), shape=values.shape, dtype="f4", chunks=(3, 2, 2, 2))
    array[...] = values


def save_nifti(path, values):
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)


@pytest.mark.parametrize(("ending", "write"), [("npz", np.savez), ("zarr", save_zarr), ("nii.gz", save_nifti)])
def test_every_format_of_one_file_or_folder_per_case_is_read_from_a_url(ending, write, tmp_path):
    rng = np.random.default_rng(1)
    scores = {f"c{number}": (3 * rng.normal(size=(3, 5, 6, 4))).astype(np.float32) for number in range(3)}
    for case_id, values in scores.items():
        write(tmp_path / f"{case_id}.{ending}", values)
    cases = segcal.open_cases(f"file://{tmp_path}", kind="logits", class_axis=0)
    for case_id, values in scores.items():
        assert np.array_equal(cases.read(case_id).logits.numpy(), values)


def test_a_path_that_was_made_of_a_url_is_one_again(tmp_path):
    assert url_of(Path("s3://bucket/a/b")) == "s3://bucket/a/b"
    assert url_of(Path("file:///a")) == "file:///a"
    assert url_of(Path("/a/s3:/b")) is None
    assert here(tmp_path) == (tmp_path, None)
