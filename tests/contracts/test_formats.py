"""Every format of the registry: reads what another program wrote, writes what another program reads.

Folders are made, and results are read, with the formats' own libraries; nothing of segcal takes part in either.
"""

import contextlib
import json
import pickle
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from segcal.cases import FORMATS, CaseError, CaseWriter, open_cases
from segcal.errors import InputError

nibabel = pytest.importorskip("nibabel")
zarr = pytest.importorskip("zarr")
rasterio = pytest.importorskip("rasterio")

IDS = ("p1", "p2", "q1")
SPACE = (4, 5, 6)
AFFINE = np.array([[-2, 0, 0, 5], [0, 3, 0, -7], [0, 0, 1.5, 1], [0, 0, 0, 1.0]])


def probabilities(scores):
    shifted = np.exp(scores - scores.max(axis=0))
    return (shifted / shifted.sum(axis=0)).astype(np.float32)


def make_npy(folder, case_id, scores):
    np.save(folder / f"{case_id}.npy", scores.astype(np.float16))


def make_npz(folder, case_id, scores):
    np.savez_compressed(folder / f"{case_id}.npz", scores=scores)


def make_nifti(folder, case_id, scores):
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(scores, 0, -1), AFFINE), folder / f"{case_id}.nii.gz")


def make_nifti_classes(folder, case_id, scores):
    for number, plane in enumerate(scores):
        nibabel.save(nibabel.Nifti1Image(plane, AFFINE), folder / f"{case_id}_{number}.nii.gz")


def make_zarr(folder, case_id, scores):
    array = zarr.create_array(str(folder / f"{case_id}.zarr"), shape=scores.shape, chunks=(3, 2, 5, 3), dtype="f4")
    array[...] = scores
    array.attrs["note"] = "kept"


def make_safetensors(folder, case_id, scores):
    safetensors_numpy.save_file({"scores": scores}, folder / f"{case_id}.safetensors", {"note": "kept"})


def make_nnunet(folder, case_id, scores):
    values = probabilities(scores)
    np.savez_compressed(folder / f"{case_id}.npz", probabilities=values)
    properties = {
        "spacing": [1.0, 2.0, 3.0],
        "shape_before_cropping": SPACE,
        "bbox_used_for_cropping": [[0, size] for size in SPACE],
    }
    (folder / f"{case_id}.pkl").write_bytes(pickle.dumps(properties))
    labels = values.argmax(0).astype(np.uint8).transpose()
    nibabel.save(nibabel.Nifti1Image(labels, AFFINE), folder / f"{case_id}.nii.gz")
    names = {"background": 0, "one": 1, "two": 2}
    (folder / "dataset.json").write_text(json.dumps({"labels": names, "file_ending": ".nii.gz"}))
    plans = {"transpose_forward": [0, 1, 2], "image_reader_writer": "SimpleITKIO"}
    (folder / "plans.json").write_text(json.dumps(plans))


def make_store(folder, case_id, scores):
    energy = np.log(np.exp(scores.astype(np.float64)).sum(axis=0))
    tensors = {
        "log_probs": (scores - energy).astype(np.float16),
        "free_energy": energy.astype(np.float32),
        "prediction": scores.argmax(0).astype(np.uint8),
    }
    facts = {"format": "segcal-store", "version": 1, "id": case_id, "spacing": None, "group": None}
    safetensors_numpy.save_file(tensors, folder / f"{case_id}.safetensors", {"segcal": json.dumps(facts)})
    dataset = {"format": "segcal-store", "version": 1, "kind": "logits", "pooling": "single", "num_classes": 3}
    (folder / "dataset.json").write_text(json.dumps(dataset | {"class_names": None}))


def make_geotiff(folder, case_id, scores):
    about = {"driver": "GTiff", "dtype": "float32", "nodata": -9999, "crs": "EPSG:32632", "compress": "deflate"}
    place = rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000)
    planes = scores.reshape(3, 20, 6)
    with rasterio.open(folder / f"{case_id}.tif", "w", width=6, height=20, count=3, transform=place, **about) as file:
        file.write(planes)


def make_ome_zarr(folder, case_id, scores):
    axes = [{"name": "c", "type": "channel"}] + [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 3.0, 2.0, 1.0]}]
    image = {"axes": axes, "datasets": [{"path": "s0", "coordinateTransformations": scale}]}
    group = zarr.create_group(str(folder / f"{case_id}.ome.zarr"), zarr_format=3)
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    group.create_array("s0", shape=scores.shape, chunks=(3, 2, 5, 3), dtype="f4")[...] = scores


