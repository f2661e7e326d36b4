import nibabel
import numpy as np
import torch

from segcal.cases import CaseWriter, open_cases


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
