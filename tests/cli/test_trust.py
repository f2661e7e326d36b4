"""``segcal trust`` and ``segcal objects`` as a user calls them."""

import csv
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

NAMES = ["--class-names", "none,liver,tumour"]


def test_it_writes_rows_and_prints_a_table(learned, run, tmp_path):
    given, _, fit = learned()
    assert "segcal trust will compare with 12 cases: the cases of the fit, each judged by a fit without it" in fit.out
    done = run("trust", *given, "-o", tmp_path / "out", "--tau", "0.3", "--masks")
    assert done.code == 0, done
    said = "of 6 structures to review. On average over cases like the reference, about 90 % of the intervals"
    assert said in done.out
    with (tmp_path / "out" / "trust.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["case"], row["structure"]) for row in rows[:2]] == [("m1", "class 1"), ("m1", "class 2")]
    assert json.loads((tmp_path / "out" / "trust.json").read_text("utf-8"))["level"] == 0.9
    assert np.load(tmp_path / "out" / "masks" / "n1.npy").shape == (2, 4, 5, 6)
    assert run("trust", *given, "-o", tmp_path / "out").code == 0


def test_json_has_biomarkers_of_linked_cases(learned, run, tmp_path):
    link = ["--link", r"^(\w)(\d)", "--biomarker", "gain=({class 1@1} - {class 1@2}) / {class 1@1}", "--level", "0.8"]
    done = run("trust", *learned()[0], "-o", tmp_path / "out", "--json", "--all-classes", *link)
    assert done.code == 0, done
    found = done.document
    assert [row["subject"] for row in found["biomarkers"]] == ["m", "n"]
    assert found["biomarkers"][0]["reason"] == "phase 2 is missing"
    assert (len(found["rows"]), found["draws"]) == (9, 12)


MISTAKES = {
    "--level 0.95": "error: level is 0.95, but the reference has 12 groups",
    "--biomarker x": "error: --biomarker is 'x', but NAME=EXPRESSION is needed",
    "--biomarker x={lung}": "names the structure 'lung', but there are none, liver, tumour",
    "--segments x.json": "--series is missing, but --seg, --segments and --description are for DICOM.",
    "--description text": "--series is missing, but",
    "--series dicom --all-classes": "--all-classes is given, but class 0 has no DICOM segment.",
    "--tau lung=0.5": "tau names the structure 'lung', but there are none, liver, tumour.",
    "--tau liver=x": "--tau is 'liver=x', but a number or STRUCTURE=NUMBER is needed.",
}


def test_mistakes_are_one_sentence(learned, run, tmp_path):
    given, *_ = learned(*NAMES)
    for options, text in MISTAKES.items():
        done = run("trust", *given, "-o", tmp_path / "out", *options.split())
        assert (done.code, len(done.err.splitlines())) == (2, 1), done
        assert text in done.err
        assert not (tmp_path / "out").exists()


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_segmentations_and_reports_for_a_pacs(learned, run, tmp_path):
    for package in ("highdicom", "nibabel"):
        pytest.importorskip(package, reason=f"{package} is not installed: make setup-frameworks")
    import highdicom
    import nibabel

    (calibrator, *_), *_ = learned(*NAMES)
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


@pytest.mark.parametrize("name", ["npy", "nnunet"])
def test_objects_are_rows_a_worklist_and_maps_in_the_geometry_of_the_input(name, learned, run, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    given, new, fit = learned("--objects", name=name, new=("n1", "n2"))
    assert "segcal objects will compare with 12 cases: the cases of the fit, each judged by a fit without" in fit.out
    out = tmp_path / "out"
    done = run("objects", *given, "-o", out, "--labels", new.labels, "--maps", "nifti")
    assert done.code == 0, done
    assert "Of the objects of a structure that are listed in a case, at most 10 % are false" in done.out
    with (out / "objects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["case"] for row in rows} == {"n1", "n2"}
    assert {row["real"] for row in rows} <= {"True", "False"}
    document = json.loads((out / "objects.json").read_text("utf-8"))
    assert [row["case"] for row in document["cases"]] == ["n1", "n1", "n2", "n2"]
    assert "<title>segcal objects of 2 cases</title>" in (out / "worklist.html").read_text("utf-8")
    names = sorted({path.name.split("_")[1] for path in (out / "maps").iterdir()})
    for title, row in zip(names, document["cases"][:2], strict=True):
        numbers, real = (nibabel.load(out / "maps" / f"n1_{title}_{kind}.nii.gz") for kind in ("objects", "real"))
        values = np.asarray(numbers.dataobj)
        assert values.max() == row["objects"] == ndimage.label(values > 0, np.ones([3] * values.ndim))[1]
        for one in (each for each in document["rows"] if (each["case"], each["structure"]) == ("n1", row["structure"])):
            spots = np.argwhere(values == one["object"])
            assert len(spots) == one["voxels"]
            own = np.asarray(real.dataobj)[values == one["object"]]
            assert own == pytest.approx(np.full(len(own), one["p_real"]), rel=1e-6)
            assert (one["world"] is None) == (name == "npy")
            if one["world"] is not None:
                assert one["world"] == pytest.approx(numbers.affine[:3, :3] @ spots.mean(0) + numbers.affine[:3, 3])


@pytest.mark.parametrize("call", ["objects --maps nifti", "trust --masks"])
def test_a_folder_that_is_not_empty_is_refused_before_any_case_is_read(call, learned, run, tmp_path):
    given, *_ = learned("--objects")
    command, option, *value = call.split()
    maps = tmp_path / "out" / ((value and "maps") or "masks")
    maps.mkdir(parents=True)
    (maps / "mine").write_text("mine")
    done = run(command, *given, "-o", tmp_path / "out", option, *value)
    assert (done.code, [path.name for path in (tmp_path / "out").iterdir()]) == (2, [maps.name])
    assert f"{maps} holds mine, but results would be mixed with it." in done.err


@pytest.mark.parametrize(("module", "options"), [("nibabel", "nifti"), ("highdicom", "dicom-seg --series .")])
def test_a_missing_library_is_named_before_objects_are_looked_for(module, options, learned, run, tmp_path, monkeypatch):
    given, *_ = learned("--objects")
    monkeypatch.setitem(sys.modules, module, None)
    done = run("objects", *given, "-o", tmp_path / "out", "--maps", *options.split())
    assert (done.code, done.err.count("error:"), done.err.count("is not installed")) == (2, 1, 1)
    assert not list(tmp_path.glob("out/*"))


def test_objects_follow_the_rule_of_the_fit_and_parts_are_put_together(learned, run, tmp_path):
    rule = ["--objects", "class 2", "--object-rule", "overlap=0.5", "--smallest-object", "2"]
    given, *_ = learned(*rule, new=("n1", "n2", "n3"))
    done = run("objects", *given, "-o", tmp_path / "out", "--json", "--proved")
    assert done.code == 0, done
    assert (done.document["measure"], done.document["at"]) == ("overlap", 0.5)
    assert {row["structure"] for row in done.document["rows"]} == {"class 2"}
    assert min(row["voxels"] for row in done.document["rows"]) >= 2
    assert run("objects", *given, "-o", tmp_path / "out").code == 0

    call = ["objects", *given, "--fdr", "0.5", "--maps", "nifti"]
    assert run(*call, "-o", tmp_path / "whole").code == 0
    for number in (1, 0):
        assert run(*call, "-o", tmp_path / f"part{number}", "--num-parts", "2", "--part-id", number).code == 0
    merged = run("merge", tmp_path / "part0", tmp_path / "part1", "-o", tmp_path / "merged", "--", *call)
    assert merged.code == 0, merged
    for name in ("objects.json", "objects.csv", "worklist.html", "maps/n2_objects.nii.gz"):
        assert (tmp_path / "merged" / name).exists()
    one, other = ((tmp_path / each / "objects.csv").read_bytes() for each in ("whole", "merged"))
    assert one == other

    for options, text in {
        "--fdr 2": "error: fdr is 2, but a share between 0 and 1 is needed",
        "--maps dicom-seg": "error: --series goes with --maps dicom-seg, but one stands alone",
    }.items():
        refused = run("objects", *given, "-o", tmp_path / "none", *options.split())
        assert refused.code == 2
        assert text in refused.err


def test_files_of_others_stay(learned, run, tmp_path):
    given, *_ = learned("--objects")
    (tmp_path / "out").mkdir()
    for command in ("trust", "objects"):
        mine = tmp_path / "out" / f"{command}.csv"
        mine.write_text("mine")
        done = run(command, *given, "-o", tmp_path / "out")
        assert (done.code, mine.read_text()) == (2, "mine")
        assert f"{command}.csv exists and was not written by this command" in done.err


def test_a_rule_that_is_none_is_refused(run, folders, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--objects", "--object-rule", "iou")
    assert done.code == 2
    assert "'iou' is no rule, but iou=SHARE or overlap=SHARE is needed" in done.err
