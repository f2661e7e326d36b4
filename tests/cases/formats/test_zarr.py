import json

import numpy as np
import pytest
import torch

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.cases.check import check
from segcal.errors import InputError

zarr = pytest.importorskip("zarr")


def make(path, array, **options):
    stored = zarr.create_array(str(path), shape=array.shape, chunks=array.shape, dtype=array.dtype, **options)
    stored[...] = array


def test_the_axis_that_the_file_names_c_holds_the_classes(tmp_path, rng):
    array = rng.normal(size=(4, 3, 5)).astype(np.float32)
    make(tmp_path / "a.zarr", array, dimension_names=["y", "c", "x"])
    assert np.array_equal(open_cases(tmp_path, kind="logits").read("a").logits, array.transpose(1, 0, 2))


def test_a_group_needs_a_key_where_it_has_several_arrays(tmp_path, rng, calibrate):
    array = rng.normal(size=(3, 4, 5)).astype(np.float16)
    group = zarr.create_group(str(tmp_path / "p" / "a.zarr"))
    for key, factor in (("scores", 1), ("other", 2)):
        group.create_array(key, shape=array.shape, dtype="f2")[...] = array * factor
    cases = open_cases(tmp_path / "p", kind="logits", key="scores")
    case = calibrate(cases, tmp_path / "out")
    assert np.array_equal(case.logits, array.astype(np.float32))
    with pytest.raises(InputError, match=r"has 2 arrays \(other, scores\), but one is needed"):
        open_cases(tmp_path / "p", kind="logits")
    written = zarr.open_group(str(tmp_path / "out" / "a.zarr"), mode="r")
    assert np.array_equal(written["other"][...], array * 2)


def change(path, **entries):
    content = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps(content | entries))


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"codecs": [{"name": "numcodecs.pickle"}]}, r"uses the codec numcodecs\.pickle, but only"),
        (
            {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [{"name": "evil"}]}}]},
            "uses the codec evil",
        ),
        ({"codecs": "bytes"}, "has no list of codecs"),
        ({"shape": [3, 10**9, 10**9]}, r"a\.zarr needs more memory than any machine has, but at most"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**12, 1, 1]}}},
            r"a\.zarr needs 11175\.9 GiB",
        ),
        ({"shape": [3, -1]}, "has no valid shape and chunk shape"),
        ({"chunk_grid": 5}, "has no valid shape and chunk shape"),
        ({"data_type": "string"}, "cannot be read|has dtype"),
    ],
)
def test_metadata_is_checked_before_the_library_sees_it(entries, match, tmp_path):
    make(tmp_path / "a.zarr", np.ones((3, 4, 5), np.float32))
    make(tmp_path / "b.zarr", np.ones((3, 4, 5), np.float32))
    cases = open_cases(tmp_path, kind="logits")
    change(tmp_path / "a.zarr", **entries)
    with pytest.raises(CaseError, match=match):
        cases.read("a")


def test_the_second_zarr_format_is_refused(tmp_path):
    make(tmp_path / "a.zarr", np.zeros((3, 4), np.float32), zarr_format=2)
    with pytest.raises(InputError, match=r"zarr\.json is missing"):
        open_cases(tmp_path, kind="logits")


def test_complex_numbers_and_unknown_keys_are_refused(tmp_path):
    make(tmp_path / "a.zarr", np.zeros((3, 4), np.complex64))
    with pytest.raises(InputError, match="has dtype complex64, but numbers are needed"):
        open_cases(tmp_path, kind="logits")
    zarr.create_group(str(tmp_path / "p" / "a.zarr")).create_array("x", shape=(3, 4), dtype="f4")
    with pytest.raises(InputError, match="has the arrays x, but 'y' is needed"):
        open_cases(tmp_path / "p", kind="logits", key="y")


def test_a_store_with_links_is_neither_read_nor_copied(tmp_path, rng):
    make(tmp_path / "p" / "a.zarr", rng.normal(size=(3, 4, 5)).astype(np.float32))
    (tmp_path / "secret").write_text("not for others")
    (tmp_path / "p" / "a.zarr" / "notes").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="notes is a link, a pipe or a device, but a zarr store holds folders and"):
        open_cases(tmp_path / "p", kind="logits")
    (tmp_path / "p" / "a.zarr" / "notes").unlink()
    cases = open_cases(tmp_path / "p", kind="logits")
    (tmp_path / "p" / "a.zarr" / "notes").symlink_to(tmp_path / "secret")
    with pytest.raises(CaseError, match="notes is a link"):
        CaseWriter(cases, tmp_path / "out").write("a", torch.zeros(3, 4, 5))
    assert not list((tmp_path / "out").rglob("notes"))


def test_the_store_itself_may_be_a_link(tmp_path, rng, calibrate):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    make(tmp_path / "elsewhere" / "a.zarr", array)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.zarr").symlink_to(tmp_path / "elsewhere" / "a.zarr")
    cases = open_cases(tmp_path / "p", kind="logits")
    calibrate(cases, tmp_path / "out")
    assert not (tmp_path / "out" / "a.zarr").is_symlink()
    assert np.array_equal(cases.read("a").logits, array)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "c/0/1/0"),
        ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, "0.1.0"),
        ({"shards": (3, 2, 5)}, "c/0/1/0"),
    ],
)
def test_a_chunk_or_shard_that_is_not_there_is_not_read_as_zeros(tmp_path, rng, options, name):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    stored = zarr.create_array(
        str(tmp_path / "p" / "a.zarr"), shape=array.shape, chunks=(3, 2, 5), dtype="f4", **options
    )
    stored[...] = array
    cases = open_cases(tmp_path / "p", kind="logits")
    cases.read("a")
    (tmp_path / "p" / "a.zarr" / name).unlink()
    match = rf"a.zarr lacks the chunk {name} and perhaps others, which read as 0, but every voxel needs its logits"
    with pytest.raises(CaseError, match=match):
        cases.read("a")
    assert match in " ".join(problem.text for problem in check(tmp_path / "p", kind="logits").problems)


@pytest.mark.parametrize(("kind", "severity"), [("probs", "note"), ("sigmoid", "warning")])
def test_probabilities_of_zero_may_be_left_out_by_whoever_wrote_them(tmp_path, kind, severity):
    values = np.zeros((2, 4, 5), np.float32) if kind == "probs" else np.full((4, 5), 0.5, np.float32)
    chunks = (1, 4, 5) if kind == "probs" else (2, 5)
    values[0] = 1 if kind == "probs" else 0
    values[1] = 0
    zarr.create_array(str(tmp_path / "a.zarr"), shape=values.shape, chunks=chunks, dtype="f4")[...] = values
    result = check(tmp_path, kind=kind)
    said = [problem.severity for problem in result.problems if "lacks the chunk" in problem.text]
    assert said == [severity]
    assert result.usable


def test_what_is_written_has_all_its_chunks_even_of_zeros(tmp_path, calibrate):
    stored = zarr.create_array(str(tmp_path / "p" / "a.zarr"), shape=(2, 4, 5), chunks=(1, 4, 5), dtype="f4")
    stored[...] = np.array([100, -100])[:, None, None]
    calibrate(open_cases(tmp_path / "p", kind="logits"), tmp_path / "out", temperature=1.0)
    assert open_cases(tmp_path / "out", kind="logits").read("a").logits[0].eq(0).all()
