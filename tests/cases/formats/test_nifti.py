import nibabel
import numpy as np
import pytest
import torch

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.errors import InputError


def test_five_axes_are_the_standards_place_for_vectors(tmp_path, rng):
    array = rng.normal(size=(4, 5, 6, 1, 3)).astype(np.float32)
    (tmp_path / "p").mkdir()
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "p" / "a.nii.gz")
    cases = open_cases(tmp_path / "p", kind="logits")
    case = cases.read("a")
    assert np.array_equal(case.logits, array[:, :, :, 0].transpose(3, 0, 1, 2))
    CaseWriter(cases, tmp_path / "out").write("a", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    assert nibabel.load(tmp_path / "out" / "a.nii.gz").shape == array.shape


def test_classes_may_be_first_if_declared(tmp_path, rng):
    array = rng.normal(size=(3, 4, 5, 6)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "a.nii")
    assert np.array_equal(open_cases(tmp_path, kind="logits", class_axis=0).read("a").logits, array)


def test_the_header_of_the_input_is_kept(tmp_path, rng):
    (tmp_path / "p").mkdir()
    affine = np.array([[-0.5, 0, 0, 9], [0, 0, 2, 1], [0, 1.5, 0, 2], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(rng.normal(size=(4, 5, 6, 2)).astype(np.float32), affine)
    image.header["descrip"] = b"made by a scanner"
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, tmp_path / "p" / "a.nii.gz")
    cases = open_cases(tmp_path / "p", kind="logits")
    case = cases.read("a")
    CaseWriter(cases, tmp_path / "out").write("a", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    written = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert np.allclose(written.affine, affine)
    assert written.header["descrip"].item() == b"made by a scanner"
    assert written.header.get_xyzt_units() == ("mm", "sec")


def test_scaled_bytes_are_read_and_written_as_floats(tmp_path, rng):
    (tmp_path / "p").mkdir()
    probs = np.moveaxis(rng.dirichlet([1, 1, 1], size=(4, 5, 6)), -1, -1)
    image = nibabel.Nifti1Image(probs, np.eye(4))
    image.set_data_dtype(np.uint8)
    nibabel.save(image, tmp_path / "p" / "a.nii.gz")
    stored = nibabel.load(tmp_path / "p" / "a.nii.gz").get_fdata()
    cases = open_cases(tmp_path / "p", kind="probs")
    case = cases.read("a")
    CaseWriter(cases, tmp_path / "out").write("a", case.logits.float(), case.logits.argmax(0))
    written = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert written.get_data_dtype() == np.float32
    assert np.array_equal(written.get_fdata().argmax(-1), stored.argmax(-1))


def make(folder, name, array):
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / f"{name}.nii.gz")


def test_classes_are_sorted_by_number_and_not_by_name(tmp_path, rng):
    planes = rng.normal(size=(11, 2, 3, 4)).astype(np.float32)
    for number, plane in enumerate(planes):
        make(tmp_path, f"a_b_{number}", plane)
    cases = open_cases(tmp_path, kind="logits", format="nifti_classes")
    assert cases.ids == ("a_b",)
    assert np.array_equal(cases.read("a_b").logits, planes)


def test_the_pattern_of_names_can_be_declared(tmp_path):
    for number in range(2):
        make(tmp_path, f"class{number}-case7", np.full((2, 3, 4), number, np.float32))
    cases = open_cases(tmp_path, kind="logits", format="nifti_classes", class_pattern=r"class(?P<cls>\d+)-(?P<id>.+)")
    assert cases.ids == ("case7",)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("(", "class_pattern is not a regular expression"),
        ("(?P<id>.+)", "has the groups id, but id and cls are needed"),
        (r"(?P<id>.+)-(?P<cls>\d)", r"a_0\.nii\.gz does not match"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(pattern, match, tmp_path):
    make(tmp_path, "a_0", np.zeros((2, 3, 4), np.float32))
    with pytest.raises(InputError, match=match):
        open_cases(tmp_path, kind="logits", format="nifti_classes", class_pattern=pattern)


def test_a_missing_class_and_a_class_of_another_shape_fail_the_case(tmp_path):
    for case_id, numbers in (("a", (0, 1)), ("b", (0, 2)), ("c", (0, 1))):
        for number in numbers:
            make(tmp_path, f"{case_id}_{number}", np.zeros((2, 3, 4 + (case_id == "c") * number), np.float32))
    cases = open_cases(tmp_path, kind="logits", format="nifti_classes")
    with pytest.raises(CaseError, match="has the classes 0, 2, but 0 to 2 are needed"):
        cases.read("b")
    with pytest.raises(CaseError, match="and the other classes have the shapes"):
        cases.read("c")
