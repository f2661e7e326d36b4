"""Grown masks beside brute force, in the format that came in; run again, interrupted, and refused."""

import numpy as np
import pytest
from PIL import Image

import segcal
from segcal.cases.base import CaseError
from segcal.errors import InputError
from segcal.trust.grown import nested_levels
from segcal.trust.margins import Margin, Margins

SPACING = (1.25, 1.5, 4.0)


def made(unit="voxels", runs=1, **given):
    options = {"outer": 2.0, "inner": 1.0, "volume": 2.0, "present": 20, "masked": 20} | given
    return Margins(
        unit=unit, volumes_in_ml=unit == "mm", level=0.9, share=0.95, on_average=False, runs=runs, cases=20, draws=20,
        structures=[Margin(1, "left kidney", **options), Margin(3, "class 3", **options)],
    )  # fmt: skip


def brute_levels(mask, outer, inner, spacing):
    """Return the levels by all pairs of voxels."""
    size = np.asarray(spacing)
    apart = np.sqrt((((np.argwhere(~mask)[:, None] - np.argwhere(mask)[None]) * size) ** 2).sum(-1))
    levels = np.where(mask, 2, 0).astype(np.uint8)
    levels[~mask] = np.where(apart.min(1) <= outer + 1e-6, 1, 0)
    levels[mask] = np.where(apart.min(0) > inner + 1e-6, 3, 2)
    return levels


@pytest.mark.parametrize("outer", [0.0, 1.25, 1.5, 3.9, 4.0, 7.0, 100.0])
@pytest.mark.parametrize("inner", [0.0, 1.25, 1.6, 4.0])
def test_levels_are_those_of_all_pairs(outer, inner, rng):
    mask = np.zeros((9, 8, 5), bool)
    mask[2:7, 0:6, 1:4] = rng.random((5, 6, 3)) < 0.9
    margin = Margin(1, "x", outer, inner, None, 20, 20)
    np.testing.assert_array_equal(nested_levels(mask, margin, SPACING), brute_levels(mask, outer, inner, SPACING))


def test_without_margins_there_is_the_mask_alone():
    mask = np.zeros((5, 6), bool)
    mask[1:4, 1:5] = True
    np.testing.assert_array_equal(nested_levels(mask, Margin(1, "x", None, None, None, 3, 3), None), 2 * mask)


@pytest.fixture
def maps(rng):
    found = {}
    for name in ("a", "b"):
        found[name] = np.zeros((9, 8, 5), np.int16)
        found[name][2:7, 2:6, 1:4] = 1
    found["b"][0, 0, 0] = 3
    return found


def save(folder, maps, ending=".npy", affine=None):
    folder.mkdir(exist_ok=True)
    for name, values in maps.items():
        path = folder / f"{name}{ending}"
        if ending == ".png":
            Image.fromarray(values[..., 2].astype(np.uint8)).save(path)
        elif ending.startswith(".nii"):
            nibabel = pytest.importorskip("nibabel")
            nibabel.save(nibabel.Nifti1Image(values, affine), path)
        else:
            (np.save if ending == ".npy" else np.savez)(path, values)
    return folder


