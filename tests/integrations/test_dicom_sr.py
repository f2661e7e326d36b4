"""With highdicom and pydicom: reports on a made-up series, read back by highdicom, pydicom and validators of others."""

import importlib.util
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.integrations.dicom_sr import write_reports

highdicom = pytest.importorskip("highdicom", reason="highdicom is not installed: make setup-frameworks")
pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: make setup-frameworks")
nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

spec = importlib.util.spec_from_file_location("dicom_series", Path(__file__).with_name("test_dicom.py"))
dicom_series = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dicom_series)
SHAPE, SPACING, ORIGIN = dicom_series.SHAPE, dicom_series.SPACING, dicom_series.ORIGIN
LPS = np.array(
    [[SPACING[2], 0, 0, ORIGIN[0]], [0, SPACING[1], 0, ORIGIN[1]], [0, 0, SPACING[0], ORIGIN[2]], [0, 0, 0, 1]]
)
NAMES = ["none", "left kidney", "Läsion"]


def code(value, meaning, scheme="SCT"):
    return {"CodeValue": value, "CodingSchemeDesignator": scheme, "CodeMeaning": meaning}


def segments():
    kidney = {
        "labelID": 1, "SegmentLabel": "Left kidney", "SegmentAlgorithmType": "AUTOMATIC",
        "SegmentedPropertyCategoryCodeSequence": code("123037004", "Anatomical Structure"),
        "SegmentedPropertyTypeCodeSequence": code("64033007", "Kidney"),
        "SegmentedPropertyTypeModifierCodeSequence": code("7771000", "Left"),
    }  # fmt: skip
    lesion = {
        "labelID": 2,
        "SegmentedPropertyCategoryCodeSequence": code("49755003", "Morphologically Abnormal Structure"),
        "SegmentedPropertyTypeCodeSequence": code("4147007", "Mass"),
        "AnatomicRegionSequence": code("64033007", "Kidney"),
        "AnatomicRegionModifierSequence": code("24028007", "Right"),
    }
    return {"@schema": "x", "SeriesDescription": "Kidneys", "segmentAttributes": [[kidney], [lesion]]}


