"""Margins beside plain counting, their file, and what is refused."""

import json
import math

import numpy as np
import pytest

import segcal
from segcal.cases.base import CaseError
from segcal.errors import ArtifactError, InputError
from segcal.trust.margins import controlled, volume_scale
from segcal.trust.mask_errors import LossSteps


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


def test_workers_measure_the_same(folders):
    masks = segcal.MaskCases(folders / "p", folders / "l")
    assert segcal.fit_margins(masks, workers=2) == segcal.fit_margins(masks)


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


@pytest.mark.parametrize(("share", "average"), [(0.0, False), (1.2, False), (1.0, True)])
def test_shares_that_cannot_be_are_refused(folders, share, average):
    masks = segcal.MaskCases(folders / "p", folders / "l")
    with pytest.raises(InputError, match="but more than 0 and at most 1, on average less, is needed"):
        segcal.fit_margins(masks, share=share, on_average=average)


def test_labels_are_needed(folders):
    with pytest.raises(InputError, match="masks has no labels, but margins are learned from labelled cases"):
        segcal.fit_margins(segcal.MaskCases(folders / "p"))


def test_the_file_reads_back(folders, tmp_path):
    found = segcal.fit_margins(segcal.MaskCases(folders / "p", folders / "l"))
    path = found.save(tmp_path / "m.json")
    assert segcal.Margins.load(path) == found
    assert json.loads(path.read_text())["format"] == "segcal-margins"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not readable .*, but it must be as segcal wrote it. Fit the margins again"),
        ({"version": 2}, "has version 2, but this segcal reads 1. Update segcal"),
        ({"level": 1.5}, "is not readable"),
        ({"level": float("nan")}, "is not readable"),
        ({"structures": [{"structure": 1}]}, "is not readable"),
        ({"unit": "km"}, "is not readable"),
    ],
)
def test_damaged_files_are_one_sentence(folders, tmp_path, change, message):
    path = segcal.fit_margins(segcal.MaskCases(folders / "p", folders / "l")).save(tmp_path / "m.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ArtifactError, match=message):
        segcal.Margins.load(path)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "3"])
def test_margins_that_cannot_be_are_refused(folders, tmp_path, value):
    path = segcal.fit_margins(segcal.MaskCases(folders / "p", folders / "l")).save(tmp_path / "m.json")
    plain = json.loads(path.read_text())
    plain["structures"][0]["outer"] = value
    path.write_text(json.dumps(plain))
    with pytest.raises(ArtifactError, match="is not readable"):
        segcal.Margins.load(path)


def test_the_scale_of_volumes_does_not_depend_on_the_unit():
    assert volume_scale([3.0, 5.0]) == pytest.approx(volume_scale([3000, 5000]) / 1000)
