"""Folders of label maps: what is read, and what does not belong together."""

import numpy as np
import pytest

from segcal.cases.base import CaseError
from segcal.cases.masks import MaskCases
from segcal.errors import InputError

AFFINE = np.diag([1.25, 1.5, 8.0, 1.0])
SPACE = (5, 4, 3)


@pytest.fixture
def save(tmp_path):
    """Write label maps of a folder, by case, in the format of an ending; return the folder."""

    def write(name, maps, ending=".nii.gz", affine=AFFINE):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for case_id, values in maps.items():
            path = folder / f"{case_id}{ending}"
            if ending == ".npy":
                np.save(path, values)
            else:
                nibabel = pytest.importorskip("nibabel")
                nibabel.save(nibabel.Nifti1Image(values, affine), path)
        return folder

    return write


@pytest.fixture
def maps(rng):
    return {name: rng.integers(0, 3, SPACE, dtype=np.uint8) for name in ("a1", "a2", "b1")}


def test_runs_truth_and_voxel_size_are_read(save, maps):
    first, second, truth = save("p", maps), save("q", maps), save("l", {k: v[::-1].copy() for k, v in maps.items()})
    cases = MaskCases([first, second], truth, groups=r"^(\w)\d")
    assert cases.ids == ("a1", "a2", "b1")
    assert cases.groups == {"a1": "a", "a2": "a", "b1": "b"}
    case = cases.read("a2")
    assert case.spacing == (1.25, 1.5, 8.0)
    assert [np.array_equal(run, maps["a2"]) for run in case.runs] == [True, True]
    np.testing.assert_array_equal(case.truth, maps["a2"][::-1])
    assert MaskCases(str(first)).read("b1").truth is None


def test_the_label_that_does_not_count_is_marked(save, maps):
    labels = {"a1": np.where(maps["a1"] == 2, 255, maps["a1"]).astype(np.uint8)}
    case = MaskCases(save("p", maps, ".npy"), save("l", labels, ".npy"), ignore=255).read("a1")
    np.testing.assert_array_equal(case.truth == -1, maps["a1"] == 2)
    assert case.spacing is None


def test_arrays_beside_nifti_labels_must_say_how_axes_follow(save, maps):
    turned = save("p", {name: each.T.copy() for name, each in maps.items()}, ".npy")
    labels = save("l", maps)
    with pytest.raises(CaseError, match="which one is right must be declared"):
        MaskCases(turned, labels).read("a1")
    case = MaskCases(turned, labels, label_axes="zyx").read("a1")
    np.testing.assert_array_equal(case.truth, case.runs[0])


def test_files_in_different_places_are_refused_unless_told(save, maps):
    moved = AFFINE.copy()
    moved[0, 3] = 5
    folders = save("p", maps), save("l", maps, affine=moved)
    with pytest.raises(CaseError, match="corners lie up to 5 mm apart"):
        MaskCases(*folders).read("a1")
    MaskCases(*folders, ignore_geometry=True).read("a1")


def test_what_does_not_belong_together_is_one_sentence(save, maps, tmp_path):
    labels = save("l", {"a1": maps["a1"][:-1], "a2": -maps["a2"].astype(np.int8)}, ".npy")
    cases = MaskCases(save("p", maps, ".npy"), labels)
    with pytest.raises(CaseError, match=r"a1.npy has shape \(4, 4, 3\), but its case has \(5, 4, 3\)"):
        cases.read("a1")
    with pytest.raises(CaseError, match=r"a2.npy contains -2, -1, but there are"):
        cases.read("a2")
    with pytest.raises(CaseError, match="has no label map for it, but one is needed"):
        cases.read("b1")
    with pytest.raises(InputError, match="predictions is an empty list, but a folder of label maps is needed"):
        MaskCases([])
    with pytest.raises(InputError, match=r"predictions .* is not a folder, but one with a label map a case is needed"):
        MaskCases(tmp_path / "nothing")
