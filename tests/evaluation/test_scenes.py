"""Scenes by windows: the same values as in one piece, whatever the windows, within a bounded memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segcal
from segcal.cases import CaseError
from segcal.evaluation import slabs
from segcal.evaluation.slabs import window_size

rasterio = pytest.importorskip("rasterio")

SPACE = (90, 130)
PLACE = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)}
TILES = {"tiled": True, "blockxsize": 32, "blockysize": 16, "compress": "deflate"}


def write(path, values, nodata=-9999.0, **about):
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"driver": "GTiff", "count": len(values), "height": values.shape[1], "width": values.shape[2]} | about
    with rasterio.open(path, "w", dtype=values.dtype, nodata=nodata, **PLACE, **TILES | about) as file:
        file.write(values)


def bands(path):
    with rasterio.open(path) as file:
        return file.read()


def smooth(rng, shape=(3, *SPACE)):
    from scipy.ndimage import gaussian_filter

    return (12 * gaussian_filter(rng.normal(size=shape), (*[0] * (len(shape) - 2), 2, 2))).astype(np.float32)


@pytest.fixture
def made(tmp_path, rng):
    """Two members of three cases, of which each lacks data elsewhere, and labels with nodata of their own."""
    for name in ("a", "b", "c"):
        scores = smooth(rng)
        labels = (scores + rng.gumbel(size=scores.shape)).argmax(0).astype(np.uint8)
        labels[:, :9] = 200
        write(tmp_path / "labels" / f"{name}.tif", labels[None], 200)
        for member in (0, 1):
            own = scores + rng.normal(size=scores.shape).astype(np.float32)
            own[member, 20:40, 50 * member : 50 * member + 31] = -9999
            write(tmp_path / f"m{member}" / f"{name}.tif", own)
    return tmp_path


def fit_some(name, rng):
    """Fit to scores of two classes, with labels that belong to them."""
    scores = smooth(rng, (1, 2, *SPACE))
    return segcal.fit(name, scores, (scores + rng.gumbel(size=scores.shape)).argmax(1))


def opened(home, labels=True):
    return segcal.open_cases(
        [home / "m0", home / "m1"], home / "labels" if labels else None, kind="logits", pooling="mean_probs"
    )


def lacking(home, name):
    return np.any([(bands(home / member / f"{name}.tif") == -9999).any(0) for member in ("m0", "m1")], axis=0)


def test_nodata_of_any_member_and_of_labels_do_not_count(made):
    case = opened(made).read("a")
    nothing = lacking(made, "a")
    assert np.array_equal(case.mask, ~nothing)
    assert np.array_equal(case.labels == -1, nothing | (bands(made / "labels" / "a.tif")[0] == 200))
    counted = segcal.evaluate(opened(made).subset(["a"]), segcal.make_calibrator("ts", 3))
    probs = [
        np.exp(z - z.max(0))
        for z in (np.where(nothing, 0, bands(made / m / "a.tif").astype(float)) for m in ("m0", "m1"))
    ]
    pooled = np.log(np.mean([p / p.sum(0) for p in probs], axis=0))
    counts = ~nothing & (bands(made / "labels" / "a.tif")[0] != 200)
    expected = -np.take_along_axis(pooled, case.labels.clamp(min=0).numpy()[None], 0)[0][counts].mean()
    before = next(row["nll"] for row in counted.rows if row["stage"] == "before")
    assert before == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["ts", "conic"])
def test_windows_change_no_value(name, made, monkeypatch):
    fitted, cases = segcal.fit(name, opened(made)), opened(made, labels=False)
    assert (max(fitted.calibrator.reach(2)) > 8) == (name == "conic")
    one = segcal.apply(fitted, cases, made / "one", confidence_map=True)
    monkeypatch.setattr(slabs, "WINDOW_VALUES", 3 * 40 * 70)
    assert len(list(slabs.windows(cases, "a"))) > 6
    many = segcal.apply(fitted, cases, made / "many", confidence_map=True)
    assert (
        (one.voxels, one.flips) == (many.voxels, many.flips) == (sum(int((~lacking(made, n)).sum()) for n in "abc"), 0)
    )
    for path in sorted((made / "one").rglob("*.tif")):
        # Vector instructions round the ends of rows in another way.
        np.testing.assert_allclose(bands(made / "many" / path.relative_to(made / "one")), bands(path), atol=5e-6)
    for case_id in "abc":
        before, after = cases.read(case_id), bands(made / "many" / f"{case_id}.tif")
        nothing = lacking(made, case_id)
        assert (after[:, nothing] == -9999).all()
        assert (after[:, ~nothing] != -9999).all()
        assert np.array_equal(after.argmax(0)[~nothing], before.logits.numpy().argmax(0)[~nothing])
        shown = bands(made / "many" / "confidence" / f"{case_id}.tif")[0]
        np.testing.assert_allclose(shown[~nothing], np.exp(after.max(0))[~nothing], rtol=1e-5)
        assert (shown[nothing] == -9999).all()


def test_where_data_end_the_scene_ends(made, monkeypatch):
    """A frame without data, in fits and by windows, is as if the scene had been cut there."""
    space = slice(17, 80), slice(3, 111)
    for name in ("a", "b", "c"):
        scores, labels = bands(made / "m0" / f"{name}.tif")[:2], bands(made / "labels" / f"{name}.tif") % 2
        scores[scores == -9999] = 0.5
        framed = np.full_like(scores, -9999)
        framed[:, *space] = scores[:, *space]
        write(made / "framed" / f"{name}.tif", framed)
        write(made / "truth" / f"{name}.tif", labels, 200)
        write(made / "cut" / f"{name}.tif", scores[:, *space].copy())
        write(made / "cut_truth" / f"{name}.tif", labels[:, *space].copy(), 200)
    monkeypatch.setattr(slabs, "WINDOW_VALUES", 2 * 40 * 70)
    tables = []
    for folder, truth in (("framed", "truth"), ("cut", "cut_truth")):
        cases = segcal.open_cases(made / folder, made / truth, kind="logits")
        fitted = segcal.fit("conic", cases)
        assert {"gap_far", "share_far", "gap_image"} == set(fitted.calibrator.contexts)
        tables.append(fitted.calibrator.hats.detach().numpy())
        segcal.apply(fitted, cases, made / f"{folder}_out")
    np.testing.assert_allclose(*tables, atol=1e-4)
    for name in ("a", "b", "c"):
        one, other = (bands(made / f"{folder}_out" / f"{name}.tif") for folder in ("framed", "cut"))
        np.testing.assert_allclose(one[:, *space], other, atol=2e-5)


def test_what_is_calibrated_is_what_a_temperature_makes(made):
    fitted, cases = segcal.fit("ts", opened(made)), opened(made, labels=False)
    segcal.apply(fitted, cases, made / "out", output_kind="probs")
    scaled = np.exp(cases.read("b").logits.double().numpy() / fitted.calibrator.temperature)
    valid = ~lacking(made, "b")
    np.testing.assert_allclose(bands(made / "out" / "b.tif")[:, valid], (scaled / scaled.sum(0))[:, valid], atol=1e-6)


def test_no_score_becomes_nodata_by_chance(tmp_path, rng):
    probs = rng.random((1, *SPACE)).astype(np.float32)
    probs[0, 3:9] = 1e-7
    probs[0, :3] = 0
    write(tmp_path / "in" / "a.tif", probs, 0.0)
    fitted = fit_some("ts", rng)
    fitted.calibrator.inverse_temperature.data.fill_(40.0)
    segcal.apply(fitted, segcal.open_cases(tmp_path / "in", kind="sigmoid"), tmp_path / "out")
    found = bands(tmp_path / "out" / "a.tif")
    assert (found[0, :3] == 0).all()
    assert (found[0, 3:] != 0).all()
    assert np.array_equal(found > 0.5, probs > 0.5)


def test_members_of_different_sizes_are_refused(made, rng):
    write(made / "m1" / "b.tif", smooth(rng, (3, 91, 130)))
    fitted = segcal.fit("ts", opened(made).subset(["a", "c"]))
    found = []
    segcal.apply(fitted, opened(made, labels=False), made / "out", failed=found.append)
    assert [error.case_id for error in found] == ["b"]
    assert "has space (91, 130), but" in str(found[0])
    assert sorted(path.name for path in (made / "out").glob("*.tif")) == ["a.tif", "c.tif"]


def test_members_that_lie_apart_are_refused(made, rng):
    with rasterio.open(made / "m1" / "b.tif", "r+") as file:
        file.crs = "EPSG:32633"
    with pytest.raises(CaseError, match="another coordinate reference system"):
        opened(made).read("b")
    with rasterio.open(made / "m1" / "a.tif", "r+") as file:
        file.transform = rasterio.Affine(10, 0, 5e5 + 5, 0, -10, 5e6)
    with pytest.raises(CaseError, match=r"corners lie up to 5 units of the map apart, and 2\.5"):
        opened(made).read("a")


def test_what_is_done_is_not_done_again_and_workers_do_the_same(made):
    fitted, cases = segcal.fit("ts", opened(made)), opened(made, labels=False)
    segcal.apply(fitted, cases.subset(["a"]), made / "out")
    done = segcal.apply(fitted, cases, made / "out", workers=2)
    assert (sorted(done.written), done.already_there) == (["b", "c"], 1)
    segcal.apply(fitted, cases, made / "other")
    for name in "abc":
        assert (made / "out" / f"{name}.tif").read_bytes() == (made / "other" / f"{name}.tif").read_bytes()


@given(st.data())
def test_a_window_is_whole_tiles_within_the_bound(data):
    axes = data.draw(st.integers(1, 3))
    space = [data.draw(st.integers(1, 300)) for _ in range(axes)]
    tile = [data.draw(st.integers(1, 80)) for _ in range(axes)]
    voxels = data.draw(st.integers(1, 20_000))
    found = window_size(space, tile, voxels)
    least = [min(pair) for pair in zip(tile, space, strict=True)]
    assert np.prod(found) <= max(voxels, np.prod(least))
    for size, one, most in zip(found, tile, space, strict=True):
        assert size == most or size % one == 0
    wider = [min(2 * size, most) for size, most in zip(found, space, strict=True)]
    for axis, size in enumerate(found):
        assert wider[axis] == size or np.prod(found) // size * wider[axis] > voxels


SCRIPT = """
import ctypes, json, pathlib, sys
import segcal
from segcal.evaluation import slabs

