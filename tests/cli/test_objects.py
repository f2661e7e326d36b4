"""``segcal objects`` as a user calls it."""

import csv
import json

import numpy as np
import pytest
from scipy import ndimage


@pytest.fixture(params=["npy", "nifti", "nnunet"])
def learned(run, make_folders, tmp_path, request):
    """A calibrator that remembers the objects of twelve cases, and folders of new ones."""
    old = make_folders(request.param, ids=[f"{letter}{k}" for letter in "abcdef" for k in (1, 2)], folder="old")
    done = run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--objects")
    assert done.code == 0, done
    assert "segcal objects will compare with 12 cases: the cases of the fit, each judged by a fit without" in done.out
    return tmp_path / "cal", make_folders(request.param, ids=("n1", "n2"), folder="new", seed=9)


def test_it_writes_rows_a_worklist_and_maps_in_the_geometry_of_the_input(learned, run, tmp_path):
    calibrator, new = learned
    out, nibabel = tmp_path / "out", pytest.importorskip("nibabel")
    labels = ["--labels", new.labels]
    done = run("objects", calibrator, new.predictions, *new.options, "-o", out, *labels, "--maps", "nifti")
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
    for place, row in enumerate(document["cases"][:2]):
        numbers, real = (
            nibabel.load(out / "maps" / f"n1_{names[place]}_{kind}.nii.gz") for kind in ("objects", "real")
        )
        values = np.asarray(numbers.dataobj)
        assert values.max() == row["objects"]
        for one in (each for each in document["rows"] if (each["case"], each["structure"]) == ("n1", row["structure"])):
            spots = np.argwhere(values == one["object"])
            assert len(spots) == one["voxels"]
            own = np.asarray(real.dataobj)[values == one["object"]]
            assert own == pytest.approx(np.full(len(own), one["p_real"]), rel=1e-6)
            if one["world"] is not None:
                assert one["world"] == pytest.approx(numbers.affine[:3, :3] @ spots.mean(0) + numbers.affine[:3, 3])
        pieces = ndimage.label(values > 0, np.ones([3] * values.ndim))[1]
        assert pieces == row["objects"]
    assert (document["rows"][0]["world"] is None) == (new.options == ["--kind", "logits"] and not _is_nifti(new))


def _is_nifti(folders):
    return any(path.name.endswith(".nii.gz") for path in folders.predictions.iterdir())


@pytest.fixture
def plain(run, make_folders, tmp_path):
    old = make_folders(ids=[f"{letter}{k}" for letter in "abcdef" for k in (1, 2)], folder="old")
    options = ["--objects", "class 2", "--object-rule", "overlap=0.5", "--smallest-object", "2"]
    done = run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts", *options)
    assert done.code == 0, done
    return tmp_path / "cal", make_folders(ids=("n1", "n2", "n3"), folder="new", seed=9)


def test_parts_are_put_together_as_one_run_has_it(plain, run, tmp_path):
    calibrator, new = plain
    given = ["objects", calibrator, new.predictions, *new.options, "--fdr", "0.5", "--maps", "nifti"]
    assert run(*given, "-o", tmp_path / "whole").code == 0
    for number in (1, 0):
        done = run(*given, "-o", tmp_path / f"part{number}", "--num-parts", "2", "--part-id", str(number))
        assert done.code == 0, done
    parts = [tmp_path / "part0", tmp_path / "part1"]
    done = run("merge", *parts, "-o", tmp_path / "merged", "--", *given[0:], "-o", tmp_path / "merged")
    assert done.code == 0, done
    for name in ("objects.json", "objects.csv", "worklist.html", "maps/n2_objects.nii.gz"):
        assert (tmp_path / "merged" / name).exists()
    one, other = ((tmp_path / each / "objects.csv").read_bytes() for each in ("whole", "merged"))
    assert one == other


def test_json_and_rule_are_those_of_the_fit(plain, run, tmp_path):
    calibrator, new = plain
    done = run("objects", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", "--json", "--proved")
    assert done.code == 0, done
    assert (done.document["measure"], done.document["at"]) == ("overlap", 0.5)
    assert {row["structure"] for row in done.document["rows"]} == {"class 2"}
    assert min(row["voxels"] for row in done.document["rows"]) >= 2
    again = run("objects", calibrator, new.predictions, *new.options, "-o", tmp_path / "out")
    assert again.code == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fdr", "2"], "error: fdr is 2, but a share between 0 and 1 is needed"),
        (["--maps", "dicom-seg"], "error: --series goes with --maps dicom-seg, but one stands alone"),
    ],
)
def test_mistakes_are_one_sentence(plain, run, tmp_path, options, text):
    calibrator, new = plain
    done = run("objects", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", *options)
    assert done.code == 2
    assert text in done.err


def test_files_of_others_stay(plain, run, tmp_path):
    calibrator, new = plain
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "objects.csv").write_text("mine")
    done = run("objects", calibrator, new.predictions, *new.options, "-o", tmp_path / "out")
    assert (done.code, (tmp_path / "out" / "objects.csv").read_text()) == (2, "mine")


def test_a_rule_that_is_none_is_refused(run, folders, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--objects", "--object-rule", "iou")
    assert done.code == 2
    assert "'iou' is no rule, but iou=SHARE or overlap=SHARE is needed" in done.err
