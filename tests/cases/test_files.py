import tracemalloc

import nibabel
import numpy as np
import pytest

from segcal.cases import CaseError, open_cases


def test_a_case_has_logits_and_labels_with_ignored_voxels_marked(npy_folder):
    predictions, labels, arrays = npy_folder
    raw = np.load(labels / "a1.npy")
    case = open_cases(predictions, labels, kind="logits", ignore=2).read("a1")
    assert np.array_equal(case.logits, arrays["a1"])
    assert np.array_equal(case.labels, np.where(raw == 2, -1, raw.astype(int)))
    assert case.mask is None


def test_members_are_averaged_and_halves_are_computed_in_single_precision(tmp_path, rng):
    arrays = []
    for member in range(3):
        (tmp_path / f"m{member}").mkdir()
        arrays.append(rng.normal(size=(3, 4, 5)).astype(np.float16))
        np.save(tmp_path / f"m{member}" / "a.npy", arrays[-1])
    cases = open_cases([tmp_path / f"m{member}" for member in range(3)], kind="logits", pooling="mean_logits")
    found = cases.read("a").logits.numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.mean([array.astype(np.float32) for array in arrays], axis=0), rtol=1e-6)
    assert cases.pooling == "mean_logits"
    assert cases.has_offset


@pytest.mark.parametrize(
    ("place", "values", "match"),
    [
        ("labels", np.full((4, 5), 9, np.uint8), "contains 9, but there are 3 classes"),
        ("labels", np.zeros((5, 4), np.uint8), r"has space \(5, 4\), but its logits have \(4, 5\)"),
        ("labels", np.full((4, 5), 0.5), "has values that are not whole numbers"),
        ("predictions", np.full((3, 4, 5), np.nan), "has 60 values that are NaN or infinite"),
        ("predictions", np.zeros((4, 4, 5)), r"has shape \(4, 4, 5\), but \(3, \*space\) like the cases before it"),
        ("predictions", np.zeros((3, 4, 5), np.int32), "has dtype int32, but floating-point values are needed"),
    ],
)
def test_what_does_not_fit_fails_the_case_with_the_files_name(place, values, match, npy_folder):
    predictions, labels, _ = npy_folder
    np.save(predictions.parent / place / "b1.npy", values)
    with pytest.raises(CaseError, match=rf"case 'b1': .*{place}.b1\.npy {match}"):
        open_cases(predictions, labels, kind="logits").read("b1")


def test_members_of_different_shape_fail_the_case(tmp_path):
    for member, size in enumerate((4, 6)):
        (tmp_path / f"m{member}").mkdir()
        np.save(tmp_path / f"m{member}" / "a.npy", np.zeros((3, size), np.float32))
    cases = open_cases([tmp_path / "m0", tmp_path / "m1"], kind="logits", pooling="mean_logits")
    with pytest.raises(CaseError, match=r"case 'a': .*m1.a\.npy has shape \(3, 6\), but the first member has \(3, 4\)"):
        cases.read("a")


def save(folder, values, affine):
    folder.mkdir()
    nibabel.save(nibabel.Nifti1Image(values, affine), folder / "a.nii.gz")


def test_nifti_scores_and_labels_share_axes_even_where_the_shape_reads_both_ways(tmp_path, rng):
    scores = rng.normal(size=(4, 5, 4, 3)).astype(np.float32)
    save(tmp_path / "p", scores, np.diag([1, 2, 3, 1]))
    save(tmp_path / "l", scores.argmax(-1).astype(np.uint8), np.diag([1, 2, 3, 1]))
    case = open_cases(tmp_path / "p", tmp_path / "l", kind="logits").read("a")
    assert np.array_equal(case.labels, case.logits.argmax(0))
    assert case.spacing == (1.0, 2.0, 3.0)


def test_masks_of_members_are_intersected(tmp_path, make_nnunet):
    make_nnunet(tmp_path / "p", box=[[0, 3], [0, 5], [0, 6]])
    make_nnunet(tmp_path / "q", box=[[1, 4], [0, 5], [0, 6]])
    case = open_cases([tmp_path / "p", tmp_path / "q"], pooling="mean_probs").read("c1")
    assert case.mask[:, 0, 0].tolist() == [False, True, True, False]


def test_memory_does_not_grow_with_the_number_of_cases(tmp_path):
    for number in range(12):
        np.savez(tmp_path / f"{number:02d}.npz", np.zeros((4, 100, 500), np.float32))
    cases = open_cases(tmp_path, kind="logits")

    def peak(collection):
        tracemalloc.start()
        try:
            for case in collection:
                assert case.logits.shape == (4, 100, 500)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(cases.subset(cases.ids[:3])), peak(cases)
    assert few > 0.8e6  # one case is counted at all
    assert many < 1.1 * few


def test_members_say_where_they_disagree_when_that_is_asked_for(tmp_path, rng):
    members = rng.normal(size=(3, 2, 4, 5)) * 3
    for number, member in enumerate(members):
        (tmp_path / f"m{number}").mkdir()
        np.save(tmp_path / f"m{number}" / "a.npy", member)
    folders = [tmp_path / f"m{number}" for number in range(3)]
    cases = open_cases(folders, kind="logits", pooling="mean_probs")
    assert cases.read("a").disagreement is None
    found = cases.with_disagreement().subset(["a"]).read("a")
    probs = np.exp(members) / np.exp(members).sum(1, keepdims=True)
    mean = probs.mean(0)
    expected = (probs * np.log(probs)).sum(1).mean(0) - (mean * np.log(mean)).sum(0)
    np.testing.assert_allclose(found.disagreement, expected, atol=1e-6)
    assert found.context.disagreement.shape == (1, 4, 5)
    assert open_cases(folders[0], kind="logits").with_disagreement().read("a").disagreement is None
