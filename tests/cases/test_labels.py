import struct
import zlib

import nibabel
import numpy as np
import pytest
from PIL import Image

from segcal.cases.files import ImageFolder, LabelFolder
from segcal.cases.labels import read_label_file
from segcal.errors import InputError

LABELS = np.array([[0, 1, 2], [3, 2, 1]], np.uint8)


def png(path, depth, colour, rows):
    """Write a PNG by hand: `rows` are packed bytes."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 3, 2, depth, colour, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(range(12))) if colour == 3 else b""
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + body + chunk(b"IEND", b""))
    return path


def read(path, space=(2, 3), **options):
    return read_label_file(path, space, **options).values.tolist()


@pytest.mark.parametrize("colour", [0, 3])
@pytest.mark.parametrize(
    ("depth", "rows"),
    [(2, [b"\x18", b"\xe4"]), (4, [b"\x01\x20", b"\x32\x10"]), (8, [b"\0\1\2", b"\3\2\1"])],
)
def test_grey_and_palette_pictures_hold_class_indices_at_any_depth(depth, colour, rows, tmp_path):
    assert read(png(tmp_path / "a.png", depth, colour, rows)) == LABELS.tolist()


@pytest.mark.parametrize("values", [LABELS.astype(np.uint16) * 1000, LABELS > 1], ids=["sixteen bits", "one bit"])
def test_pictures_of_sixteen_bits_and_of_one_hold_class_indices(values, tmp_path):
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png") == values.astype(int).tolist()


def test_colour_pictures_are_refused(tmp_path):
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.png is a colour image \(RGB\), but one class index a pixel is needed"):
        read(tmp_path / "a.png")


def test_a_picture_that_declares_more_pixels_than_it_can_hold_is_refused(tmp_path):
    path = png(tmp_path / "a.png", 8, 0, [b"\0\1\2", b"\3\2\1"])
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 13_000, 13_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"a\.png declares 676000000 bytes of values, but holds"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a" + b"\0" * 50])
def test_a_damaged_picture_is_named(content, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.png cannot be read"):
        read(tmp_path / "a.png")


def test_arrays_are_read_from_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", LABELS)
    np.savez(tmp_path / "b.npz", x=LABELS, y=LABELS + 1)
    assert read(tmp_path / "a.npy") == LABELS.tolist()
    assert read(tmp_path / "b.npz", key="y") == (LABELS + 1).tolist()


def save_nifti(path, values):
    nibabel.save(nibabel.Nifti1Image(values, np.diag([1.0, 2.0, 3.0, 1])), path)
    return path


def test_nifti_labels_are_as_stored_or_reversed_as_declared_and_never_assumed(tmp_path):
    values = np.arange(24).reshape(2, 3, 4).astype(np.int16)
    path = save_nifti(tmp_path / "a.nii.gz", values)
    plain = read_label_file(path, (2, 3, 4))
    assert np.array_equal(plain.values, values)
    assert plain.spacing == (1.0, 2.0, 3.0)
    turned = read_label_file(path, (4, 3, 2), "zyx")
    assert np.array_equal(turned.values, values.transpose(2, 1, 0))
    assert turned.spacing == (3.0, 2.0, 1.0)
    fits = (
        r"shape \(2, 3, 4\) and its scores have \(4, 3, 2\): reversed, .* Pass label_axes='zyx' if the label map and "
        r"the scores are of one case, with axes reversed\. It holds for labels and images\."
    )
    with pytest.raises(InputError, match=fits) as refused:
        read_label_file(path, (4, 3, 2))
    assert "xyz" not in str(refused.value)  # which does not fit
    path = save_nifti(tmp_path / "b.nii", np.zeros((3, 2, 3), np.uint8))
    with pytest.raises(InputError, match="both axis orders fit, but which one is right must be declared"):
        read_label_file(path, (3, 2, 3))
    assert read_label_file(path, (3, 2, 3), "xyz").values.shape == (3, 2, 3)


def test_whole_numbers_stored_as_floats_are_labels_and_others_are_not(tmp_path):
    found = read_label_file(save_nifti(tmp_path / "a.nii", np.array([[[0.0, 2.0]]], np.float32)), (1, 1, 2)).values
    assert found.dtype == np.int64
    assert found.tolist() == [[[0, 2]]]
    for value in (0.5, np.nan, np.inf, 1e20):
        np.save(tmp_path / "a.npy", np.array([0.0, value]))
        with pytest.raises(InputError, match=r"a\.npy has values that are not whole numbers"):
            read(tmp_path / "a.npy", (2,))


def test_folders_that_lack_a_file_or_have_two_of_one_stem_are_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        LabelFolder(tmp_path / "none")
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="has no label maps, but files ending in"):
        LabelFolder(tmp_path)
    np.save(tmp_path / "a.npy", LABELS)
    with pytest.raises(InputError, match=r"has no label map for it, but one is needed. Add b\.\*"):
        LabelFolder(tmp_path).read("b", (2, 3))
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"has both a\.npy and a\.png, but a case needs one file"):
        LabelFolder(tmp_path)


def test_pictures_become_three_channels_or_one_and_a_slice_where_scores_have_it(tmp_path, rng):
    values = rng.integers(0, 255, (4, 5, 3)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(values[..., 0]).save(tmp_path / "grey.png")
    folder = ImageFolder(tmp_path)
    found = folder.read("a", (4, 5))
    assert found.dtype == np.float32
    assert np.array_equal(found, values.transpose(2, 0, 1))
    assert folder.read("grey", (4, 5)).shape == (1, 4, 5)
    assert folder.read("grey", (1, 4, 5)).shape == (1, 1, 4, 5)


def test_channels_in_files_of_their_own_are_stacked(tmp_path, rng):
    volumes = [rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2)]
    for number, volume in enumerate(volumes):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / f"a_{number:04d}.nii.gz")
    found = ImageFolder(tmp_path, "zyx").read("a", (4, 3, 2))
    assert np.array_equal(found, np.stack([volume.transpose(2, 1, 0) for volume in volumes]))


def test_arrays_have_a_channel_axis_or_not_and_the_space_of_the_scores(tmp_path):
    for name, shape in (("a", (4, 5)), ("b", (2, 4, 5)), ("c", (3, 4, 6))):
        np.save(tmp_path / f"{name}.npy", np.ones(shape))
    folder = ImageFolder(tmp_path)
    assert folder.read("a", (4, 5)).shape == (1, 4, 5)
    assert folder.read("b", (4, 5)).shape == (2, 4, 5)
    with pytest.raises(InputError, match=r"c\.npy has space \(4, 6\), but its scores have \(4, 5\)"):
        folder.read("c", (4, 5))
    with pytest.raises(InputError, match="has no image for it"):
        folder.read("d", (4, 5))
    with pytest.raises(InputError, match="is not a folder"):
        ImageFolder(tmp_path / "none")


def test_images_with_reversed_axes_are_refused_with_what_to_pass(tmp_path):
    save_nifti(tmp_path / "a.nii.gz", np.zeros((2, 3, 4), np.int16))
    with pytest.raises(InputError, match=r"space \(2, 3, 4\), but its scores have \(4, 3, 2\)\. Pass label_axes='zyx'"):
        ImageFolder(tmp_path).read("a", (4, 3, 2))
