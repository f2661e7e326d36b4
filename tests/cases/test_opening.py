import numpy as np
import pytest

from segcal.cases import CaseError, open_cases
from segcal.errors import InputError


def test_all_mismatches_are_listed_at_once(npy_folder, tmp_path):
    predictions, labels, arrays = npy_folder
    other = tmp_path / "other"
    other.mkdir()
    for case_id in ("a1", "b1", "new"):
        np.save(other / f"{case_id}.npy", arrays["a1"])
    (labels / "b2.npy").rename(labels / "b_2.npy")
    with pytest.raises(InputError) as caught:
        open_cases([predictions, other], labels, kind="logits", pool="mean_logits")
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


def test_labels_without_predictions_are_left_alone(npy_folder):
    predictions, labels, _ = npy_folder
    (predictions / "b2.npy").unlink()
    assert len(open_cases(predictions, labels, kind="logits")) == 3


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
    cases = open_cases(
        predictions, labels, kind="logits", groups=r"([a-z])\d", images=images, class_names=["x", "y", "z"]
    )
    case = cases.read("b1")
    assert case.group == "b"
    assert case.image.shape == (2, 4, 5)
    assert cases.class_names == ("x", "y", "z")
    assert {frozenset(case_id[0] for case_id in part.ids) for part in cases.split(cal=2)} >= {frozenset("a")}


def test_a_sigmoid_folder_has_two_classes(tmp_path, rng):
    np.save(tmp_path / "a.npy", rng.random((4, 5)).astype(np.float32))
    cases = open_cases(tmp_path, kind="sigmoid")
    assert cases.num_classes == 2
    assert cases.read("a").logits.shape == (2, 4, 5)


def test_one_broken_file_does_not_hide_the_class_count(npy_folder):
    predictions, _, _ = npy_folder
    (predictions / "a1.npy").write_bytes(b"")
    assert open_cases(predictions, kind="logits").num_classes == 3


def test_when_no_file_can_be_read_the_first_reason_is_given(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.npy cannot be read"):
        open_cases(tmp_path, kind="logits")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kind": "softmax"}, "no kind is named 'softmax'"),
        ({"pool": "mean"}, "no pooling is named 'mean'"),
        ({"label_axes": "yxz"}, "no label_axes is named 'yxz'. Choose one of: xyz, zyx"),
        ({"class_names": ["a"]}, "class_names has 1 names, but the scores have 3 classes"),
        ({"groups": "x"}, "has 0 groups"),
    ],
)
def test_declarations_that_cannot_be_are_refused(options, match, npy_folder):
    with pytest.raises(InputError, match=match):
        open_cases(npy_folder[0], **({"kind": "logits"} | options))


def test_predictions_must_be_folders_each_named_once(npy_folder):
    with pytest.raises(InputError, match="predictions is empty"):
        open_cases([], kind="logits")
    with pytest.raises(InputError, match="predictions names one folder twice"):
        open_cases([npy_folder[0], npy_folder[0]], kind="logits", pool="mean_probs")


def test_one_class_is_a_question_about_axis_or_kind(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 4, 5), np.float32))
    with pytest.raises(InputError, match=r"has shape \(1, 4, 5\) with classes first, but at least 2 classes"):
        open_cases(tmp_path, kind="logits")
