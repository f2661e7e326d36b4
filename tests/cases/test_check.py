import shutil

import nibabel
import numpy as np
import pytest

from segcal.cases import ArrayCases, CaseError, CaseRow, CheckResult
from segcal.cases.check import check


def texts(result, case_id, severity=None):
    found = [problem for problem in result.problems if problem.case_id == case_id]
    return " | ".join(problem.text for problem in found if severity in (None, problem.severity))


def suspected(result):
    return [(problem.text, problem.case_ids) for problem in result.problems if problem.severity == "warning"][:-1]


def test_a_good_folder_has_rows_and_only_the_hint_that_cases_are_few(npy_folder):
    predictions, labels, arrays = npy_folder
    seen = []
    result = check(predictions, labels, kind="logits", progress=seen.append)
    assert seen == ["a1", "a2", "b1", "b2"]
    assert result.usable
    assert texts(result, None) == "4 cases are few: with 25 or more, intervals narrow."
    assert str(result).splitlines() == [
        "4 cases, 3 classes; format npy, kind logits",
        "warning: the folder: 4 cases are few: with 25 or more, intervals narrow.",
        "usable: every case can be read",
    ]
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
    result = check(predictions, labels, kind="logits")
    assert not result.usable
    assert "a1.npy cannot be read" in texts(result, "a1", "error")
    assert "has 1 values that are NaN" in texts(result, "a2", "error")
    assert "b1.npy contains 9" in texts(result, "b1", "error")
    assert "has no label map for it" in texts(result, "b2", "error")
    assert "1 label maps have no prediction and are left out: extra" in texts(result, None, "note")


@pytest.mark.parametrize(
    ("part", "match"),
    [
        (lambda array: array[:2], "other/b1.npy has shape (2, 4, 5)"),
        (lambda array: array[:, :3], "has space (3, 5), but the first member has (4, 5)"),
    ],
)
def test_all_members_are_looked_at(part, match, npy_folder, tmp_path):
    predictions, labels, arrays = npy_folder
    (tmp_path / "other").mkdir()
    for case_id, array in arrays.items():
        np.save(tmp_path / "other" / f"{case_id}.npy", part(array) if case_id == "b1" else array + 1)
    result = check([predictions, tmp_path / "other"], labels, kind="logits", pooling="mean_logits")
    assert match in texts(result, "b1", "error").replace("\\", "/")
    assert result.broken == {"b1"}
    assert len(result.rows) == 4


def fill(array, vector):
    array[:, :2] = np.array(vector, np.float32)[:, None, None]
    return array


@pytest.mark.parametrize(
    ("change", "case_id", "severity", "text"),
    [
        (lambda z: fill(z, (1, 0, 0)), "a1", "error", "holds exactly (1, 0, 0) in 50.0% of its voxels: suspected pad"),
        (lambda z: fill(z, (2, 0.5, 0)), "a1", "warning", "holds exactly (2, 0.5, 0) in 50.0%"),
        (lambda z: np.exp(z) / np.exp(z).sum(0), "a1", "warning", "all lie in 0 to 1 and sum to 1"),
        (lambda z: z.astype(np.float16), None, "warning", "scores have the dtypes float16, float32"),
    ],
)
def test_what_is_seldom_meant_is_said(change, case_id, severity, text, npy_folder):
    predictions, labels, arrays = npy_folder
    np.save(predictions / "a1.npy", change(arrays["a1"]))
    result = check(predictions, labels, kind="logits")
    assert text in texts(result, case_id, severity)
    assert result.usable is (severity == "warning")


def test_classes_that_are_never_there_are_named(tmp_path, rng):
    for folder in ("p", "l"):
        (tmp_path / folder).mkdir()
    scores = rng.normal(size=(3, 40)).astype(np.float32)
    scores[2] -= 50
    np.save(tmp_path / "p" / "a.npy", scores)
    np.save(tmp_path / "l" / "a.npy", np.zeros(40, np.uint8))
    result = check(tmp_path / "p", tmp_path / "l", kind="logits", class_names=["x", "y", "z"])
    assert "class 1 (y) is in no label map" in texts(result, None, "warning")
    assert "class 2 (z) is never predicted" in texts(result, None, "note")


def test_a_label_map_that_is_not_the_argmax_is_a_warning_and_the_crop_is_no_padding(tmp_path, make_nnunet):
    probabilities = make_nnunet(tmp_path / "p", box=[[1, 2], [0, 5], [0, 6]])
    changed = probabilities["c1"].argmax(0).astype(np.uint8).transpose(2, 1, 0)
    changed[0, 0, 0] = 2
    nibabel.save(nibabel.Nifti1Image(changed, np.eye(4)), tmp_path / "p" / "c1.nii.gz")
    result = check(tmp_path / "p")
    assert "another argmax than the stored label map in 0.83% of the voxels" in texts(result, "c1", "warning")
    assert texts(result, "c2") == ""
    assert result.rows[0].valid == 0.25
    assert result.rows[0].labelled is None


