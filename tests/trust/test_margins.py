"""Margins, their losses and grown masks beside plain counting and brute force; their files, and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

import segcal
from segcal.cases.base import CaseError
from segcal.cases.masks import MaskCase
from segcal.errors import ArtifactError, InputError
from segcal.trust.grown import nested_levels
from segcal.trust.margins import LossSteps, Margin, Margins, controlled, mask_errors, missed_by, wrong_in

MARGINS = (0.0, 0.4, 1.5, 2.6, 9.0)
SPACING = (1.25, 1.5, 4.0)


def made(unit="voxels", runs=1, **given):
    options = {"outer": 2.0, "inner": 1.0, "volume": 2.0, "present": 20, "masked": 20} | given
    return Margins(
        unit=unit, volumes_in_ml=unit == "mm", level=0.9, share=0.95, on_average=False, runs=runs, cases=20, draws=20,
        structures=[Margin(1, "left kidney", **options), Margin(3, "class 3", **options)],
    )  # fmt: skip


def all_distances(targets, sources, spacing):
    """Return the distance of every source voxel to the nearest target voxel, by all pairs."""
    if not len(targets):
        return np.full(len(sources), np.inf)
    apart = (sources[:, None] - targets[None]) * np.asarray(spacing, float)
    return np.sqrt((apart**2).sum(-1)).min(1)


def brute_missed(mask, truth, spacing, margin):
    far = all_distances(np.argwhere(mask), np.argwhere(truth), spacing)
    return np.mean(far > margin + 1e-6)


def brute_wrong(mask, right, spacing, margin):
    deep = all_distances(np.argwhere(~mask), np.argwhere(mask), spacing)
    later = [m for m in (margin, *deep[np.isfinite(deep)]) if m >= margin]
    wrong = ~right[mask]
    return max(np.mean(wrong[deep > m + 1e-6]) if (deep > m + 1e-6).any() else 0.0 for m in later)


@pytest.mark.parametrize(
    ("space", "spacing", "share"),
    [((7, 6, 5), (1.0, 1.25, 4.0), 0.3), ((9, 11), None, 0.02), ((8, 5), (0.5, 2.0), 0.9)],
)
def test_losses_are_those_of_all_pairs(space, spacing, share, rng):
    sizes = spacing or [1.0] * len(space)
    for _ in range(5):
        mask, truth = rng.random(space) < share, rng.random(space) < 0.4
        mask.flat[rng.integers(mask.size)] = True
        missed, wrong = missed_by(mask, truth, spacing), wrong_in(mask, truth, spacing)
        for margin in MARGINS:
            assert missed.at(margin) == pytest.approx(brute_missed(mask, truth, sizes, margin))
            assert wrong.at(margin) == pytest.approx(brute_wrong(mask, truth, sizes, margin))


@given(arrays(bool, (4, 6)), arrays(bool, (4, 6)), st.floats(0.05, 1.0))
def test_losses_fall_and_the_first_margin_is_the_smallest(mask, truth, share):
    mask[1, 2] = truth[0, 0] = True
    for steps in (missed_by(mask, truth, (1.0, 1.7)), wrong_in(mask, truth, (1.0, 1.7))):
        assert steps.places[0] == 0
        assert (np.diff(steps.places) > 0).all()
        assert (np.diff(steps.losses) <= 0).all()
        first = steps.first(1 - share)
        if np.isfinite(first):
            assert steps.at(first) <= 1 - share + 1e-8
        assert all(steps.at(place) > 1 - share for place in steps.places[steps.places < first])


def test_steps_are_constant_from_each_place_on():
    steps = LossSteps(np.array([0.0, 1.0, 2.5]), np.array([0.6, 0.2, 0.1]))
    assert [steps.at(margin) for margin in (0.0, 0.99, 1.0, 2.4, 2.5, 100.0)] == [0.6, 0.6, 0.2, 0.2, 0.1, 0.1]
    assert [steps.first(most) for most in (0.7, 0.6, 0.3, 0.1, 0.05)] == [0.0, 0.0, 1.0, 2.5, np.inf]


def test_empty_masks_and_truths_have_their_rule():
    empty, full = np.zeros((3, 4), bool), np.ones((3, 4), bool)
    some = empty.copy()
    some[1, 1:3] = True
    case = MaskCase([np.where(some, 1, 0), np.where(some, 2, 0)], np.where(full, 3, 0), None)
    found = mask_errors(case)
    assert sorted(found) == [1, 2, 3]
    assert found[1].missed is None  # nothing to miss
    assert found[1].wrong.first(0.05) == 1.0  # all is wrong, so that only an empty inner mask is right
    assert found[2] == (None, None, [0, 2], 0)  # of another run alone
    assert found[3].missed.at(1e9) == 1.0  # nothing grows from an empty mask
    assert found[3].missed.first(0.05) == np.inf
    assert found[3].wrong is None
    assert wrong_in(full, some, None).first(0.05) == np.inf  # the border of the array is no border


def test_voxels_that_do_not_count_are_neither_missed_nor_wrong():
    mask, truth = np.array([[1, 1, 1, 0, 0]]), np.array([[1, 1, -1, -1, 1]])
    found = mask_errors(MaskCase([mask], truth, None))[1]
    assert found.truth == 3
    assert found.wrong.at(0.0) == 0.0
    assert found.missed.at(0.0) == pytest.approx(1 / 3)
    assert found.missed.first(0.0) == 2.0


def disc(radius, centre=(12.0, 14.0), space=(25, 29)):
    row, column = np.indices(space)
    return (np.hypot(row - centre[0], column - centre[1]) <= radius).astype(np.uint8)


@pytest.fixture
def folders(tmp_path, rng):
    """Discs in pixels: the truth has the radius 6, predictions other ones; label 2 is in a few cases."""
    for name in ("p", "q", "l"):
        (tmp_path / name).mkdir()
    for number in range(20):
        truth, first, second = disc(6.0), disc(6 - 0.2 * number), disc(5.0)
        if number < 3:
            truth[0, :3] = first[0, :3] = 2
        for name, values in (("p", first), ("q", second), ("l", truth)):
            np.save(tmp_path / name / f"case_{number:02d}.npy", values)
    return tmp_path


def test_margins_are_the_quantiles_of_plain_counting(folders):
    masks = segcal.MaskCases([folders / "p", folders / "q"], folders / "l", class_names=["back", "disc"])
    seen = []
    found = segcal.fit_margins(masks, level=0.8, share=1.0, progress=seen.append)
    assert seen == list(masks.ids)
    assert (found.unit, found.volumes_in_ml, found.runs, found.cases, found.draws) == ("voxels", False, 2, 20, 20)
    first, second = found.structures
    outer, volumes = [], []
    for case_id in masks.ids:
        p, q, t = (np.load(folders / name / f"{case_id}.npy") == 1 for name in "pql")
        apart = np.hypot(*(np.argwhere(t)[:, None] - np.argwhere(p)[None]).transpose(2, 0, 1))
        outer.append(apart.min(1).max())
        sizes = [p.sum(), q.sum()]
        volumes.append(abs(t.sum() - np.mean(sizes)) / (np.std(sizes, ddof=1) + 0.05 * np.mean(sizes)))
    place = math.ceil(21 * 0.8) - 1
    assert first.outer == pytest.approx(sorted(outer)[place])
    assert first.volume == pytest.approx(sorted(volumes)[place])
    assert first.inner == 0.0  # predictions are too small, so all of them is right
    assert (first.structure, first.name, first.present, first.masked) == (1, "disc", 20, 20)
    assert (second.name, second.outer, second.inner, second.volume, second.present) == ("class 2", None, None, None, 3)
    text = str(found)
    assert "in 0.8 of new cases or more, the outer mask covers 1 of the structure" in text


def test_on_average_is_the_smallest_margin_that_the_bound_allows(folders):
    masks = segcal.MaskCases(folders / "p", folders / "l")
    found = segcal.fit_margins(masks, share=0.9, on_average=True).structures[0]
    losses = {}
    for case_id in masks.ids:
        p, t = (np.load(folders / name / f"{case_id}.npy") == 1 for name in "pl")
        losses[case_id] = np.hypot(*(np.argwhere(t)[:, None] - np.argwhere(p)[None]).transpose(2, 0, 1)).min(1)
    margins = sorted({value for each in losses.values() for value in each})
    allowed = [m for m in margins if (20 * np.mean([np.mean(d > m + 1e-9) for d in losses.values()]) + 1) / 21 <= 0.1]
    assert found.outer == pytest.approx(allowed[0])
    assert found.outer > 0


def test_groups_are_the_draws(folders):
    masks = segcal.MaskCases(folders / "p", folders / "l", groups={f"case_{n:02d}": str(n // 4) for n in range(20)})
    assert segcal.fit_margins(masks, level=0.8).draws == 5
    with pytest.raises(InputError, match=r"5 cases or groups are labelled, but level 0.9 needs 9\. Lower it"):
        segcal.fit_margins(masks)
    with pytest.raises(InputError, match=r"5 cases or groups are labelled, but share 0.95 on average needs 19"):
        segcal.fit_margins(masks, on_average=True)


def test_no_mean_loss_is_small_enough_where_masks_are_missing():
    gone, small = LossSteps(np.zeros(1), np.ones(1)), LossSteps(np.array([0.0, 2.0]), np.array([0.5, 0.0]))
    groups = [str(n) for n in range(39)]
    assert controlled([small] * 39, groups, 0.05) == 2.0
    assert controlled([gone] + [small] * 38, groups, 0.049) == math.inf
    assert controlled([gone] + [small] * 38, groups, 0.05) == 2.0  # (39 * 1 / 39 + 1) / 40
    assert controlled([], [], 0.5) == math.inf


def test_a_missing_mask_is_beyond_every_margin(folders):
    for number in range(3):
        path = folders / "p" / f"case_{number:02d}.npy"
        np.save(path, 0 * np.load(path))
    masks = segcal.MaskCases(folders / "p", folders / "l")
    kept = segcal.fit_margins(masks, level=0.8).structures[0]
    assert kept.outer is not None
    assert kept.masked == 17
    assert segcal.fit_margins(masks, level=0.9).structures[0].outer is None


def test_voxel_sizes_count_and_must_be_there_for_all(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    for name, radius in (("p", 4.0), ("l", 6.0)):
        (tmp_path / name).mkdir()
        for number in range(9):
            image = nibabel.Nifti1Image(disc(radius)[..., None].repeat(3, -1), np.diag([0.5, 0.5, 3.0, 1.0]))
            nibabel.save(image, tmp_path / name / f"{number}.nii.gz")
    masks = segcal.MaskCases(tmp_path / "p", tmp_path / "l")
    found = segcal.fit_margins(masks, share=1.0)
    assert (found.unit, found.volumes_in_ml) == ("mm", True)
    apart = np.hypot(*(np.argwhere(disc(6.0))[:, None] - np.argwhere(disc(4.0))[None]).transpose(2, 0, 1))
    assert found.structures[0].outer == pytest.approx(0.5 * apart.min(1).max())
    bare = nibabel.Nifti1Image(disc(4.0)[..., None].repeat(3, -1), np.eye(4))
    bare.header.set_sform(np.eye(4), 0)
    bare.header.set_qform(np.eye(4), 0)
    nibabel.save(bare, tmp_path / "p" / "3.nii.gz")
    with pytest.raises(InputError, match="3 has no voxel size, but other cases have one"):
        segcal.fit_margins(segcal.MaskCases(tmp_path / "p", tmp_path / "l", ignore_geometry=True))


def test_cases_that_fail_are_left_out_or_raised(folders):
    (folders / "l" / "case_00.npy").unlink()
    masks, errors = segcal.MaskCases(folders / "p", folders / "l"), []
    with pytest.raises(CaseError, match="case_00"):
        segcal.fit_margins(masks)
    assert segcal.fit_margins(masks, failed=errors.append).cases == 19
    assert [error.case_id for error in errors] == ["case_00"]
    for number in range(20):
        (folders / "l" / f"case_{number:02d}.npy").unlink(missing_ok=True)
    np.save(folders / "l" / "other.npy", disc(3.0))
    with pytest.raises(InputError, match="all 20 cases failed, but at least one is needed"):
        segcal.fit_margins(segcal.MaskCases(folders / "p", folders / "l"), failed=errors.append)


def test_shares_that_cannot_be_and_missing_labels_are_refused(folders):
    masks = segcal.MaskCases(folders / "p", folders / "l")
    for share, average in ((0.0, False), (1.2, False), (1.0, True)):
        with pytest.raises(InputError, match="but more than 0 and at most 1, on average less, is needed"):
            segcal.fit_margins(masks, share=share, on_average=average)
    with pytest.raises(InputError, match="masks has no labels, but margins are learned from labelled cases"):
        segcal.fit_margins(segcal.MaskCases(folders / "p"))


def test_masks_without_any_structure_promise_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    for number in range(9):
        np.save(tmp_path / "empty" / f"{number}.npy", np.zeros((3, 5), np.uint8))
    with pytest.raises(InputError, match="masks has 9 cases without any structure, but margins need one"):
        segcal.fit_margins(segcal.MaskCases(tmp_path / "empty", tmp_path / "empty"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not readable .*, but it must be as segcal wrote it. Fit the margins again"),
        ({"version": 2}, "has version 2, but this segcal reads 1. Update segcal"),
        ({"level": float("nan")}, "is not readable"),
        ({"structures": [{"structure": 1}]}, "is not readable"),
        ({"unit": "km"}, "is not readable"),
    ],
)
def test_files_read_back_and_damaged_ones_are_one_sentence(tmp_path, change, message):
    path = made().save(tmp_path / "m.json")
    assert segcal.Margins.load(path) == made()
    with pytest.raises(ArtifactError, match=r"none.json is missing, but it is needed\. Fit the margins again\.$"):
        segcal.Margins.load(tmp_path / "none.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ArtifactError, match=message):
        segcal.Margins.load(path)


@pytest.mark.parametrize("value", [-1.0, float("inf"), "3"])
def test_margins_that_cannot_be_are_refused(tmp_path, value):
    path = made().save(tmp_path / "m.json")
    plain = json.loads(path.read_text())
    plain["structures"][0]["outer"] = value
    path.write_text(json.dumps(plain))
    with pytest.raises(ArtifactError, match="is not readable"):
        segcal.Margins.load(path)


def brute_levels(mask, outer, inner, spacing):
    """Return the levels by all pairs of voxels."""
    size = np.asarray(spacing)
    apart = np.sqrt((((np.argwhere(~mask)[:, None] - np.argwhere(mask)[None]) * size) ** 2).sum(-1))
    levels = np.where(mask, 2, 0).astype(np.uint8)
    levels[~mask] = np.where(apart.min(1) <= outer + 1e-6, 1, 0)
    levels[mask] = np.where(apart.min(0) > inner + 1e-6, 3, 2)
    return levels


@pytest.mark.parametrize(
    ("outer", "inner"), [(0.0, 0.0), (1.25, 1.25), (1.5, 1.6), (3.9, 0.0), (4.0, 4.0), (100.0, 1.25)]
)
def test_levels_are_those_of_all_pairs(outer, inner, rng):
    mask = np.zeros((9, 8, 5), bool)
    mask[2:7, 0:6, 1:4] = rng.random((5, 6, 3)) < 0.9
    margin = Margin(1, "x", outer, inner, None, 20, 20)
    np.testing.assert_array_equal(nested_levels(mask, margin, SPACING), brute_levels(mask, outer, inner, SPACING))
    alone = nested_levels(mask, Margin(1, "x", None, None, None, 3, 3), None)
    np.testing.assert_array_equal(alone, 2 * mask)  # without margins, the mask


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


def test_headers_are_kept_and_volumes_are_in_ml(maps, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    affine = np.diag([-SPACING[0], SPACING[1], SPACING[2], 1.0])
    affine[:3, 3] = 5, -3, 20
    masks = segcal.MaskCases(save(tmp_path / "p", maps, ".nii.gz", affine))
    rows = segcal.apply_margins(made("mm").save(tmp_path / "m.json"), masks, tmp_path / "out")
    image = nibabel.load(tmp_path / "out" / "a" / "leftkidney.nii.gz")
    np.testing.assert_array_equal(image.affine, affine)
    assert image.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(image.dataobj), brute_levels(maps["a"] == 1, 2.0, 1.0, SPACING))
    volume = 5 * 4 * 3 * 7.5 / 1000
    assert rows[0][:2] == ("a", "left kidney")
    assert rows[0][2:] == pytest.approx((volume, 0.9 * volume, 1.1 * volume))
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


def test_workers_measure_and_write_the_same(folders, tmp_path):
    known = segcal.MaskCases(folders / "p", folders / "l")
    margins = segcal.fit_margins(known)
    assert segcal.fit_margins(known, workers=2) == margins
    masks = segcal.MaskCases(folders / "p")
    one, two = (segcal.apply_margins(margins, masks, tmp_path / f"out{n}", workers=n) for n in (1, 2))
    assert one == two
    for path in (tmp_path / "out1").glob("*/*.npy"):
        np.testing.assert_array_equal(np.load(path), np.load(tmp_path / "out2" / path.relative_to(tmp_path / "out1")))
