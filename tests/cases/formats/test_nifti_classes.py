import nibabel
import numpy as np
import pytest

from segcal.cases import CaseError, open_cases
from segcal.errors import InputError


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
