"""Files of one case that lie elsewhere in scanner space are refused, each by name, unless told otherwise."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.cases.geometry import check_alike, nifti_geometry
from segcal.cli import main
from segcal.errors import InputError

# The real ensembles, beside the checkout.
REAL = Path(os.environ.get("SEGCAL_REAL", Path(__file__).parents[3] / "real"))
nibabel = pytest.importorskip("nibabel")

AFFINE = np.array([[-1.25, 0, 0, 90], [0, -1.25, 0, 126], [0, 0, 10, -72], [0, 0, 0, 1]])
SHAPE = (5, 6, 7)


def shifted(axis=2, by=10.0):
    affine = AFFINE.copy()
    affine[axis, 3] += by
    return affine


FAULTS = {
    "origin": shifted(),
    "spacing": AFFINE @ np.diag([2, 1, 1, 1]),
    "direction": AFFINE @ np.diag([-1, 1, 1, 1]),
    "half a voxel": shifted(0, 0.625),
}


def save(path, values, affine=AFFINE):
    path.parent.mkdir(exist_ok=True, parents=True)
    nibabel.save(nibabel.Nifti1Image(values, affine), path)


@pytest.fixture
def folder(tmp_path):
    """Two members, labels and images of two cases, all at one place."""
    rng = np.random.default_rng(0)
    for case_id in ("a", "b"):
        logits = rng.normal(size=(*SHAPE, 3)).astype(np.float32)
        for member in ("m0", "m1"):
            save(tmp_path / member / f"{case_id}.nii.gz", logits + rng.normal(size=logits.shape).astype(np.float32))
        save(tmp_path / "labels" / f"{case_id}.nii.gz", logits.argmax(-1).astype(np.uint8))
        save(tmp_path / "images" / f"{case_id}.nii.gz", rng.normal(size=SHAPE).astype(np.float32))
    return tmp_path


def opened(folder, **more):
    members = [folder / "m0", folder / "m1"]
    given = {"kind": "logits", "pooling": "mean_logits", "images": folder / "images"}
    return segcal.open_cases(members, folder / "labels", **given, **more)


def moved(folder, part, affine):
    image = nibabel.load(folder / part / "b.nii.gz")
    save(folder / part / "b.nii.gz", np.asarray(image.dataobj), affine)


@pytest.mark.parametrize(("fault", "part"), list(zip(FAULTS, ("m1", "labels", "images", "m1"), strict=True)))
def test_a_file_that_lies_elsewhere_is_refused_with_both_affines(folder, part, fault):
    opened(folder).read("b")
    moved(folder, part, FAULTS[fault])
    opened(folder).read("a")
    with pytest.raises(segcal.CaseError) as refused:
        opened(folder).read("b")
    text = str(refused.value)
    assert f"{folder / part / 'b.nii.gz'} has the affine [" in text
    assert f"but {folder / 'm0' / 'b.nii.gz'} has [-1.25 0 0 90; 0 -1.25 0 126; 0 0 10 -72]: corners lie up to" in text
    assert "and 0.312 mm are allowed. Bring both into one space, or pass ignore_geometry=True if" in text


@pytest.mark.parametrize("part", ["m1", "labels", "images"])
def test_check_names_the_file_and_the_override_takes_it(folder, part, capsys):
    moved(folder, part, FAULTS["origin"])
    found = segcal.check(opened(folder))
    (error,) = [problem for problem in found.problems if problem.severity == "error"]
    assert error.case_id == "b"
    assert error.text.startswith(f"{folder / part / 'b.nii.gz'} has the affine [-1.25 0 0 90; 0 -1.25 0 126; 0 0 10 -6")
    assert segcal.check(opened(folder, ignore_geometry=True)).usable
    assert opened(folder, ignore_geometry=True).read("b").spacing == (1.25, 1.25, 10.0)
    given = ["--kind", "logits", "--pooling", "mean_logits", "--images", folder / "images"]
    command = [str(one) for one in ("check", folder / "m0", folder / "m1", folder / "labels", *given)]
    with pytest.raises(SystemExit) as ended:
        main(command)
    shown = capsys.readouterr()
    assert ended.value.code == 3
    assert "--ignore-geometry if voxels" in " ".join((shown.out + shown.err).split())
    with pytest.raises(SystemExit) as ended:
        main([*command, "--ignore-geometry"])
    assert ended.value.code == 0


def test_scores_without_a_geometry_leave_images_and_labels_to_be_compared(folder):
    (folder / "npy").mkdir()
    for case_id in ("a", "b"):
        values = np.asarray(nibabel.load(folder / "m0" / f"{case_id}.nii.gz").dataobj)
        np.save(folder / "npy" / f"{case_id}.npy", np.moveaxis(values, -1, 0).transpose(0, 3, 2, 1))
    given = {"kind": "logits", "label_axes": "zyx", "images": folder / "images"}
    assert segcal.open_cases(folder / "npy", folder / "labels", **given).read("b").spacing == (10.0, 1.25, 1.25)
    moved(folder, "images", FAULTS["direction"])
    with pytest.raises(segcal.CaseError, match=r"images.b\.nii\.gz has the affine .* but .*labels.b\.nii\.gz has"):
        segcal.open_cases(folder / "npy", folder / "labels", **given).read("b")


def test_pictures_in_nifti_files_are_compared_too(tmp_path):
    logits = np.zeros((5, 6, 3), np.float32)
    save(tmp_path / "p" / "a.nii.gz", logits)
    save(tmp_path / "y" / "a.nii.gz", np.zeros((5, 6, 1), np.uint8))
    given = {"kind": "logits", "format": "nifti"}
    segcal.open_cases(tmp_path / "p", tmp_path / "y", **given).read("a")
    save(tmp_path / "y" / "a.nii.gz", np.zeros((5, 6), np.uint8), shifted(0))
    with pytest.raises(segcal.CaseError, match="corners lie up to 10 mm apart"):
        segcal.open_cases(tmp_path / "p", tmp_path / "y", **given).read("a")


def test_one_file_per_class_is_compared_with_the_others(tmp_path):
    for number in range(3):
        save(tmp_path / "p" / f"a_{number}.nii.gz", np.zeros(SHAPE, np.float32), shifted() if number == 1 else AFFINE)
    cases = segcal.open_cases(tmp_path / "p", kind="logits", format="nifti_classes")
    with pytest.raises(segcal.CaseError, match=r"a_1\.nii\.gz has the affine .* but .*a_0\.nii\.gz has"):
        cases.read("a")


@pytest.mark.parametrize("reader", ["SimpleITKIO", "NibabelIO", "NibabelIOWithReorient"])
def test_properties_of_nnunet_are_compared_with_labels(tmp_path, reader):
    rng = np.random.default_rng(0)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "dataset.json").write_text(json.dumps({"labels": {"a": 0, "b": 1}, "file_ending": ".nii.gz"}))
    plans = {"transpose_forward": [0, 1, 2], "image_reader_writer": reader}
    (tmp_path / "p" / "plans.json").write_text(json.dumps(plans))
    values = rng.integers(0, 2, SHAPE).astype(np.uint8)
    image = nibabel.Nifti1Image(values, AFFINE)
    turned = nibabel.as_closest_canonical(image) if reader.endswith("Reorient") else image
    probs = np.where(np.asarray(turned.dataobj).T, 0.2, 0.8).astype(np.float32)
    np.savez_compressed(tmp_path / "p" / "a.npz", probabilities=np.stack([probs, 1 - probs]))
    itk = np.diag([-1, -1, 1, 1]) @ AFFINE
    stuff = {
        "SimpleITKIO": {"sitk_stuff": {"spacing": (1.25, 1.25, 10.0), "origin": tuple(itk[:3, 3]),
                                       "direction": tuple((itk[:3, :3] / [1.25, 1.25, 10]).ravel())}},
        "NibabelIO": {"nibabel_stuff": {"original_affine": AFFINE}},
        "NibabelIOWithReorient": {"nibabel_stuff": {"original_affine": AFFINE, "reoriented_affine": turned.affine}},
    }[reader]  # fmt: skip
    box = {"shape_before_cropping": (7, 6, 5), "bbox_used_for_cropping": [[0, 7], [0, 6], [0, 5]]}
    (tmp_path / "p" / "a.pkl").write_bytes(pickle.dumps({**stuff, **box, "spacing": [10.0, 1.25, 1.25]}))
    save(tmp_path / "y" / "a.nii.gz", values)
    case = segcal.open_cases(tmp_path / "p", tmp_path / "y").read("a")
    assert (case.logits.argmax(0) == case.labels).all()
    for fault in FAULTS.values():
        save(tmp_path / "y" / "a.nii.gz", values, fault)
        with pytest.raises(segcal.CaseError, match=r"y.a\.nii\.gz has the affine .* but .*a\.pkl has"):
            segcal.open_cases(tmp_path / "p", tmp_path / "y").read("a")


def test_pictures_of_nnunet_have_no_third_size(tmp_path):
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"a": 0, "b": 1}, "file_ending": ".png"}))
    (tmp_path / "plans.json").write_text(json.dumps({"transpose_forward": [0, 1, 2]}))
    np.savez_compressed(tmp_path / "a.npz", probabilities=np.full((2, 1, 6, 5), 0.5, np.float32))
    box = {"shape_before_cropping": (1, 6, 5), "bbox_used_for_cropping": [[0, 1], [0, 6], [0, 5]]}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({**box, "spacing": (999, 1, 1)}))
    assert segcal.open_cases(tmp_path).read("a").spacing is None


@pytest.mark.data
@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is not there")
def test_real_labels_and_images_lie_on_each_other():
    found = 0
    for path in sorted((REAL / "cardiac" / "labels").iterdir()):
        both = [nifti_geometry(REAL / "cardiac" / part / path.name, "zyx") for part in ("labels", "images")]
        check_alike([one for each in both for one in each])
        found += all(both)
    assert found == 100


def test_a_protocol_may_ignore_geometry_and_must_say_it_plainly():
    from segcal.benchmark.tasks import read_task

    table = {"name": "t", "members": ["m"], "labels": "y", "kind": "logits"}
    assert read_task({**table, "ignore_geometry": True}, "task").options.ignore_geometry is True
    assert not read_task(table, "task").options.ignore_geometry
    with pytest.raises(InputError, match="ignore_geometry"):
        read_task({**table, "ignore_geometry": "yes"}, "task")