def test_cases_with_nothing_to_count_are_not_usable(npy_folder):
    predictions, labels, _ = npy_folder
    np.save(labels / "a1.npy", np.full((4, 5), 9, np.uint8))
    np.save(predictions / "a2.npy", np.zeros((3, 0, 5), np.float32))
    np.save(labels / "a2.npy", np.zeros((0, 5), np.uint8))
    result = check(predictions, labels, kind="logits", ignore=9)
    assert result.broken == {"a1", "a2"}
    assert texts(result, "a1", "error") == (
        "labels are ignored everywhere, but at least one voxel must count. Check the ignore label and the mask, or "
        "leave the case out."
    )
    assert texts(result, "a2", "error").endswith(
        "a2.npy has shape (3, 0, 5), but at least one voxel is needed. Leave empty images out."
    )
    assert check(predictions, kind="logits").broken == {"a2"}


def test_what_all_cases_together_show_is_one_line_with_its_cases_whatever_is_broken(scene_folder):
    assert suspected(check(*scene_folder(), kind="logits")) == []
    predictions, labels = scene_folder(change=lambda number, labels: labels[:, ::-1], name="m")
    (predictions / "c2.npy").write_bytes(b"broken")
    mirrored = check(predictions, labels, kind="logits")
    ((text, ids),) = suspected(mirrored)
    assert text.startswith("labels fit clearly better as numpy.flip(labels, 1)")
    assert ids == ("c0", "c1", "c3", "c4", "c5")
    assert [shown for problem, shown in mirrored.digest() if problem.text == text] == [ids]
    assert mirrored.broken == {"c2"}


@pytest.mark.parametrize("workers", [1, 2])
def test_copies_are_found_among_cases_and_among_members(scene_folder, tmp_path, workers):
    predictions, labels = scene_folder()
    shutil.copy(predictions / "c1.npy", predictions / "c4.npy")
    shutil.copy(labels / "c1.npy", labels / "c4.npy")
    shutil.copytree(predictions, tmp_path / "again")
    result = check([predictions, tmp_path / "again"], labels, kind="logits", pooling="mean_logits", workers=workers)
    same = f"members hold the same scores ({predictions} = {tmp_path / 'again'})"
    assert [text for text, _ in suspected(result)] == [
        "the same scores have several names (c1 = c4) and count several times. Remove the copies.",
        f"{same} and count several times. Leave the copies out.",
    ]


def row(predicted, labels):
    return CaseRow("a", (2, 4), "float32", 1.0, 1.0, 0.5, predicted, labels)


def test_class_shares_are_of_all_voxels_together_and_absent_without_labels():
    def table(rows, names=None):
        return CheckResult("npy", "logits", "single", 1, 2, names, len(rows), rows).class_table()

    found = table([row((3, 1), (4, 0)), row((0, 4), (1, 3))], ("x", "y"))
    assert [line["name"] for line in found] == ["x", "y"]
    assert [line["predicted"] for line in found] == pytest.approx([3 / 8, 5 / 8])
    assert [line["labels"] for line in found] == pytest.approx([5 / 8, 3 / 8])
    assert table([row((3, 1), None)])[0]["labels"] is None
    assert table([])[1] == {"class": 1, "name": None, "predicted": 0.0, "labels": None}


def test_cases_in_memory_are_checked_like_files(scenes, tmp_path):
    logits, labels = zip(*scenes(3), strict=True)
    for number, (scores, truth) in enumerate(zip(logits, labels, strict=True)):
        for name, array in (("p", scores), ("l", truth)):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{number}.npy", array)
    from_files = check(tmp_path / "p", tmp_path / "l", kind="logits")
    found = check(ArrayCases(list(logits), list(labels)))
    assert found.rows == from_files.rows
    assert found.problems == from_files.problems
    assert check(np.stack(logits), np.stack(labels)) == found
    assert check(list(logits), list(labels), kind="logits", workers=1) == found
    assert (found.format, found.members) == ("arrays", 1)


def test_what_is_wrong_in_memory_is_a_line_too(scenes):
    logits, labels = (list(column) for column in zip(*scenes(4), strict=True))
    logits[0] = np.where(np.arange(30) < 20, np.array([1, 0, 0], np.float32)[:, None, None], logits[0])
    labels[1] = labels[1] + 7
    labels[2] = np.full_like(labels[2], 255)
    result = check(ArrayCases(logits, labels, ignore=255))
    assert result.broken == {"0", "1", "2"}
    assert "it holds exactly (1, 0, 0) in 66.7% of its voxels" in texts(result, "0", "error")
    assert "contains 7, 8, 9" in texts(result, "1", "error")
    assert "labels are ignored everywhere" in texts(result, "2", "error")
    with pytest.raises(CaseError, match=r"case '1': .*contains 7"):
        check(ArrayCases(logits[1:], labels[1:], ids=["1", "2", "3"], ignore=255), strict=True)


@pytest.mark.parametrize("regions", [None, {"whole": [1, 2], "core": [2], "rim": [1]}])
def test_copies_of_members_are_found_in_memory_of_classes_and_of_regions(regions, scenes):
    twice = ArrayCases([[one, one] for one, _ in scenes(4)], pooling="mean_logits", kind="logits", regions=regions)
    assert "members hold the same scores (member 0 = member 1)" in texts(check(twice), None, "warning")
