"""Where voxels lie: corners, tolerance, and what headers may leave open."""

from pathlib import Path

import numpy as np
import pytest

from segcal.cases.geometry import TOLERANCE, Geometry, check_alike, nifti_geometry, nnunet_geometry
from segcal.errors import InputError

nibabel = pytest.importorskip("nibabel")


def turned(degrees=30):
    """Return an oblique affine with voxels of 1.5 x 2 x 8 mm."""
    a = np.deg2rad(degrees)
    affine = np.eye(4)
    affine[:3, :3] = [[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]
    affine[:3, :3] *= [1.5, 2.0, 8.0]
    affine[:3, 3] = -70, 31, 12
    return affine


def placed(affine, name="a", shape=(5, 6, 7), **more):
    return Geometry(Path(name), (affine,), shape, **more)


def test_corners_are_those_of_a_plain_loop():
    affine = turned()
    expected = [affine @ [x, y, z, 1] for x in (0, 4) for y in (0, 5) for z in (0, 6)]
    assert np.allclose(placed(affine).corners(affine), np.array(expected)[:, :3])
    reversed_order = [affine @ [x, y, z, 1] for z in (0, 6) for y in (0, 5) for x in (0, 4)]
    assert np.allclose(placed(affine, reverses=True).corners(affine), np.array(reversed_order)[:, :3])


@pytest.mark.parametrize("axis", [0, 2])
def test_a_shift_of_a_quarter_of_the_smallest_voxel_is_the_limit(axis):
    near, far = turned(), turned()
    near[axis, 3] += 0.99 * TOLERANCE * 1.5
    far[axis, 3] += 1.01 * TOLERANCE * 1.5
    check_alike([placed(turned()), placed(near, "b")])
    with pytest.raises(InputError, match=r"^b has the affine \[.*\], but a has \[.*\]: corners lie up to"):
        check_alike([placed(turned()), placed(far, "b")])


def test_a_small_change_of_direction_or_size_shows_at_the_far_corner():
    check_alike([placed(turned(30)), placed(turned(30.5))])  # 0.1 mm over a few voxels
    with pytest.raises(InputError, match=r"corners lie up to 5.695 mm"):
        check_alike([placed(turned(30), shape=(200, 180, 7)), placed(turned(30.7), shape=(200, 180, 7))])
    larger = turned() @ np.diag([1.01, 1, 1, 1])
    with pytest.raises(InputError, match=r"corners lie up to 2.985 mm apart, and 0.375 mm are allowed"):
        check_alike([placed(turned(), shape=(200, 3, 3)), placed(larger, shape=(200, 3, 3))])


def test_axes_of_length_one_have_no_direction_and_other_shapes_are_left_to_those_who_compare_them():
    flat = turned()
    flat[:3, 2] = 0, 0, 1
    check_alike([placed(turned(), shape=(5, 6, 1)), placed(flat, shape=(5, 6))])
    check_alike([placed(turned(), shape=(1, 1, 1)), placed(turned(), shape=(1,))])
    check_alike([placed(turned()), placed(np.eye(4), shape=(7, 6, 5))])
    check_alike([])


def test_rounding_of_a_header_is_no_difference(tmp_path):
    """An oblique qform loses the most: three float32 of a quaternion."""
    image = nibabel.Nifti1Image(np.zeros((256, 256, 40), np.uint8), turned(179.9))
    image.set_qform(turned(179.9), code=1)
    image.set_sform(None, code=0)
    nibabel.save(image, tmp_path / "q.nii")
    nibabel.save(nibabel.Nifti1Image(np.zeros((256, 256, 40), np.uint8), turned(179.9)), tmp_path / "s.nii")
    check_alike([*nifti_geometry(tmp_path / "q.nii"), *nifti_geometry(tmp_path / "s.nii")])


def test_a_header_without_position_says_nothing(tmp_path):
    image = nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), turned())
    image.set_sform(turned(), code=0)
    image.set_qform(turned(), code=0)
    nibabel.save(image, tmp_path / "a.nii")
    for axes in (None, "zyx", "zyx_ras"):
        assert nifti_geometry(tmp_path / "a.nii", axes) == []