MAKE = {name: globals().get(f"make_{name.replace('-', '_')}") for name in FORMATS}
READ = {
    "npy": lambda folder, name: np.load(folder / f"{name}.npy"),
    "npz": lambda folder, name: np.load(folder / f"{name}.npz")["scores"],
    "nifti": lambda folder, name: np.moveaxis(nibabel.load(folder / f"{name}.nii.gz").get_fdata(), -1, 0),
    "nifti_classes": lambda folder, name: np.stack(
        [nibabel.load(folder / f"{name}_{number}.nii.gz").get_fdata() for number in range(3)]
    ),
    "zarr": lambda folder, name: zarr.open_array(str(folder / f"{name}.zarr"), mode="r")[...],
    "safetensors": lambda folder, name: safetensors_numpy.load_file(folder / f"{name}.safetensors")["scores"],
    "nnunet": lambda folder, name: np.load(folder / f"{name}.npz")["probabilities"],
    "store": lambda folder, name: safetensors_numpy.load_file(folder / f"{name}.safetensors")["log_probs"],
    "geotiff": lambda folder, name: _bands(folder / f"{name}.tif"),
    "ome-zarr": lambda folder, name: zarr.open_array(str(folder / f"{name}.ome.zarr" / "s0"), mode="r")[...],
}


def _bands(path):
    with rasterio.open(path) as file:
        return file.read()


KNOWN_KIND = {"nnunet": "probs", "store": "logits"}
HALF = {"npy": 1e-2, "store": 1e-2}  # what float16 on disk costs


def other_program(name):
    """The name of a format; a new one is left out, and said to be, until somebody writes its maker and its reader."""
    known = MAKE[name] is not None and name in READ
    reason = f"no other program makes and reads {name} here"
    return pytest.param(name, marks=() if known else pytest.mark.skip(reason=reason))


@pytest.fixture(params=map(other_program, FORMATS))
def name(request):
    return request.param


@pytest.fixture
def made(name, tmp_path):
    rng = np.random.default_rng(3)
    folder = tmp_path / "predictions"
    folder.mkdir()
    scores = {case_id: (rng.normal(size=(3, *SPACE)) * 3).astype(np.float32) for case_id in IDS}
    for case_id, values in scores.items():
        MAKE[name](folder, case_id, values)
    return folder, scores


def opened(name, folder, format=None, **options):
    declared = None if name in KNOWN_KIND else "logits"
    chosen = "nifti_classes" if name == "nifti_classes" else format
    return open_cases(folder, kind=declared, format=chosen, **options)


def listing(folder):
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] != ".segcal")  # what the results were made from


def test_formats_know_their_names_and_every_reader_is_of_one():
    assert READ.keys() <= FORMATS.keys()
    assert all(FORMATS[name].name == name for name in FORMATS)


def test_a_folder_of_another_program_is_read_with_classes_first(name, made):
    folder, scores = made
    cases = opened(name, folder)
    assert cases.members[0].name == name
    assert cases.ids == IDS
    assert cases.num_classes == 3
    for case in cases:
        expected = np.log(probabilities(scores[case.id]))
        found = torch.log_softmax(case.logits, dim=0).numpy()
        assert found.shape == (3, *((20, 6) if name == "geotiff" else SPACE))
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=HALF.get(name, 1e-5))


def test_the_kind_must_be_declared_unless_the_format_knows_it(name, made):
    folder, _ = made
    if name in KNOWN_KIND:
        assert open_cases(folder).kind == KNOWN_KIND[name]
        with pytest.raises(InputError, match="declared and stored kinds must agree"):
            open_cases(folder, kind="sigmoid")
    else:
        with pytest.raises(InputError, match=f"kind is not declared, but {name} files do not say"):
            open_cases(folder, format=name)


def test_a_calibrated_case_has_the_same_names_and_keeps_the_argmax(name, made, tmp_path):
    folder, _ = made
    cases = opened(name, folder)
    writer = CaseWriter(cases, tmp_path / "out")
    for case in cases:
        assert not writer.done(case.id)
        flatter = torch.log_softmax(case.logits / 3, dim=0)
        writer.write(case.id, flatter, case.logits.argmax(0))
        assert writer.done(case.id)
        before, after = READ[name](folder, case.id), READ[name](tmp_path / "out", case.id)
        assert after.dtype == before.dtype
        assert np.array_equal(np.argmax(after, 0), np.argmax(before, 0))
        written = np.log(after) if name == "nnunet" else after
        np.testing.assert_allclose(written, flatter.numpy(), atol=HALF.get(name, 1e-5))
    assert listing(tmp_path / "out") == listing(folder)


