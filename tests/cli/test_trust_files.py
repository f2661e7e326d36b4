"""DICOM reports of ``segcal trust``, from the command line."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

NAMES = "none,liver,tumour"


@pytest.fixture
def learned(run, make_folders, tmp_path):
    old = make_folders(ids=[f"{letter}{number}" for letter in "abcdef" for number in (1, 2)], folder="old")
    assert run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--class-names", NAMES).code == 0
    return tmp_path / "cal", make_folders(ids=("n1", "n2", "m1"), folder="new", seed=9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--segments", "x.json"], "--series is missing, but --seg, --segments and --description are for DICOM."),
        (["--description", ""], "--series is missing, but"),
        (["--series", "dicom", "--all-classes"], "--all-classes is given, but class 0 has no DICOM segment."),
        (["--tau", "lung=0.5"], "tau names the structure 'lung', but there are none, liver, tumour."),
        (["--tau", "liver=x"], "--tau is 'liver=x', but a number or STRUCTURE=NUMBER is needed."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(learned, run, tmp_path, options, text):
    calibrator, new = learned
    done = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", *options)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done
    assert text in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_segmentations_and_reports_from_the_command_line(learned, run, tmp_path):
    for package in ("highdicom", "nibabel"):
        pytest.importorskip(package, reason=f"{package} is not installed: make setup-frameworks")
    import highdicom
    import nibabel

    calibrator, _ = learned
    spec = importlib.util.spec_from_file_location(
        "dicom_series", Path(__file__).parents[1] / "integrations" / "test_dicom.py"
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    (tmp_path / "in").mkdir()
    affine = np.diag([-made.SPACING[2], -made.SPACING[1], made.SPACING[0], 1.0])
    affine[:3, 3] = made.ORIGIN * (-1, -1, 1)
    for case in ("p", "q"):
        values = 3 * np.random.default_rng(ord(case)).normal(size=(*made.SHAPE[::-1], 3)).astype("float32")
        nibabel.save(nibabel.Nifti1Image(values, affine), tmp_path / "in" / f"{case}.nii.gz")
    made.write_series(tmp_path / "dicom" / "p")
    given = [calibrator, tmp_path / "in", "--kind", "logits", "--series", tmp_path / "dicom", "--description", "Study"]
    seg = run("view", *given, "--to", "dicom-seg", "-o", tmp_path / "seg")
    assert seg.code == 3, seg  # q has no images
    done = run("trust", *given, "--seg", tmp_path / "seg", "-o", tmp_path / "out", "--tau", "0.5", "--tau", "liver=0.3")
    assert done.code == 3, done
    assert "q" in done.err
    assert [path.name for path in (tmp_path / "out" / "sr").iterdir()] == ["p.dcm"]
    report = highdicom.sr.srread(tmp_path / "out" / "sr" / "p.dcm")
    assert report.SeriesDescription == "Study trust"
    groups = report.content.get_volumetric_roi_measurement_groups()
    assert [group.tracking_identifier for group in groups] == ["liver", "tumour"]
    rows = json.loads((tmp_path / "out" / "trust.json").read_text("utf-8"))["rows"]
    assert [row["tau"] for row in rows] == [0.3, 0.5, 0.3, 0.5]
    again = run("trust", *given, "-o", tmp_path / "out")
    assert again.code == 2
    assert "sr holds p.dcm, but results would be mixed with it." in again.err