@pytest.mark.parametrize(("unit", "factor"), [("meter", 1e-3), ("micron", 1e3), ("unknown", 1.0)])
def test_lengths_are_brought_to_millimetres(tmp_path, unit, factor):
    scaled = np.diag([factor] * 3 + [1]) @ turned()
    image = nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), scaled)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "a.nii")
    assert np.allclose(nifti_geometry(tmp_path / "a.nii")[0].affines[0], turned(), rtol=1e-5)


def test_reorientation_is_that_of_the_library(tmp_path):
    affine = turned()[:, [2, 0, 1, 3]] @ np.diag([-1, 1, 1, 1])
    image = nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), affine)
    nibabel.save(image, tmp_path / "a.nii")
    expected = nibabel.as_closest_canonical(image)
    (found,) = nifti_geometry(tmp_path / "a.nii", "zyx_ras")
    assert found.shape == expected.shape == (6, 7, 5)
    assert np.allclose(found.affines[0], expected.affine, atol=1e-5)
    assert found.reverses


def simpleitk(affine):
    """Return what SimpleITK says about an affine: (x, y, z) like the file, to the left, back and up."""
    own = np.diag([-1.0, -1, 1, 1]) @ affine
    sizes = np.linalg.norm(own[:3, :3], axis=0)
    return {"spacing": tuple(sizes), "origin": tuple(own[:3, 3]), "direction": tuple((own[:3, :3] / sizes).ravel())}


def test_properties_of_nnunet_are_those_of_its_file(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), turned()), tmp_path / "a.nii")
    (labels,) = nifti_geometry(tmp_path / "a.nii", "zyx")
    for properties in ({"sitk_stuff": simpleitk(turned())}, {"nibabel_stuff": {"original_affine": turned()}}):
        (found,) = nnunet_geometry(Path("a.pkl"), properties, (7, 6, 5))
        assert np.allclose(found.affines[0], turned())
        check_alike([found, labels])
    moved = turned()
    moved[2, 3] += 8
    (wrong,) = nnunet_geometry(Path("a.pkl"), {"sitk_stuff": simpleitk(moved)}, (7, 6, 5))
    with pytest.raises(InputError, match=r"corners lie up to 8 mm apart, and 0.375 mm are allowed"):
        check_alike([wrong, labels])


def test_simpleitk_may_have_read_either_form(tmp_path):
    image = nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), np.diag([1.5, 2, 8, 1]))
    image.set_qform(turned(), code=1)
    nibabel.save(image, tmp_path / "a.nii")
    (both,) = nifti_geometry(tmp_path / "a.nii", "zyx")
    (itk,) = nnunet_geometry(Path("a.pkl"), {"sitk_stuff": simpleitk(turned())}, (7, 6, 5))
    check_alike([itk, both])
    (own,) = nnunet_geometry(Path("a.pkl"), {"nibabel_stuff": {"original_affine": turned()}}, (7, 6, 5))
    with pytest.raises(InputError, match="has the affine"):  # nibabel reads the sform
        check_alike([own, both])


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"sitk_stuff": 3},
        {"sitk_stuff": {"spacing": (1, 1, 1)}},
        {"sitk_stuff": {"spacing": (1, 1, 1), "origin": (0, 0, "x"), "direction": (1.0,) * 9}},
        {"sitk_stuff": {"spacing": (1, 1, 1), "origin": (0, 0, 0), "direction": (1.0,) * 9}},
        {"nibabel_stuff": {"original_affine": np.full((4, 4), np.nan)}},
        {"nibabel_stuff": {"original_affine": [[1, 2], [3]]}},
    ],
)
def test_properties_without_a_usable_geometry_say_nothing(properties):
    assert nnunet_geometry(Path("a.pkl"), properties, (7, 6, 5)) == []
