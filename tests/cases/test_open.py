import inspect
import json
from dataclasses import fields

import nibabel
import numpy as np
import pytest

from segcal import evaluate, make_calibrator
from segcal.cases import ArrayCases, CaseError, ReadOptions, convert, open_cases, split_folders
from segcal.cases.open import detect_format
from segcal.errors import InputError


def test_all_mismatches_are_listed_at_once(npy_folder, tmp_path):
    predictions, labels, arrays = npy_folder
    other = tmp_path / "other"
    other.mkdir()
    for case_id in ("a1", "b1", "new"):
        np.save(other / f"{case_id}.npy", arrays["a1"])
    (labels / "b2.npy").rename(labels / "b_2.npy")
    with pytest.raises(InputError) as caught:
        open_cases([predictions, other], labels, kind="logits", pooling="mean_logits")
    text = str(caught.value)
    assert "predictions lacks case new;" in text
    assert "other lacks 2 cases: a2, b2;" in text
    assert "labels lacks 2 cases: b2, new (and has case b_2 without predictions)" in text


def test_incomplete_cases_fail_one_by_one_when_that_is_asked_for(npy_folder):
    predictions, labels, _ = npy_folder
    (labels / "b2.npy").unlink()
    cases = open_cases(predictions, labels, kind="logits", strict=False)
    assert cases.ids == ("a1", "a2", "b1", "b2")
    cases.read("a1")
    with pytest.raises(CaseError, match=r"case 'b2': .*labels has no label map for it"):
        cases.read("b2")
    (predictions / "b2.npy").unlink()
    (predictions / "b1.npy").unlink()  # labels without predictions are left alone
    assert len(open_cases(predictions, labels, kind="logits")) == 2


def test_the_class_axis_is_moved_to_the_front(tmp_path, rng):
    array = rng.normal(size=(4, 5, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    cases = open_cases(tmp_path, kind="logits", class_axis=-1)
    assert cases.num_classes == 3
    assert np.array_equal(cases.read("a").logits, array.transpose(2, 0, 1))
    with pytest.raises(InputError, match="class_axis is 3, but the array has 3 axes"):
        open_cases(tmp_path, kind="logits", class_axis=3)


def test_groups_images_and_class_names_reach_the_cases(npy_folder, tmp_path):
    predictions, labels, _ = npy_folder
    images = tmp_path / "images"
    images.mkdir()
    for case_id in ("a1", "a2", "b1", "b2"):
        np.save(images / f"{case_id}.npy", np.ones((2, 4, 5), np.float32))
    declared = {"kind": "logits", "groups": r"([a-z])\d", "images": images, "class_names": ["x", "y", "z"]}
    cases = open_cases(predictions, labels, **declared)
    case = cases.read("b1")
    assert (case.group, case.image.shape, cases.class_names) == ("b", (2, 4, 5), ("x", "y", "z"))
    assert {frozenset(case_id[0] for case_id in part.ids) for part in cases.split(cal=2)} >= {frozenset("a")}
    options = ReadOptions(**declared)  # in one piece they mean the same
    assert open_cases(predictions, labels, options=options).identity("a1") == cases.identity("a1")
    assert open_cases(predictions, options=ReadOptions(kind="probs"), kind="logits").kind == "logits"


def test_a_broken_file_fails_its_case_and_not_the_folder_unless_all_are(tmp_path, rng):
    (tmp_path / "npy").mkdir()
    (tmp_path / "nifti").mkdir()
    scores = rng.normal(size=(3, 4, 5, 2)).astype(np.float32)
    for name in ("a", "b"):
        nibabel.save(nibabel.Nifti1Image(scores, np.eye(4)), tmp_path / "nifti" / f"{name}.nii.gz")
        np.save(tmp_path / "npy" / f"{name}.npy", np.moveaxis(scores, -1, 0))
    for first, last in (("npy/a.npy", "npy/b.npy"), ("nifti/a.nii.gz", "nifti/b.nii.gz")):
        (tmp_path / first).write_bytes((tmp_path / first).read_bytes()[:60])
        cases = open_cases((tmp_path / first).parent, kind="logits")
        assert cases.read("b").logits.shape == (2, 3, 4, 5)
        with pytest.raises(CaseError, match=r"a\.n.* cannot be read"):
            cases.read("a")
        (tmp_path / last).write_bytes(b"")
        with pytest.raises(InputError, match=r"a\.n.* cannot be read"):
            open_cases((tmp_path / first).parent, kind="logits")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kind": "softmax"}, "no kind is named 'softmax'"),
        ({"pooling": "mean"}, "no pooling is named 'mean'"),
        ({"label_axes": "yxz"}, "label_axes is 'yxz', but 'xyz' or 'zyx' is needed"),
        ({"class_names": ["a"]}, "class_names has 1 names, but the scores have 3 classes"),
        ({"groups": "x"}, "has 0 groups"),
        ({"format": "tiff"}, r"no format is named 'tiff'\. Choose one of: npy, npz"),
        ({"format": "npz"}, r"has no npz files, but files ending in \.npz are needed"),
    ],
)
def test_declarations_that_cannot_be_are_refused(options, match, npy_folder):
    with pytest.raises(InputError, match=match):
        open_cases(npy_folder[0], **({"kind": "logits"} | options))


