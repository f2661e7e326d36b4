import sys

import numpy as np
import pytest
import torch

import segcal
from segcal.errors import InputError

nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")

AFFINE = np.array([[-2, 0, 0, 5], [0, 3, 0, -7], [0, 0, 1.5, 1], [0, 0, 0, 1.0]])
NAMES = ("background", "left ventricle", "?")


@pytest.fixture
def given(tmp_path, randomise):
    """A folder with one NIfTI prediction (x, y, z, classes), and a calibrator."""
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(5, 4, 6, 3)).astype(np.float32)
    (tmp_path / "in").mkdir()
    nibabel.save(nibabel.Nifti1Image(logits, AFFINE), tmp_path / "in" / "a.nii.gz")
    fitted = segcal.fit("ts", np.moveaxis(logits, -1, 0)[None], logits.argmax(-1)[None])
    calibrator = randomise(segcal.make_calibrator("ts", 3))
    fitted = type(fitted)(calibrator, fitted.certificate, fitted.config)
    cases = segcal.open_cases(tmp_path / "in", kind="logits", class_names=NAMES)
    scaled = np.exp(logits.astype(np.float64) / calibrator.temperature)
    return fitted, cases, scaled / scaled.sum(-1, keepdims=True), tmp_path / "out"


def test_nifti_has_one_volume_per_class_in_the_geometry_of_the_prediction(given):
    fitted, cases, probs, out = given
    files = segcal.view(fitted, cases, out)
    assert [path.name for path in files] == ["background.nii.gz", "leftventricle.nii.gz", "class2.nii.gz"]
    for number, path in enumerate(files):
        image = nibabel.load(path)
        assert image.get_data_dtype() == np.float32
        np.testing.assert_allclose(image.affine, AFFINE)
        np.testing.assert_allclose(image.get_fdata(), probs[..., number], atol=1e-6)


def test_bids_has_its_names(given):
    fitted, cases, probs, out = given
    segcal.view(fitted, cases, out, to="bids")
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    assert found == [f"a_label-{name}_probseg.nii.gz" for name in ("background", "class2", "leftventricle")]
    np.testing.assert_allclose(nibabel.load(out / found[1]).get_fdata(), probs[..., 2], atol=1e-6)


def test_contours_count_the_levels_that_are_reached(given):
    fitted, cases, probs, out = given
    files = segcal.view(fitted, cases, out, to="contours", levels=(0.2, 0.6))
    values = nibabel.load(files[1])
    assert values.get_data_dtype() == np.uint8
    assert np.array_equal(values.get_fdata(), (probs[..., 1] >= 0.2).astype(int) + (probs[..., 1] >= 0.6))


def test_outside_of_what_was_predicted_the_background_is_certain(given, monkeypatch):
    fitted, cases, probs, out = given
    read = cases.checked
    mask = np.zeros((5, 4, 6), bool)
    mask[1:] = True

    def with_mask(case_id):
        case = read(case_id)
        object.__setattr__(case, "mask", torch.from_numpy(mask))
        return case

    monkeypatch.setattr(cases, "checked", with_mask)
    files = segcal.view(fitted, cases, out)
    assert np.array_equal(nibabel.load(files[0]).get_fdata()[0], np.ones((4, 6)))
    np.testing.assert_allclose(nibabel.load(files[1]).get_fdata()[1:], probs[1:, ..., 1], atol=1e-6)


def test_what_cannot_be_written_is_one_sentence(given, tmp_path):
    fitted, cases, _, out = given
    with pytest.raises(InputError, match=r"no form is named 'png'. Choose one of: nifti, bids, contours, geojson,"):
        segcal.view(fitted, cases, out, to="png")
    with pytest.raises(InputError, match="series is None, but DICOM SEG, and nothing else, lies on images"):
        segcal.view(fitted, cases, out, to="dicom-seg")
    with pytest.raises(InputError, match="is not empty, but files for a viewer go into a new folder"):
        segcal.view(fitted, cases, tmp_path / "in")
    with pytest.raises(InputError, match=r"levels is \[0.5, 0.2\], but ascending numbers between 0 and 1"):
        segcal.view(fitted, cases, out, to="contours", levels=(0.5, 0.2))


@pytest.mark.parametrize(
    ("to", "module", "extra"), [("nifti", "nibabel", "nifti"), ("dicom-seg", "highdicom", "dicom")]
)
def test_a_missing_library_is_named_once_and_before_any_case(to, module, extra, given, tmp_path, monkeypatch):
    fitted, cases, _, out = given
    monkeypatch.setitem(sys.modules, module, None)
    series = tmp_path if to == "dicom-seg" else None
    with pytest.raises(InputError, match=rf"{module} is not installed, .* pip install 'segcal\[{extra}\]'"):
        segcal.view(fitted, cases, out, to=to, series=series, failed=pytest.fail)
    assert not out.exists()


def test_polygons_of_what_is_no_map_are_refused_before_any_case(given):
    fitted, cases, _, out = given
    with pytest.raises(InputError, match="the cases are nifti files, but polygons lie on a map"):
        segcal.view(fitted, cases, out, to="geojson", failed=pytest.fail)
    assert not out.exists()