slabs.WINDOW_VALUES = 1 << 16

def kilobytes(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

fitted = segcal.load(sys.argv[1])
for folder in json.loads(sys.argv[2]):
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    segcal.apply(fitted, segcal.open_cases(folder, kind="logits"), folder + "_out")
    print((kilobytes("VmHWM") - before) << 10)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are measured on Linux")
def test_memory_does_not_grow_with_the_scene(tmp_path, rng):
    zarr = pytest.importorskip("zarr")
    segcal.save(fit_some("conic", rng), tmp_path / "cal")
    piece, names = smooth(rng, (2, 256, 256)), []
    for name, side in (("warm", 256), ("small", 512), ("large", 1024)):
        values = np.tile(piece, (1, side // 256, side // 256))
        write(tmp_path / f"{name}-tif" / "a.tif", values, blockxsize=64, blockysize=64)
        image = {"axes": [{"name": n} for n in "cyx"], "datasets": [{"path": "0"}]}
        group = zarr.create_group(str(tmp_path / f"{name}-zarr" / "a.ome.zarr"), zarr_format=3)
        group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
        group.create_array("0", shape=values.shape, chunks=(2, 128, 128), dtype="f4")[...] = values
        names += [f"{name}-tif", f"{name}-zarr"]
    trimmed = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "cal"), json.dumps([str(tmp_path / name) for name in names])],
        capture_output=True, text=True, check=True, timeout=600, env=os.environ | trimmed,
    )  # fmt: skip
    peaks = dict(zip(names, map(int, done.stdout.split()), strict=True))
    stored = 2 * 1024 * 1024 * 4
    for form in ("tif", "zarr"):
        assert peaks[f"large-{form}"] < peaks[f"small-{form}"] + stored / 2  # 8 MB stored; whole, nine times that
        assert peaks[f"large-{form}"] < 2 * stored