@pytest.mark.parametrize("ending", [".npy", ".npz", ".png"])
def test_masks_are_written_in_the_format_that_came_in(ending, maps, tmp_path):
    masks = segcal.MaskCases(save(tmp_path / "p", maps, ending))
    segcal.apply_margins(made(), masks, tmp_path / "out")
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").glob("*/*"))
    expected = [f"a/leftkidney{ending}", f"b/class3{ending}", f"b/leftkidney{ending}"]
    # In the slice that is the picture, the third structure is empty, and has no file.
    expected = [name for name in expected if ending != ".png" or "class3" not in name]
    assert [name for name in files if not name.startswith(".")] == expected
    out = segcal.MaskCases(tmp_path / "out" / "a").read("leftkidney").runs[0]
    mask = masks.read("a").runs[0] == 1
    np.testing.assert_array_equal(out, brute_levels(mask, 2.0, 1.0, [1.0] * mask.ndim))


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_headers_are_kept_and_volumes_are_in_ml(ending, maps, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    affine = np.diag([-SPACING[0], SPACING[1], SPACING[2], 1.0])
    affine[:3, 3] = 5, -3, 20
    masks = segcal.MaskCases(save(tmp_path / "p", maps, ending, affine))
    rows = segcal.apply_margins(made("mm").save(tmp_path / "m.json"), masks, tmp_path / "out")
    image = nibabel.load(tmp_path / "out" / "a" / f"leftkidney{ending}")
    np.testing.assert_array_equal(image.affine, affine)
    assert image.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(image.dataobj), brute_levels(maps["a"] == 1, 2.0, 1.0, SPACING))
    volume = 5 * 4 * 3 * 7.5 / 1000
    assert rows[0] == (
        "a",
        "left kidney",
        pytest.approx(volume),
        pytest.approx(0.9 * volume),
        pytest.approx(1.1 * volume),
    )
    assert rows[1] == ("a", "class 3", 0.0, None, None)  # of an empty mask nothing is said


def test_runs_widen_the_interval_and_are_as_many_as_were_learned_with(maps, tmp_path):
    first = save(tmp_path / "p", maps)
    second = save(tmp_path / "q", {name: values * (np.arange(8) < 4)[:, None] for name, values in maps.items()})
    rows = segcal.apply_margins(made(runs=2), segcal.MaskCases([first, second]), tmp_path / "out")
    scale = np.std([60, 30], ddof=1) + 0.05 * 45
    assert rows[0][2:] == (45.0, 0.0, pytest.approx(45 + 2 * scale))  # not below 0
    with pytest.raises(InputError, match="masks has 1 runs, but margins were learned with 2"):
        segcal.apply_margins(made(runs=2), segcal.MaskCases(first), tmp_path / "more")


def test_the_same_call_goes_on_and_another_is_refused(maps, tmp_path):
    masks, out = segcal.MaskCases(save(tmp_path / "p", maps)), tmp_path / "out"
    rows = segcal.apply_margins(made(), masks, out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.npy")}
    (out / "a" / "leftkidney.npy").unlink()
    save(tmp_path / "p", {"c": maps["a"]})
    again = segcal.apply_margins(made(), segcal.MaskCases(tmp_path / "p"), out)
    assert again[: len(rows)] == rows
    assert (out / "a" / "leftkidney.npy").exists()
    assert (out / "c" / "leftkidney.npy").exists()
    kept = [path for path in before if path.parent.name == "b"]
    assert kept
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)
    with pytest.raises(InputError, match="out is not empty, but grown masks go into a new folder"):
        segcal.apply_margins(made(outer=3.0), masks, out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="mine is not empty"):
        segcal.apply_margins(made(), masks, tmp_path / "mine")
    with pytest.raises(InputError, match="is one of the inputs, but they are never overwritten"):
        segcal.apply_margins(made(), masks, tmp_path / "p")


def test_margins_in_mm_need_a_voxel_size(maps, tmp_path):
    masks, errors = segcal.MaskCases(save(tmp_path / "p", maps)), []
    with pytest.raises(CaseError, match="has no voxel size, but margins are in mm"):
        segcal.apply_margins(made("mm"), masks, tmp_path / "out")
    assert segcal.apply_margins(made("mm"), masks, tmp_path / "out", failed=errors.append) == []
    assert [error.case_id for error in errors] == ["a", "b"]


def test_workers_write_the_same(maps, tmp_path):
    masks = segcal.MaskCases(save(tmp_path / "p", maps))
    one = segcal.apply_margins(made(), masks, tmp_path / "one")
    assert segcal.apply_margins(made(), masks, tmp_path / "two", workers=2) == one
    for path in (tmp_path / "one").glob("*/*.npy"):
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        np.testing.assert_array_equal(np.load(path), np.load(other))
