import nibabel
import numpy as np
import pytest

from segcal.cases import check_cases
from segcal.errors import InputError


def texts(result, case_id, severity=None):
    found = [problem for problem in result.problems if problem.case_id == case_id]
    return " | ".join(problem.text for problem in found if severity in (None, problem.severity))


def test_a_good_folder_has_rows_and_only_the_hint_that_cases_are_few(npy_folder):
    predictions, labels, arrays = npy_folder
    seen = []
    result = check_cases(predictions, labels, kind="logits", progress=seen.append)
    assert seen == ["a1", "a2", "b1", "b2"]
    assert result.usable
    assert texts(result, None) == "4 cases are few: with 25 or more, intervals narrow."
    row = result.rows[0]
    label = np.load(labels / "a1.npy")
    assert row.shape == (3, 4, 5)
    assert row.accuracy == (arrays["a1"].argmax(0) == label).mean()
    assert list(row.labels) == np.bincount(label.ravel(), minlength=3).tolist()
    assert list(row.predicted) == np.bincount(arrays["a1"].argmax(0).ravel(), minlength=3).tolist()


def test_every_problem_of_every_file_is_reported_in_one_go(npy_folder):
    predictions, labels, arrays = npy_folder
    (predictions / "a1.npy").write_bytes(b"broken")
    np.save(predictions / "a2.npy", np.where(np.arange(60).reshape(3, 4, 5) == 7, np.nan, arrays["a2"]))
    np.save(labels / "b1.npy", np.full((4, 5), 9, np.uint8))
    (labels / "b2.npy").unlink()
    np.save(labels / "extra.npy", np.zeros((4, 5), np.uint8))
    result = check_cases(predictions, labels, kind="logits")
    assert not result.usable
    assert "a1.npy cannot be read" in texts(result, "a1", "error")
    assert "has 1 values that are NaN" in texts(result, "a2", "error")
    assert "b1.npy contains 9" in texts(result, "b1", "error")
    assert "has no label map for it" in texts(result, "b2", "error")
    assert "1 label maps have no prediction and are left out: extra" in texts(result, None, "note")


def test_all_members_are_looked_at(npy_folder, tmp_path):
    predictions, labels, arrays = npy_folder
    other = tmp_path / "other"
    other.mkdir()
    for case_id, array in arrays.items():
        np.save(other / f"{case_id}.npy", array[:2] if case_id == "b1" else array)
    result = check_cases([predictions, other], labels, kind="logits", pool="mean_logits")
    assert r"other/b1.npy has shape (2, 4, 5)" in texts(result, "b1", "error").replace("\\", "/")
    assert len(result.rows) == 4


def test_padded_logits_are_an_error_with_share_and_vector(npy_folder):
    predictions, labels, arrays = npy_folder
    arrays["a1"][:, :2] = np.array([1, 0, 0], np.float32)[:, None, None]
    np.save(predictions / "a1.npy", arrays["a1"])
    result = check_cases(predictions, labels, kind="logits")
    assert "holds exactly (1, 0, 0) in 50.0% of its voxels: suspected padding" in texts(result, "a1", "error")


def test_another_constant_is_a_warning(npy_folder):
    predictions, labels, arrays = npy_folder
    arrays["a1"][:, :2] = np.array([2, 0.5, 0], np.float32)[:, None, None]
    np.save(predictions / "a1.npy", arrays["a1"])
    result = check_cases(predictions, labels, kind="logits")
    assert "holds exactly (2, 0.5, 0) in 50.0%" in texts(result, "a1", "warning")
    assert result.usable


def test_probabilities_declared_as_logits_are_a_warning(npy_folder):
    predictions, labels, arrays = npy_folder
    probs = np.exp(arrays["a1"]) / np.exp(arrays["a1"]).sum(0)
    np.save(predictions / "a1.npy", probs)
    result = check_cases(predictions, labels, kind="logits")
    assert "all its values lie in 0 to 1 and sum to 1" in texts(result, "a1", "warning")


def test_classes_that_are_never_there_are_named(tmp_path, rng):
    for folder in ("p", "l"):
        (tmp_path / folder).mkdir()
    scores = rng.normal(size=(3, 40)).astype(np.float32)
    scores[2] -= 50
    np.save(tmp_path / "p" / "a.npy", scores)
    np.save(tmp_path / "l" / "a.npy", np.zeros(40, np.uint8))
    result = check_cases(tmp_path / "p", tmp_path / "l", kind="logits", class_names=["x", "y", "z"])
    assert "class 1 (y) is in no label map" in texts(result, None, "warning")
    assert "class 2 (z) is never predicted" in texts(result, None, "note")


def test_a_label_map_that_is_not_the_argmax_is_a_warning_and_the_crop_is_no_padding(tmp_path, make_nnunet):
    probabilities = make_nnunet(tmp_path / "p", box=[[1, 2], [0, 5], [0, 6]])
    changed = probabilities["c1"].argmax(0).astype(np.uint8).transpose(2, 1, 0)
    changed[0, 0, 0] = 2
    nibabel.save(nibabel.Nifti1Image(changed, np.eye(4)), tmp_path / "p" / "c1.nii.gz")
    result = check_cases(tmp_path / "p")
    assert "another argmax than the stored label map in 0.83% of the voxels" in texts(result, "c1", "warning")
    assert texts(result, "c2") == ""
    assert result.rows[0].valid == 0.25
    assert result.rows[0].labelled is None


def test_files_of_different_precision_are_a_warning(npy_folder):
    predictions, labels, arrays = npy_folder
    np.save(predictions / "a1.npy", arrays["a1"].astype(np.float16))
    result = check_cases(predictions, labels, kind="logits")
    assert "scores have the dtypes float16, float32" in texts(result, None, "warning")


def test_a_folder_that_cannot_be_opened_at_all_raises(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        check_cases(tmp_path / "none", kind="logits")
