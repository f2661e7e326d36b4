"""Masks in memory and in folders: formats, what is promised, and going on after an interruption."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import segcal
from segcal.decisions.decide import MaskFiles
from segcal.decisions.masks import DecisionRow


@pytest.fixture
def folder(make_cases, tmp_path):
    """Four pictures as files."""
    (tmp_path / "in").mkdir()
    for case in make_cases(4, seed=7, labelled=False):
        np.save(tmp_path / "in" / f"{case.id}.npy", case.logits.numpy())
    return tmp_path / "in"


def open_folder(folder):
    return segcal.open_cases(folder, kind="logits", class_names=["out", "wall", "core"])


def test_arrays_have_their_masks_in_the_result(fitted, make_cases):
    cases = make_cases(3, seed=5)
    found = segcal.decide(fitted, cases, "dice")
    assert [row["case"] for row in found.rows] == ["case00", "case00", "case01", "case01", "case02", "case02"]
    assert found.masks["case01"].shape == (9, 11)
    assert found.promise.startswith("Nothing is guaranteed")
    assert segcal.decide(fitted, cases, "recall=0.9").masks["case01"].shape == (2, 9, 11)
    preserved = segcal.decide(fitted, cases)
    assert all((preserved.masks[case.id] == case.logits.numpy().argmax(0)).all() for case in cases)
    assert {row["changed_voxels"] for row in preserved.rows} == {0}


def test_a_folder_has_label_maps_and_tables(fitted, folder, tmp_path):
    found = segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out")
    memory = segcal.decide(fitted, open_folder(folder), "dice")
    assert found.rows == memory.rows
    assert (found.written, found.already_there, found.masks) == (4, 0, {})
    for case_id, mask in memory.masks.items():
        assert (np.asarray(Image.open(tmp_path / "out" / f"{case_id}.png")) == mask).all()
    with (tmp_path / "out" / "decide.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(DecisionRow.__annotations__)
    assert [float(row["expected_dice"]) for row in rows] == [row["expected_dice"] for row in found.rows]
    assert json.loads((tmp_path / "out" / "decide.json").read_text("utf-8")) == json.loads(json.dumps(found.to_plain()))


def test_masks_that_may_overlap_are_one_file_each(fitted, folder, tmp_path):
    found = segcal.decide(fitted, open_folder(folder), "recall=0.9", tmp_path / "out", workers=2)
    memory = segcal.decide(fitted, open_folder(folder), "recall=0.9").masks["case02"]
    for name, mask in zip(("wall", "core"), memory, strict=True):
        assert (np.asarray(Image.open(tmp_path / "out" / name / "case02.png")) == mask).all()
    assert found.rows == segcal.decide(fitted, open_folder(folder), "recall=0.9").rows  # by two processes as by one
    assert found.promise == (
        "On average over cases like the reference, a mask holds at least 90 % of its structure, where that is there."
    )


def test_volumes_are_nifti_in_their_geometry(fitted, make_cases, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    case = make_cases(1, seed=5, space=(5, 6, 7)).checked("case00")
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    (tmp_path / "in").mkdir()
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(case.logits.numpy(), 0, -1), affine), tmp_path / "in" / "a.nii.gz")
    found = segcal.decide(fitted, segcal.open_cases(tmp_path / "in", kind="logits"), "volume", tmp_path / "out")
    image = nibabel.load(tmp_path / "out" / "a.nii.gz")
    assert image.shape == (5, 6, 7)
    assert (image.affine == affine).all()
    values = np.asarray(image.dataobj)
    assert [row["voxels"] for row in found.rows] == [(values == 1).sum(), (values == 2).sum()]
    assert found.rows[0]["volume"] == pytest.approx(found.rows[0]["voxels"] * 0.024)
    assert found.rows[0]["unit"] == "ml"


def test_an_interrupted_run_goes_on(fitted, folder, tmp_path, monkeypatch):
    whole = segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "whole")
    write, done = MaskFiles.__call__, []

    def dies(self, case):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case.id)
        return write(self, case)

    monkeypatch.setattr(MaskFiles, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out")
    assert not (tmp_path / "out" / "decide.csv").exists()
    monkeypatch.setattr(MaskFiles, "__call__", write)
    told = []
    again = segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out", progress=told.append)
    assert (again.written, again.already_there, again.rows) == (2, 2, whole.rows)
    assert sorted(told) == sorted(open_folder(folder).ids)
    for name in ("decide.csv", "decide.json", "case00.png", "case03.png", "rows/case01.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "out" / "case01.png").write_bytes(b"damaged")
    np.save(folder / "case02.npy", 2 * np.load(folder / "case02.npy"))
    once_more = segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out")
    assert (once_more.written, once_more.already_there) == (2, 2)
    (folder / "case03.npy").unlink()
    assert segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out").stale == ["case03"]


def test_two_rules_do_not_share_a_folder(fitted, folder, tmp_path):
    segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out")
    with pytest.raises(segcal.InputError, match=r"with another rule \('dice'\), but 'volume' is to be written"):
        segcal.decide(fitted, open_folder(folder), "volume", tmp_path / "out")
    found = segcal.decide(fitted, open_folder(folder), "recall=0.9", tmp_path / "out", overwrite=True)
    assert found.written == 4
    assert not list((tmp_path / "out").glob("*.png"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "case00.png").write_text("a picture of mine")
    with pytest.raises(segcal.InputError, match=r"holds case00.png, which segcal decide did not write"):
        segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "mine")
    with pytest.raises(segcal.InputError, match="cases is ArrayCases, but files are written in the geometry of files"):
        segcal.decide(fitted, segcal.as_cases(np.zeros((2, 3, 4, 5), "float32"), kind="logits"), "dice", tmp_path / "x")


def test_a_case_that_fails_is_left_out(fitted, folder, tmp_path):
    np.save(folder / "case01.npy", np.full((3, 9, 11), np.nan, "float32"))
    failures = []
    found = segcal.decide(fitted, open_folder(folder), "dice", tmp_path / "out", failed=failures.append)
    assert [failure.case_id for failure in failures] == ["case01"]
    assert {row["case"] for row in found.rows} == {"case00", "case02", "case03"}
    with pytest.raises(segcal.InputError, match="all 1 cases failed, but at least one is needed"):
        segcal.decide(fitted, open_folder(folder).subset(["case01"]), "dice", failed=failures.append)


@pytest.mark.parametrize("name", ["recall", "precision"])
def test_what_is_promised_is_kept_on_average(name, make_cases):
    """References of 20 cases, new cases: the mean share of errors is at most what was asked for."""
    plain = segcal.fit("identity", make_cases(2, prefix="fit"))
    pool, fresh = make_cases(150, seed=11, prefix="ref"), make_cases(40, seed=12, prefix="new")
    rng, shares = np.random.default_rng(0), []
    for _ in range(12):
        known = pool.subset(rng.choice(pool.ids, 20, replace=False).tolist())
        found = segcal.decide(segcal.learn_trust(plain, known), fresh, f"{name}=0.8")
        for case in fresh:
            truth = np.stack([case.labels.numpy() == c for c in (1, 2)])
            masks = found.masks[case.id].astype(bool)
            whole = truth if name == "recall" else masks
            wrong = (whole & ~(masks if name == "recall" else truth)).sum((1, 2))
            shares += [float(w / n) for w, n in zip(wrong, whole.sum((1, 2)), strict=True) if n]
    assert 0.05 < np.mean(shares) <= 0.2 + 0.01


def test_regions_are_learned_by_folds_too(make_cases):
    cases = make_cases(12, seed=3, regions=True)
    fitted = segcal.learn_trust(segcal.fit("ts", cases), cases)
    assert fitted.reference.source == "out of fold"
    found = segcal.decide(fitted, make_cases(2, seed=4, regions=True), "recall=0.8")
    assert found.promise.endswith("about so, and nothing is proved, because the reference had a part in the fit.")
    assert found.masks["case00"].shape == (2, 9, 11)
    assert {row["structure"] for row in found.rows} == {"whole", "core"}
    with pytest.raises(segcal.InputError, match="is for regions, but trust and monitor are for classes"):
        segcal.trust(fitted, make_cases(2, seed=4, regions=True))
