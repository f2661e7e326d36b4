"""With highdicom and pydicom: objects on a made-up series, read back by highdicom."""

import numpy as np
import pytest
import torch

import segcal
from segcal.integrations.viewers import ObjectMaps

highdicom = pytest.importorskip("highdicom", reason="highdicom is not installed: make setup-frameworks")
pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: make setup-frameworks")
nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

# Columns run to the left of the patient, rows to the back, images to the head.
SHAPE = (6, 4, 5)  # images, rows, columns
SPACING = (2.5, 3.0, 2.0)
ORIGIN = np.array([-5.0, 7.0, 1.0])


def write_series(folder):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True)
    study, series, frame = (generate_uid() for _ in range(3))
    for number in np.random.default_rng(0).permutation(SHAPE[0]):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        image.PatientID, image.PatientName, image.PatientBirthDate, image.PatientSex = "1", "A^B", "", ""
        image.StudyInstanceUID, image.SeriesInstanceUID, image.FrameOfReferenceUID = study, series, frame
        image.StudyDate = image.StudyTime = image.StudyID = image.AccessionNumber = image.ReferringPhysicianName = ""
        image.Modality, image.SeriesNumber, image.InstanceNumber = "CT", 1, int(number) + 1
        image.PositionReferenceIndicator = ""
        image.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        image.ImagePositionPatient = [float(ORIGIN[0]), float(ORIGIN[1]), float(ORIGIN[2] + number * SPACING[0])]
        image.PixelSpacing, image.SliceThickness = [SPACING[1], SPACING[2]], SPACING[0]
        image.Rows, image.Columns = SHAPE[1:]
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.BitsAllocated = image.BitsStored = 16
        image.HighBit, image.PixelRepresentation = 15, 0
        image.PixelData = np.zeros(SHAPE[1:], np.uint16).tobytes()
        image.save_as(folder / f"{highdicom.UID()}.dcm", enforce_file_format=True)


@pytest.fixture
def given(tmp_path, randomise):
    """A series, and a prediction on its grid as a NIfTI file whose first and last axes run the other way."""
    write_series(tmp_path / "dicom" / "a")
    logits = 4 * np.random.default_rng(1).normal(size=(3, *SHAPE)).astype(np.float32)  # on the series
    stored = logits.transpose(3, 2, 1, 0)[::-1, :, ::-1]  # (x, y, z, classes), x to the right, z to the feet
    last = ORIGIN + np.array([(SHAPE[2] - 1) * SPACING[2], 0, (SHAPE[0] - 1) * SPACING[0]])
    lps = np.array(
        [[-SPACING[2], 0, 0, last[0]], [0, SPACING[1], 0, last[1]], [0, 0, -SPACING[0], last[2]], [0, 0, 0, 1]]
    )
    (tmp_path / "in").mkdir()
    nibabel.save(
        nibabel.Nifti1Image(np.ascontiguousarray(stored), np.diag([-1, -1, 1, 1]) @ lps), tmp_path / "in" / "a.nii.gz"
    )
    fitted = segcal.fit("ts", logits[None], logits.argmax(0)[None])
    fitted = type(fitted)(randomise(segcal.make_calibrator("cms_op", 3)), fitted.certificate, fitted.config)
    return fitted, logits, tmp_path


def test_both_objects_lie_on_the_images(given):
    fitted, logits, folder = given
    cases = segcal.open_cases(folder / "in", kind="logits", class_names=("none", "liver", "tumour"))
    files = segcal.view(fitted, cases, folder / "out", to="dicom-seg", series=folder / "dicom")
    assert [path.name for path in files] == ["a_probability.dcm", "a_mask.dcm"]
    soft, hard = (highdicom.seg.segread(path) for path in files)
    assert (soft.SegmentationType, soft.SegmentationFractionalType) == ("FRACTIONAL", "PROBABILITY")
    assert hard.SegmentationType == "BINARY"
    assert [soft.get_segment_description(n).segment_label for n in (1, 2)] == ["liver", "tumour"]
    images = sorted((pydicom.dcmread(path) for path in (folder / "dicom" / "a").iterdir()),
                    key=lambda image: image.InstanceNumber)  # fmt: skip
    uids = [image.SOPInstanceUID for image in images]
    found = soft.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    probs = fitted.calibrator(torch.from_numpy(logits)[None])[0].detach().exp().numpy()
    np.testing.assert_allclose(np.moveaxis(found, -1, 0), probs[1:], atol=0.5 / 255 + 1e-6)
    mask = hard.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    assert np.array_equal(np.moveaxis(mask, -1, 0), [logits.argmax(0) == 1, logits.argmax(0) == 2])  # not one flip


def test_another_grid_is_refused(given):
    fitted, _, folder = given
    image = nibabel.load(folder / "in" / "a.nii.gz")
    for change, text in [
        (np.diag([1.2, 1, 1, 1]), "is another grid than the DICOM images, but both must be one. Resample it."),
        (
            np.array([[1, 0, 0, 3], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
            "or begins elsewhere, but both must be one",
        ),
    ]:
        nibabel.save(
            nibabel.Nifti1Image(image.get_fdata().astype(np.float32), image.affine @ change), folder / "in" / "a.nii.gz"
        )
        cases = segcal.open_cases(folder / "in", kind="logits")
        with pytest.raises(segcal.CaseError, match=text):
            segcal.view(fitted, cases, folder / "out", to="dicom-seg", series=folder / "dicom")


def test_no_series_is_a_failed_case(given):
    fitted, _, folder = given
    cases = segcal.open_cases(folder / "in", kind="logits")
    found = []
    segcal.view(fitted, cases, folder / "out", to="dicom-seg", series=folder / "in", failed=found.append)
    assert "has no DICOM images, but a segmentation lies on some. Check the folder." in str(found[0])


def test_each_object_is_a_segment(given):
    fitted, logits, folder = given
    rng = np.random.default_rng(3)
    others = 4 * rng.normal(size=(12, 3, *SHAPE)).astype(np.float32)
    labels = (others + 3 * rng.gumbel(size=others.shape)).argmax(1)
    learned = segcal.learn_objects(fitted, others, labels, kind="logits", smallest=3)
    cases = segcal.open_cases(folder / "in", kind="logits")
    rows = sorted(segcal.objects(learned, cases).rows, key=lambda row: -row.p_real)
    (folder / "maps").mkdir()
    files = ObjectMaps(learned, cases, rows, folder / "maps", folder / "dicom")("a")
    assert [path.name for path in files] == ["a_probability.dcm", "a_mask.dcm"]
    soft, hard = (highdicom.seg.segread(path) for path in files)
    labels = [soft.get_segment_description(n + 1).segment_label for n in range(len(rows))]
    assert labels == [f"{row.structure} {row.object} (p = {row.p_real:.2f})" for row in rows]
    images = sorted((pydicom.dcmread(path) for path in (folder / "dicom" / "a").iterdir()),
                    key=lambda image: image.InstanceNumber)  # fmt: skip
    uids = [image.SOPInstanceUID for image in images]
    chance = soft.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    masks = hard.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    winner = logits.argmax(0)
    for number, row in enumerate(rows):
        own = masks[..., number] > 0
        assert own.sum() == row.voxels
        assert set(winner[own]) == {int(row.structure.removeprefix("class "))}
        np.testing.assert_allclose(chance[..., number][own], row.p_real, atol=0.5 / 255 + 1e-6)
        assert not chance[..., number][~own].any()
