import nibabel
import numpy as np
import pytest
from PIL import Image

from segcal.cases.images import ImageFolder
from segcal.errors import InputError


def test_colour_pictures_become_three_channels(tmp_path, rng):
    values = rng.integers(0, 255, (4, 5, 3)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    found = ImageFolder(tmp_path).read("a", (4, 5))
    assert found.dtype == np.float32
    assert np.array_equal(found, values.transpose(2, 0, 1))


def test_grey_pictures_become_one_channel_and_one_slice_where_scores_have_it(tmp_path):
    Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5)).save(tmp_path / "a.png")
    folder = ImageFolder(tmp_path)
    assert folder.read("a", (4, 5)).shape == (1, 4, 5)
    assert folder.read("a", (1, 4, 5)).shape == (1, 1, 4, 5)


def test_channels_in_files_of_their_own_are_stacked(tmp_path, rng):
    volumes = [rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2)]
    for number, volume in enumerate(volumes):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / f"a_{number:04d}.nii.gz")
    found = ImageFolder(tmp_path, "zyx").read("a", (4, 3, 2))
    assert np.array_equal(found, np.stack([volume.transpose(2, 1, 0) for volume in volumes]))


def test_arrays_with_and_without_a_channel_axis_are_read(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((4, 5)))
    np.save(tmp_path / "b.npy", np.ones((2, 4, 5)))
    folder = ImageFolder(tmp_path)
    assert folder.read("a", (4, 5)).shape == (1, 4, 5)
    assert folder.read("b", (4, 5)).shape == (2, 4, 5)


def test_images_that_do_not_fit_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4, 6)))
    with pytest.raises(InputError, match=r"a\.npy has space \(4, 6\), but its scores have \(4, 5\)"):
        ImageFolder(tmp_path).read("a", (4, 5))
    with pytest.raises(InputError, match="has no image for it"):
        ImageFolder(tmp_path).read("b", (4, 5))
    with pytest.raises(InputError, match="is not a folder"):
        ImageFolder(tmp_path / "none")
