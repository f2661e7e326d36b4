import nibabel
import numpy as np
import pytest
from PIL import Image

from segcal.cases import open_cases
from segcal.cases.maps import write_confidence

# An affine that mirrors, turns and stretches: an axis that is lost or turned round shows.
TURNED = np.array([[0, -1.5, 0, 20], [0, 0, -2.0, -5], [3.0, 0, 0, 7], [0, 0, 0, 1]])


@pytest.fixture
def confidence(rng):
    return rng.random((4, 5, 6)).astype(np.float32)


def test_pictures_become_grey_png_in_a_folder_of_their_own(npy_folder, rng, tmp_path):
    predictions, _, _ = npy_folder
    cases = open_cases(predictions, kind="logits")
    values = rng.random((4, 5))
    path = write_confidence(cases, "a1", values, tmp_path / "out")
    assert path == tmp_path / "out" / "confidence" / "a1.png"
    with Image.open(path) as picture:
        assert picture.mode == "L"
        np.testing.assert_allclose(np.array(picture) / 255, values, atol=0.5 / 255 + 1e-9)
    assert [file.name for file in path.parent.iterdir()] == ["a1.png"]


def test_volumes_of_arrays_become_nifti_with_the_voxel_size_that_is_known(confidence, tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.zeros((2, 4, 5, 6), np.float32))
    cases = open_cases(tmp_path / "in", kind="logits")
    for spacing, zooms in (((3.0, 2.0, 0.5), (0.5, 2.0, 3.0)), (None, (1.0, 1.0, 1.0))):
        image = nibabel.load(write_confidence(cases, "a", confidence, tmp_path / "out", spacing))
        assert image.header.get_zooms() == zooms
        assert image.get_data_dtype() == np.float32
        assert np.array_equal(image.get_fdata(dtype=np.float32), confidence.transpose(2, 1, 0))


@pytest.mark.parametrize("axis", [-1, 0])
def test_maps_of_nifti_scores_lie_on_them(axis, confidence, tmp_path):
    (tmp_path / "in").mkdir()
    scores = np.moveaxis(np.zeros((3, 4, 5, 6), np.float32), 0, axis)
    image = nibabel.Nifti1Image(scores, TURNED)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, tmp_path / "in" / "a.nii.gz")
    cases = open_cases(tmp_path / "in", kind="logits", class_axis=axis)
    written = nibabel.load(write_confidence(cases, "a", confidence, tmp_path / "out"))
    np.testing.assert_allclose(written.affine, TURNED, atol=1e-6)
    assert written.header.get_xyzt_units()[0] == "mm"
    assert np.array_equal(written.get_fdata(dtype=np.float32), confidence)


@pytest.mark.parametrize("reader", ["SimpleITKIO", "NibabelIOWithReorient"])
def test_maps_of_nnunet_lie_on_its_label_maps(reader, make_nnunet, confidence, tmp_path):
    folder = tmp_path / "in"
    make_nnunet(folder, ids=("c1",))
    plans = folder / "plans.json"
    plans.write_text(plans.read_text().replace("SimpleITKIO", reader))
    # What nnU-Net would have written: the array in its own axes, stored in the geometry of the image.
    values = confidence.transpose(2, 1, 0)
    if reader == "NibabelIOWithReorient":
        turn = nibabel.orientations.ornt_transform(
            nibabel.orientations.axcodes2ornt("RAS"), nibabel.io_orientation(TURNED)
        )
        values = nibabel.orientations.apply_orientation(values, turn)
    nibabel.save(nibabel.Nifti1Image((10 * values).astype(np.uint8), TURNED), folder / "c1.nii.gz")
    cases = open_cases(folder)
    written = nibabel.load(write_confidence(cases, "c1", confidence, tmp_path / "out"))
    np.testing.assert_allclose(written.affine, TURNED, atol=1e-6)
    assert np.array_equal(written.get_fdata(dtype=np.float32), values)
    if reader == "NibabelIOWithReorient":  # as the reader itself turns it
        seen = np.asarray(nibabel.as_closest_canonical(written).dataobj).transpose(2, 1, 0)
        assert np.array_equal(seen, confidence)


def test_without_its_label_map_an_nnunet_case_has_its_voxel_size(make_nnunet, confidence, tmp_path):
    make_nnunet(tmp_path / "in", ids=("c1",))
    (tmp_path / "in" / "c1.nii.gz").unlink()
    cases = open_cases(tmp_path / "in")
    image = nibabel.load(write_confidence(cases, "c1", confidence, tmp_path / "out", cases.read("c1").spacing))
    assert image.header.get_zooms() == (0.5, 1.0, 2.0)
