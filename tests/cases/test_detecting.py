import json

import nibabel
import numpy as np
import pytest

from segcal.cases import CaseError, open_cases
from segcal.cases.detecting import detect_format, open_format
from segcal.cases.formats import Options
from segcal.errors import InputError


@pytest.mark.parametrize(("name", "expected"), [("a.npy", "npy"), ("a.npz", "npz"), ("a.safetensors", "safetensors")])
def test_one_ending_decides(name, expected, tmp_path):
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "readme.txt").write_text("x")
    assert detect_format(tmp_path) == expected


def test_two_endings_are_a_question(tmp_path):
    for name in ("a.npy", "a.npz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        InputError, match=r"has files of 2 formats \(npy, npz\), but which holds the scores must be known"
    ):
        detect_format(tmp_path)


def test_nothing_readable_lists_the_formats(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"has no files that segcal reads.*Formats: npy, npz, nifti, nifti_classes, zarr"
    ):
        detect_format(tmp_path)


def test_a_nifti_file_of_three_axes_is_a_question(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.float32), np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(InputError, match="has 3 axes: it may be one class of a volume, or all classes of a picture"):
        detect_format(tmp_path)


def test_npz_beside_a_foreign_dataset_json_is_not_nnunet(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"")
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "x"}))
    assert detect_format(tmp_path) == "npz"


def test_wrong_paths_and_names_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"predictions .*none is not a folder"):
        open_format(tmp_path / "none", None, Options())
    with pytest.raises(InputError, match=r"no format is named 'tiff'\. Choose one of: npy, npz"):
        open_format(tmp_path, "tiff", Options())
    with pytest.raises(InputError, match=r"has no npy files, but files ending in \.npy are needed"):
        open_format(tmp_path, "npy", Options())


def test_npz_below_somebody_elses_dataset_json_is_not_nnunet(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.npz").write_bytes(b"")
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "a": 1}}))
    assert detect_format(tmp_path / "p") == "npz"
    (tmp_path / "p" / "a.pkl").write_bytes(b"")
    assert detect_format(tmp_path / "p") == "nnunet"


def test_a_damaged_first_file_fails_its_case_and_not_the_folder(tmp_path, rng):
    image = nibabel.Nifti1Image(rng.normal(size=(3, 4, 5, 2)).astype(np.float32), np.eye(4))
    for name in ("a", "b"):
        nibabel.save(image, tmp_path / f"{name}.nii.gz")
    (tmp_path / "a.nii.gz").write_bytes((tmp_path / "a.nii.gz").read_bytes()[:60])
    cases = open_cases(tmp_path, kind="logits")
    assert cases.read("b").logits.shape == (2, 3, 4, 5)
    with pytest.raises(CaseError, match=r"a\.nii\.gz cannot be read"):
        cases.read("a")
    (tmp_path / "b.nii.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.nii\.gz cannot be read"):
        open_cases(tmp_path, kind="logits")