def test_predictions_must_be_folders_each_named_once(npy_folder, tmp_path):
    with pytest.raises(InputError, match="predictions is empty"):
        open_cases([], kind="logits")
    with pytest.raises(InputError, match="predictions names one folder twice"):
        open_cases([npy_folder[0], npy_folder[0]], kind="logits", pooling="mean_probs")
    with pytest.raises(InputError, match=r"predictions .*none is not a folder"):
        open_cases(tmp_path / "none", kind="logits")


def test_one_class_is_a_question_about_axis_or_kind(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 4, 5), np.float32))
    with pytest.raises(InputError, match=r"has shape \(1, 4, 5\) with classes first, but at least 2 classes"):
        open_cases(tmp_path, kind="logits")


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["a.npy", "readme.txt"], "npy"),
        (["a.safetensors"], "safetensors"),
        (["a.npy", "a.npz"], r"has files of 2 formats \(npy, npz\), but which holds the scores must be known"),
        (["a.jpg"], r"has no files that segcal reads.*Formats: npy, npz, nifti, nifti_classes, zarr"),
    ],
)
def test_one_ending_decides_and_anything_else_is_a_question(names, match, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    if " " not in match:
        assert detect_format(tmp_path) == match
        return
    with pytest.raises(InputError, match=match):
        detect_format(tmp_path)


def test_a_nifti_file_of_three_axes_is_a_question(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.float32), np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(InputError, match="has 3 axes: one class of a volume, or all classes of a 2-D image"):
        detect_format(tmp_path)


def test_npz_beside_or_below_somebody_elses_dataset_json_is_not_nnunet(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.npz").write_bytes(b"")
    (tmp_path / "p" / "dataset.json").write_text(json.dumps({"name": "x"}))
    assert detect_format(tmp_path / "p") == "npz"
    (tmp_path / "p" / "dataset.json").rename(tmp_path / "dataset.json")
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "a": 1}}))
    assert detect_format(tmp_path / "p") == "npz"
    (tmp_path / "p" / "a.pkl").write_bytes(b"")
    assert detect_format(tmp_path / "p") == "nnunet"


def test_the_signature_names_every_declaration():
    names = [field.name for field in fields(ReadOptions)]
    assert set(names) < set(inspect.signature(open_cases).parameters)
    with pytest.raises(TypeError, match="pool"):
        open_cases("x", pool="mean_probs")


def test_a_store_that_holds_labels_suffices_alone(npy_folder, tmp_path, scenes):
    logits, labels = zip(*scenes(6), strict=True)
    for name, truth in (("labelled", list(labels)), ("bare", None)):
        convert(ArrayCases(list(logits), truth), tmp_path / name)
    assert split_folders([tmp_path / "labelled"]) == ([tmp_path / "labelled"], None)
    cases = open_cases(*split_folders([tmp_path / "labelled"]))
    assert cases.has_labels
    assert not open_cases(tmp_path / "bare").has_labels
    assert evaluate(cases, make_calibrator("ts", 3), replicates=5) is not None
    members = [npy_folder[0], tmp_path / "labelled"]
    assert split_folders(members) == (members, None)
    assert split_folders([tmp_path / "bare", npy_folder[1]]) == ([tmp_path / "bare"], npy_folder[1])
    for alone in (tmp_path / "bare", npy_folder[0], tmp_path / "none"):
        with pytest.raises(InputError, match=r"PREDICTIONS LABELS is .* alone, but both are needed"):
            split_folders([alone])