def test_ties_that_rounding_makes_do_not_change_the_argmax(name, tmp_path):
    folder = tmp_path / "predictions"
    folder.mkdir()
    scores = np.zeros((3, *SPACE), np.float32)
    scores[2] = 3e-4  # beyond the resolution of what a strong temperature leaves
    MAKE[name](folder, "p1", scores)
    cases = opened(name, folder)
    case = cases.read("p1")
    assert (case.logits.numpy().argmax(0) == 2).all()
    flat = torch.log_softmax(case.logits / 1e6, dim=0)
    CaseWriter(cases, tmp_path / "out").write("p1", flat, case.logits.argmax(0))
    again = opened(name, tmp_path / "out").read("p1")
    assert (again.logits.numpy().argmax(0) == 2).all()
    if name != "store":  # the store's decision is the integer beside the scores
        assert (READ[name](tmp_path / "out", "p1").argmax(0) == 2).all()


def test_a_calibrator_that_changes_the_decision_is_found_out_and_nothing_is_written(name, made, tmp_path):
    folder, _ = made
    cases = opened(name, folder)
    case = cases.read("p1")
    writer = CaseWriter(cases, tmp_path / "out")
    with pytest.raises(CaseError, match=r"case 'p1': .*would name another class"):
        writer.write("p1", torch.log_softmax(-case.logits, dim=0), case.logits.argmax(0))
    assert not writer.done("p1")
    assert not list((tmp_path / "out").glob(".segcal*"))


def test_writing_again_replaces_the_case_and_the_input_is_never_overwritten(name, made, tmp_path):
    folder, _ = made
    cases = opened(name, folder)
    case = cases.read("q1")
    writer = CaseWriter(cases, tmp_path / "out")
    for temperature in (5.0, 2.0):
        writer.write("q1", torch.log_softmax(case.logits / temperature, dim=0), case.logits.argmax(0))
    found = torch.log_softmax(opened(name, tmp_path / "out").read("q1").logits, 0)
    np.testing.assert_allclose(found, torch.log_softmax(case.logits / 2.0, 0), atol=HALF.get(name, 1e-4))
    with pytest.raises(InputError, match="holds the predictions themselves"):
        CaseWriter(cases, folder)


def test_a_cut_file_fails_its_case_by_name_and_no_other(name, made):
    folder, _ = made
    cases = opened(name, folder)
    path = cases.members[0].path("p2")
    target = max(
        (file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size, default=path
    )
    target.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
    assert opened(name, folder).ids == IDS
    with pytest.raises(CaseError, match=r"case 'p2': .*p2") as caught:
        cases.read("p2")
    assert caught.value.case_id == "p2"
    shutil.rmtree(path) if path.is_dir() else path.unlink()  # and a file that vanished
    with pytest.raises(CaseError, match=r"case 'p2': .*p2"):
        cases.read("p2")
    cases.read("p1")
    cases.read("q1")


def test_two_members_are_pooled_as_declared_and_one_that_lacks_a_case_is_named(name, made, tmp_path):
    folder, scores = made
    other = tmp_path / "other"
    other.mkdir()
    MAKE[name](other, "p1", -scores["p1"])
    with pytest.raises(InputError, match=r"other lacks 2 cases: p2, q1"):
        opened(name, [folder, other], name, pooling="mean_probs")
    with pytest.raises(InputError, match="predictions has 2 folders, but pooling is 'single'"):
        opened(name, [folder, other], name)
    pooled = opened(name, [folder, other], name, pooling="mean_probs", strict=False)
    expected = (probabilities(scores["p1"]) + probabilities(-scores["p1"])) / 2
    found = pooled.read("p1").logits.exp().reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=HALF.get(name, 1e-5))
    assert not pooled.has_offset
    with pytest.raises(CaseError, match=r"case 'p2': .*other has no scores for it"):
        pooled.read("p2")


def test_the_fingerprint_changes_with_a_files_size_and_not_with_its_place(name, made, tmp_path):
    folder, _ = made
    before = opened(name, folder).fingerprint()
    shutil.copytree(folder, tmp_path / "copy")
    assert opened(name, tmp_path / "copy").fingerprint() == before
    if "zarr" not in name:  # a folder has no size of its own
        with opened(name, folder).members[0].path("p1").open("ab") as stream:
            stream.write(b"\0")
        assert opened(name, folder).fingerprint() != before


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused_with_the_cases_name(name, made, tmp_path, data):
    folder, _ = made
    cases = opened(name, folder)
    files = [file for file in (folder, *folder.rglob("*")) if file.is_file() and "p1" in str(file)]
    target = data.draw(st.sampled_from(sorted(files)))
    original = target.read_bytes()
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 5))):
        # Headers are where the harm is: half of the changes go there.
        end = data.draw(st.sampled_from([min(len(content), 400), len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    target.write_bytes(bytes(content))
    tracemalloc.start()
    try:
        with contextlib.suppress(CaseError):
            cases.read("p1")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        target.write_bytes(original)
    assert peak < 200e6
