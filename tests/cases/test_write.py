import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.cases.decision import decision_of
from segcal.cases.formats.npy import Npy
from segcal.cases.write import write_confidence
from segcal.errors import InputError


def save(folder, array, **options):
    folder.mkdir()
    np.save(folder / "a.npy", array)
    return open_cases(folder, **{"kind": "logits", **options})


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5)])
def test_a_sigmoid_output_keeps_its_shape_and_its_side_of_one_half(shape, tmp_path, rng, calibrate):
    foreground = rng.random(shape).astype(np.float16)
    foreground.reshape(-1)[:3] = [0.5, np.nextafter(np.float16(0.5), np.float16(1)), 1]
    calibrate(save(tmp_path / "p", foreground, kind="sigmoid"), tmp_path / "out", temperature=1e4)
    written = np.load(tmp_path / "out" / "a.npy")
    assert written.shape == shape
    assert written.dtype == np.float16
    assert np.array_equal(written > 0.5, foreground > 0.5)


def test_logits_can_be_written_as_probabilities(npy_folder, tmp_path, calibrate):
    calibrate(open_cases(npy_folder[0], kind="logits"), tmp_path / "out", "a1", kind="probs")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "a1.npy").sum(0), 1, atol=1e-6)


def test_axis_order_byte_order_and_memory_order_are_those_of_the_input(tmp_path, rng, calibrate):
    array = np.asfortranarray(rng.normal(size=(4, 5, 3)).astype(">f4"))
    calibrate(save(tmp_path / "p", array, class_axis=2), tmp_path / "out")
    written = np.load(tmp_path / "out" / "a.npy")
    assert written.dtype == array.dtype
    assert written.flags.f_contiguous
    assert np.array_equal(written.argmax(2), array.argmax(2))


def test_the_shape_must_stay(npy_folder, tmp_path):
    cases = open_cases(npy_folder[0], kind="logits")
    match = r"case 'a1': calibrated scores .* have shape \(3, 4\), but the input has \(3, 4, 5\)"
    with pytest.raises(CaseError, match=match):
        CaseWriter(cases, tmp_path / "out").write("a1", torch.zeros(3, 4))
    with pytest.raises(InputError, match="kind is 'sigmoid', but 'logits' came in and has another shape"):
        CaseWriter(cases, tmp_path / "out", kind="sigmoid")


def test_a_file_that_reads_back_differently_is_not_put_in_place(npy_folder, tmp_path, monkeypatch, calibrate):
    cases = open_cases(npy_folder[0], kind="logits")
    monkeypatch.setattr(np, "save", lambda file, array: file.write((npy_folder[0] / "b1.npy").read_bytes()))
    with pytest.raises(CaseError, match="read back has another winning class in some voxels"):
        calibrate(cases, tmp_path / "out", "a1", verify=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_with_another_header_is_not_put_in_place(npy_folder, tmp_path, monkeypatch, calibrate):
    cases, save = open_cases(npy_folder[0], kind="logits"), np.lib.format.write_array
    monkeypatch.setattr(np, "save", lambda file, array: save(file, array[:, :-1]))
    with pytest.raises(CaseError, match=r"a1.npy read back has shape \(3, 3, 5\), but \(3, 4, 5\) was written"):
        calibrate(cases, tmp_path / "out", "a1")
    assert list((tmp_path / "out").iterdir()) == []


def test_values_are_not_read_back_unless_asked_for(npy_folder, tmp_path, monkeypatch, calibrate):
    opened = []
    read = Npy.read
    monkeypatch.setattr(Npy, "read", lambda self, case_id: opened.append(self.folder) or read(self, case_id))
    cases = open_cases(npy_folder[0], kind="logits")
    calibrate(cases, tmp_path / "out", "a1")
    assert {folder for folder in opened if tmp_path / "out" in folder.parents} == set()
    calibrate(cases, tmp_path / "again", "a1", verify=True)
    assert len([folder for folder in opened if tmp_path / "again" in folder.parents]) == 1


def test_what_an_interrupted_run_left_does_not_disturb(npy_folder, tmp_path, calibrate):
    cases = open_cases(npy_folder[0], kind="logits")
    left = tmp_path / "out" / ".segcal-0123456789abcdef"
    left.mkdir(parents=True)
    (left / "a1.npy").write_bytes(b"half")
    assert not CaseWriter(cases, tmp_path / "out").done("a1")
    calibrate(cases, tmp_path / "out", "a1")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".segcal", left.name, "a1.npy"]


# An affine that mirrors, turns and stretches: an axis that is lost or turned round shows.
TURNED = np.array([[0, -1.5, 0, 20], [0, 0, -2.0, -5], [3.0, 0, 0, 7], [0, 0, 0, 1]])


@pytest.fixture
def confidence(rng):
    return rng.random((4, 5, 6)).astype(np.float32)


def test_pictures_become_grey_png_in_a_folder_of_their_own(npy_folder, rng, tmp_path):
    values = rng.random((4, 5))
    path = write_confidence(open_cases(npy_folder[0], kind="logits"), "a1", values, tmp_path / "out")
    assert path == tmp_path / "out" / "confidence" / "a1.png"
    with Image.open(path) as picture:
        assert picture.mode == "L"
        np.testing.assert_allclose(np.array(picture) / 255, values, atol=0.5 / 255 + 1e-9)
    assert [file.name for file in path.parent.iterdir()] == ["a1.png"]


def test_volumes_of_arrays_become_nifti_with_the_voxel_size_that_is_known(confidence, tmp_path):
    cases = save(tmp_path / "in", np.zeros((2, 4, 5, 6), np.float32))
    for spacing, zooms in (((3.0, 2.0, 0.5), (0.5, 2.0, 3.0)), (None, (1.0, 1.0, 1.0))):
        image = nibabel.load(write_confidence(cases, "a", confidence, tmp_path / "out", spacing))
        assert image.header.get_zooms() == zooms
        assert image.get_data_dtype() == np.float32
        assert np.array_equal(image.get_fdata(dtype=np.float32), confidence.transpose(2, 1, 0))


@pytest.mark.parametrize("axis", [-1, 0])
def test_maps_of_nifti_scores_lie_on_them(axis, confidence, tmp_path):
    (tmp_path / "in").mkdir()
    image = nibabel.Nifti1Image(np.moveaxis(np.zeros((3, 4, 5, 6), np.float32), 0, axis), TURNED)
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
        turns = nibabel.orientations
        values = turns.apply_orientation(
            values, turns.ornt_transform(turns.axcodes2ornt("RAS"), nibabel.io_orientation(TURNED))
        )
    nibabel.save(nibabel.Nifti1Image((10 * values).astype(np.uint8), TURNED), folder / "c1.nii.gz")
    written = nibabel.load(write_confidence(open_cases(folder), "c1", confidence, tmp_path / "out"))
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


@given(st.lists(st.floats(-1e5, 0, width=32), min_size=1, max_size=50))
def test_half_numbers_are_rounded_as_numpy_rounds_and_stay_finite(values):
    scores, half = np.array(values, np.float32), np.dtype(np.float16)
    found = decision_of(None).encode(torch.from_numpy(scores), "logits", half)
    assert found.tobytes() == np.maximum(scores, np.finfo(half).min).astype(half).tobytes()
    found = decision_of(None).encode(torch.from_numpy(scores), "probs", half)
    assert found.tobytes() == torch.from_numpy(scores).exp().numpy().astype(half).tobytes()