def blob(rng, number):
    """Logits (classes, image, row, column) and labels; the second structure is often absent."""
    logits = 2.5 * rng.normal(size=(3, *SHAPE)).astype(np.float32)
    logits[2] -= 30 * (number % 3 == 0)
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(0).astype(np.uint8)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A calibrator with its reference, and two new cases as NIfTI files on DICOM series."""
    folder, rng = tmp_path_factory.mktemp("clinic"), np.random.default_rng(3)
    logits, labels = zip(*(blob(rng, number) for number in range(30)), strict=True)
    known = segcal.ArrayCases(list(logits), list(labels), class_names=NAMES, kind="logits", spacing=[SPACING] * 30)
    fitted = segcal.learn_trust(segcal.fit("ts", known.subset(known.ids[:4])), known)
    (folder / "in").mkdir()
    for number, case in enumerate(("a", "b")):
        dicom_series.write_series(folder / "dicom" / case)
        for path in (folder / "dicom" / case).iterdir():  # a name in another character set than that of what is written
            image = pydicom.dcmread(path)
            image.SpecificCharacterSet, image.PatientName = "ISO_IR 100", "Müller^B"
            image.save_as(path)
        stored = np.ascontiguousarray(blob(rng, 1)[0].transpose(3, 2, 1, 0)) * (0.2 if number else 1)
        image = nibabel.Nifti1Image(stored, np.diag([-1, -1, 1, 1]) @ LPS)
        image.header.set_xyzt_units("mm")
        nibabel.save(image, folder / "in" / f"{case}.nii.gz")
    (folder / "segments.json").write_text(json.dumps(segments()), "utf-8")
    cases = segcal.open_cases(folder / "in", kind="logits", class_names=NAMES)
    given = {"series": folder / "dicom", "segments": folder / "segments.json"}
    segcal.view(fitted, cases, folder / "seg", to="dicom-seg", **given)
    result = segcal.trust(fitted, cases, tau={"left kidney": 0.6, "Läsion": 0.45})
    write_reports(result, folder / "sr", seg=folder / "seg", **given)
    return folder, fitted, cases, result


def numbers(group):
    found = {}
    for item in group.get_measurements():
        found[item.name.value] = (item.value, item.unit.value)
    return found


def verdict(group):
    (found,) = [each for each in group.get_qualitative_evaluations() if each.name.value == "verdict"]
    return found.value.value


def test_every_number_of_every_row_is_read_back(work):
    folder, _, _, result = work
    assert {row["unit"] for row in result.rows} == {"ml"}
    for case in ("a", "b"):
        report = highdicom.sr.srread(folder / "sr" / f"{case}.dcm")
        assert report.SeriesDescription == "Kidneys trust"
        assert (report.CompletionFlag, report.VerificationFlag) == ("COMPLETE", "UNVERIFIED")
        groups = report.content.get_volumetric_roi_measurement_groups()
        rows = [row for row in result.rows if row["case"] == case]
        assert [group.tracking_identifier for group in groups] == [row["structure"] for row in rows] == NAMES[1:]
        for group, row in zip(groups, rows, strict=True):
            found = numbers(group)
            assert found.pop("118565006") == (pytest.approx(row["volume"]), "ml")
            for name in (
                "expected_dice",
                "dice_low",
                "dice_high",
                "dice_below_tau",
                "tau",
                "volume_low",
                "volume_high",
            ):
                value, unit = found.pop(name)
                assert (value, unit) == (pytest.approx(row[name]), "ml" if name.startswith("volume") else "1")
            assert found == {}
            assert verdict(group) == ("review" if row["review"] else "pass")
            texts = [item.TextValue for item in group[0].ContentSequence if item.ValueType == "TEXT" and
                     item.ConceptNameCodeSequence[0].CodeValue == "121106"]  # fmt: skip
            assert texts == ([row["reason"]] if row["reason"] else [])


def test_the_verdict_of_the_case_refers_to_its_images(work):
    folder, _, _, result = work
    verdicts = {case["case"]: case for case in result.cases()}
    assert [case["review"] for case in result.cases()] == [True, False]
    for name in ("a", "b"):
        report = highdicom.sr.srread(folder / "sr" / f"{name}.dcm")
        (group,) = report.content.get_image_measurement_groups()
        assert group.tracking_identifier == name
        assert verdict(group) == ("review" if verdicts[name]["review"] else "pass")
        assert numbers(group) == {"level": (0.9, "1")}
        images = {pydicom.dcmread(path).SOPInstanceUID for path in (folder / "dicom" / name).iterdir()}
        assert {item.referenced_sop_instance_uid for item in group.source_images} == images


def test_groups_refer_to_segments_and_have_their_codes(work):
    folder, *_ = work
    report, seg = (pydicom.dcmread(folder / name) for name in ("sr/b.dcm", "seg/b_mask.dcm"))
    groups = highdicom.sr.srread(folder / "sr" / "b.dcm").content.get_volumetric_roi_measurement_groups()
    for number, group in enumerate(groups, start=1):
        place = group.referenced_segment
        assert (place.referenced_sop_instance_uid, place.referenced_segment_numbers) == (seg.SOPInstanceUID, [number])
    kidney, lesion = groups
    assert (kidney.finding_category.value, kidney.finding_type.value) == ("123037004", "64033007")
    assert kidney.finding_sites[0].value.value == "64033007"
    assert kidney.finding_sites[0].laterality.value == "7771000"
    assert (lesion.finding_category.value, lesion.finding_type.value) == ("49755003", "4147007")
    assert lesion.finding_sites[0].laterality.value == "24028007"
    evidence = [
        instance.ReferencedSOPInstanceUID
        for study in report.CurrentRequestedProcedureEvidenceSequence
        for series in study.ReferencedSeriesSequence
        for instance in series.ReferencedSOPSequence
    ]
    assert seg.SOPInstanceUID in evidence
    assert len(evidence) == SHAPE[0] + 1
    source = pydicom.dcmread(next((folder / "dicom" / "b").iterdir()))
    assert (report.PatientID, report.StudyInstanceUID) == (source.PatientID, source.StudyInstanceUID)
    assert report.PatientName == seg.PatientName == source.PatientName == "Müller^B"


def test_segmentations_have_all_codes_and_the_description(work):
    folder, *_ = work
    for kind in ("mask", "probability"):
        found = pydicom.dcmread(folder / "seg" / f"a_{kind}.dcm")
        assert found.SeriesDescription == f"Kidneys {kind}"
        kidney, lesion = found.SegmentSequence
        assert (kidney.SegmentLabel, lesion.SegmentLabel) == ("Left kidney", "Läsion")
        (own,) = kidney.SegmentedPropertyTypeCodeSequence
        assert (own.CodeValue, own.SegmentedPropertyTypeModifierCodeSequence[0].CodeMeaning) == ("64033007", "Left")
        (region,) = lesion.AnatomicRegionSequence
        assert (region.CodeMeaning, region.AnatomicRegionModifierSequence[0].CodeValue) == ("Kidney", "24028007")
        assert lesion.SegmentedPropertyCategoryCodeSequence[0].CodeValue == "49755003"


def test_without_a_segmentation_groups_have_none(work, tmp_path):
    folder, _, _, result = work
    plain = replace(result, rows=[{**row, "unit": "voxels", "dice_low": None} for row in result.rows])
    for _ in range(2):
        made = write_reports(plain, tmp_path, folder / "dicom", description="Second look", overwrite=True)
    assert made == [tmp_path / "a.dcm", tmp_path / "b.dcm"]
    with pytest.raises(segcal.InputError, match=r"holds a.dcm, but results would be mixed with it"):
        write_reports(plain, tmp_path, folder / "dicom")
    report = highdicom.sr.srread(tmp_path / "a.dcm")
    assert report.SeriesDescription == "Second look trust"
    case, *groups = report.content.get_image_measurement_groups()
    assert [group.tracking_identifier for group in (case, *groups)] == ["a", *NAMES[1:]]
    assert "dice_low" not in numbers(groups[0])
    assert numbers(groups[0])["118565006"][1] == "{voxels}"


@pytest.mark.parametrize(("folder", "text"), [
    ("sr", r"a_mask.dcm is missing, but the report refers to it. Write it with segcal view."),
    ("other", r"a_mask.dcm has 2 segments on series [\d.]+, but 2 on [\d.]+ are needed. Write it again"),
])  # fmt: skip
def test_a_segmentation_of_something_else_is_refused(work, tmp_path, folder, text):
    place, _, _, result = work
    (place / "other").mkdir(exist_ok=True)
    shutil.copy(place / "seg" / "b_mask.dcm", place / "other" / "a_mask.dcm")
    with pytest.raises(segcal.CaseError, match=text):
        write_reports(result, tmp_path / "out", place / "dicom", seg=place / folder)
    found = []
    made = write_reports(result, tmp_path / "out", place / "dicom", seg=place / folder, failed=found.append)
    assert (made, [error.case_id for error in found]) == ([], ["a", "b"])


def test_a_segmentation_of_other_masks_is_refused(work, tmp_path):
    place, fitted, _, result = work
    stored = nibabel.load(place / "in" / "a.nii.gz")
    values = stored.get_fdata().astype(np.float32)
    values[0, 0, 0] = [0, 50, 0] if values[0, 0, 0].argmax() != 1 else [50, 0, 0]
    (tmp_path / "in").mkdir()
    nibabel.save(nibabel.Nifti1Image(values, stored.affine), tmp_path / "in" / "a.nii.gz")
    cases = segcal.open_cases(tmp_path / "in", kind="logits", class_names=NAMES)
    segcal.view(fitted, cases, tmp_path / "seg", to="dicom-seg", series=place / "dicom")
    with pytest.raises(
        segcal.CaseError, match=r"voxels of \w+.*, but the mask that was judged has \d+. Write it again"
    ):
        write_reports(result, tmp_path / "out", place / "dicom", seg=tmp_path / "seg")


@pytest.mark.parametrize("name", ["sr/a.dcm", "sr/b.dcm", "seg/a_mask.dcm", "seg/a_probability.dcm"])
def test_a_validator_of_somebody_else_finds_no_error(work, name):
    program = shutil.which("dciodvfy")
    if program is None:
        pytest.skip("dciodvfy is not installed: apt-get install dicom3tools")
    told = subprocess.run([program, str(work[0] / name)], capture_output=True, text=True, errors="replace").stderr
    assert [line for line in told.splitlines() if line.startswith("Error")] == []


def test_dcmtk_reads_the_report(work):
    program = shutil.which("dsrdump")
    if program is None:
        pytest.skip("dsrdump is not installed: apt-get install dcmtk")
    told = subprocess.run(
        [program, "+Pc", str(work[0] / "sr" / "b.dcm")], capture_output=True, text=True, errors="replace"
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("Verdict on the mask") == 3
