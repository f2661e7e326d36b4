"""What is special about npy, npz, NIfTI and safetensors; what all formats share is in tests/contracts."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from segcal.cases import CaseError, open_cases
from segcal.cases.formats import FORMATS, Options
from segcal.cases.formats.safetensors import numpy_dtype, write_tensors
from segcal.cases.records import input_digest
from segcal.errors import InputError


def test_one_axis_moves_to_the_front_and_the_others_keep_their_order(tmp_path):
    values = np.zeros((2, 3, 4, 5))
    np.save(tmp_path / "a.npy", values)
    for axis in range(4):
        found = FORMATS["npy"](tmp_path, Options(class_axis=axis))
        expected = np.moveaxis(values, axis, 0)
        assert found.header("a").shape == found.read("a").values.shape == expected.shape
        assert found.as_stored(expected).shape == values.shape
    with pytest.raises(InputError, match="has no scores for it, but every member needs them"):
        found.path("b")


def test_an_npy_file_is_mapped_and_not_changed_by_what_is_done_to_the_case(tmp_path, rng):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    cases = open_cases(tmp_path, kind="logits")
    assert isinstance(cases.read_member("a").values.base, np.memmap)
    cases.read("a").logits.add_(1)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


def test_an_npy_file_that_is_open_is_the_one_at_its_path_and_each_read_has_values_of_its_own(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 3, 4000)))
    found = FORMATS["npy"](tmp_path, Options())
    found.read("a").values[:] = 5
    assert not found.read("a").values.any()
    assert found.digests("a") == [input_digest(path)]
    path.unlink()  # another one at the same path, of another shape
    np.save(path, np.ones((4, 3)))
    assert found.header("a").shape == (4, 3)
    assert found.read("a").values.all()
    assert found.digests("a") == [input_digest(path)]
    path.write_bytes(b"damaged")
    assert found.digests("a") == [input_digest(path)]
    path.unlink()
    assert found.digests("a") == [input_digest(path)] == [""]
    with pytest.raises(InputError, match="is missing, but it is needed"):
        found.read("a")


def test_other_arrays_of_an_npz_file_are_kept(tmp_path, rng, calibrate):
    (tmp_path / "p").mkdir()
    array = rng.normal(size=(4, 5, 3)).astype(np.float16)
    np.savez(tmp_path / "p" / "a.npz", scores=array, spacing=np.array([1.0, 2.0]))
    calibrate(open_cases(tmp_path / "p", kind="logits", key="scores", class_axis=-1), tmp_path / "out")
    written = np.load(tmp_path / "out" / "a.npz")
    assert written["spacing"].tolist() == [1.0, 2.0]
    assert written["scores"].dtype == np.float16
    assert np.array_equal(written["scores"].argmax(-1), array.argmax(-1))


def save(folder, name, array, affine=None, dtype=None):
    folder.mkdir(exist_ok=True)
    image = nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine)
    image.header["descrip"] = b"made by a scanner"
    image.header.set_xyzt_units("mm", "sec")
    if dtype is not None:
        image.set_data_dtype(dtype)
    nibabel.save(image, folder / f"{name}.nii.gz")


def test_nifti_of_five_axes_has_the_standards_place_for_vectors_and_classes_may_be_first(tmp_path, rng, calibrate):
    array = rng.normal(size=(4, 5, 6, 1, 3)).astype(np.float32)
    save(tmp_path / "p", "a", array)
    case = calibrate(open_cases(tmp_path / "p", kind="logits"), tmp_path / "out")
    assert np.array_equal(case.logits, array[:, :, :, 0].transpose(3, 0, 1, 2))
    assert nibabel.load(tmp_path / "out" / "a.nii.gz").shape == array.shape
    save(tmp_path / "first", "a", array[:3, ..., 0, :])
    assert np.array_equal(
        open_cases(tmp_path / "first", kind="logits", class_axis=0).read("a").logits, array[:3, ..., 0, :]
    )


def test_the_header_of_a_nifti_file_is_kept(tmp_path, rng, calibrate):
    affine = np.array([[-0.5, 0, 0, 9], [0, 0, 2, 1], [0, 1.5, 0, 2], [0, 0, 0, 1.0]])
    save(tmp_path / "p", "a", rng.normal(size=(4, 5, 6, 2)).astype(np.float32), affine)
    calibrate(open_cases(tmp_path / "p", kind="logits"), tmp_path / "out")
    written = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert np.allclose(written.affine, affine)
    assert written.header["descrip"].item() == b"made by a scanner"
    assert written.header.get_xyzt_units() == ("mm", "sec")


def test_scaled_bytes_are_read_and_written_as_floats(tmp_path, rng, calibrate):
    save(tmp_path / "p", "a", rng.dirichlet([1, 1, 1], size=(4, 5, 6)), dtype=np.uint8)
    stored = nibabel.load(tmp_path / "p" / "a.nii.gz").get_fdata()
    calibrate(open_cases(tmp_path / "p", kind="probs"), tmp_path / "out", temperature=1.0)
    written = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert written.get_data_dtype() == np.float32
    assert np.array_equal(written.get_fdata().argmax(-1), stored.argmax(-1))


def open_classes(folder, **options):
    return open_cases(folder, kind="logits", format="nifti_classes", **options)


def test_classes_are_sorted_by_number_and_not_by_name_and_names_have_a_pattern(tmp_path, rng):
    planes = rng.normal(size=(11, 2, 3, 4)).astype(np.float32)
    for number, plane in enumerate(planes):
        save(tmp_path / "p", f"a_b_{number}", plane)
        save(tmp_path / "q", f"class{number}-case7", plane)
    cases = open_classes(tmp_path / "p")
    assert cases.ids == ("a_b",)
    assert np.array_equal(cases.read("a_b").logits, planes)
    assert open_classes(tmp_path / "q", class_pattern=r"class(?P<cls>\d+)-(?P<id>.+)").ids == ("case7",)
    for pattern, match in (
        ("(", "class_pattern is not a regular expression"),
        ("(?P<id>.+)", "has the groups id, but id and cls are needed"),
        (r"(?P<id>.+)-(?P<cls>\d)", r"a_b_0\.nii\.gz does not match"),
    ):
        with pytest.raises(InputError, match=match):
            open_classes(tmp_path / "p", class_pattern=pattern)


def test_a_missing_class_and_a_class_of_another_shape_fail_the_case(tmp_path):
    for case_id, numbers in (("a", (0, 1)), ("b", (0, 2)), ("c", (0, 1))):
        for number in numbers:
            save(tmp_path, f"{case_id}_{number}", np.zeros((2, 3, 4 + (case_id == "c") * number), np.float32))
    cases = open_classes(tmp_path)
    with pytest.raises(CaseError, match="has the classes 0, 2, but 0 to 2 are needed"):
        cases.read("b")
    with pytest.raises(CaseError, match="and the other classes have the shapes"):
        cases.read("c")


def test_other_tensors_and_metadata_of_safetensors_are_kept(tmp_path, calibrate):
    (tmp_path / "p").mkdir()
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    save_file({"scores": scores.bfloat16(), "extra": torch.ones(2)}, tmp_path / "p" / "a.safetensors", {"note": "x"})
    case = calibrate(open_cases(tmp_path / "p", kind="logits", key="scores"), tmp_path / "out")
    assert torch.equal(case.logits, scores.bfloat16().float())
    written = load_file(tmp_path / "out" / "a.safetensors")
    assert written["scores"].dtype == torch.float32
    assert torch.equal(written["extra"], torch.ones(2))
    with safe_open(tmp_path / "out" / "a.safetensors", "pt") as file:
        assert file.metadata() == {"note": "x"}
    with pytest.raises(InputError, match=r"has 2 tensors \(extra, scores\), but one is needed"):
        open_cases(tmp_path / "p", kind="logits")
    with pytest.raises(InputError, match="has the tensors extra, scores, but 'z' is needed"):
        open_cases(tmp_path / "p", kind="logits", key="z")
    assert numpy_dtype("U16", Path("a")) == np.uint16
    with pytest.raises(InputError, match=r"a\.safetensors has dtype F8_E4M3, but plain numbers are needed"):
        numpy_dtype("F8_E4M3", Path("a.safetensors"))


def test_files_have_the_mode_that_other_files_have_and_a_full_disk_is_an_error_of_the_system(tmp_path):
    write_tensors({"a": torch.zeros(2)}, tmp_path / "a.safetensors", None)
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "plain"]
    with pytest.raises(OSError, match=r"a\.safetensors could not be written"):
        write_tensors({"a": torch.zeros(2)}, tmp_path / "nowhere" / "a.safetensors", None)
