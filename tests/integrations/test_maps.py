"""Polygons of maps, against components that are counted by hand and a reader that is not ours."""

import json

import numpy as np
import pytest

import segcal
from segcal.errors import InputError

rasterio = pytest.importorskip("rasterio")
from rasterio import features, warp  # noqa: E402

SPACE = (40, 55)
PLACE = rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)


@pytest.fixture
def made(tmp_path, rng):
    from scipy.ndimage import gaussian_filter

    scores = (12 * gaussian_filter(rng.normal(size=(3, *SPACE)), (0, 2, 2))).astype(np.float32)
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(0)
    fitted = segcal.fit("ts", scores[None], labels[None])
    scores[:, :7, :9] = -9999

    def write(crs="EPSG:32632"):
        about = {"driver": "GTiff", "dtype": "float32", "count": 3, "height": SPACE[0], "width": SPACE[1]}
        (tmp_path / "in").mkdir(exist_ok=True)
        with rasterio.open(tmp_path / "in" / "a.tif", "w", crs=crs, transform=PLACE, nodata=-9999, **about) as file:
            file.write(scores)
        return segcal.open_cases(tmp_path / "in", kind="logits", class_names=["sea", "open land", "forest"])

    return fitted, scores, write, tmp_path / "out"


def flood(on):
    """Return the pixels of every connected part, found by walking from pixel to pixel."""
    left, parts = set(zip(*map(list, np.nonzero(on)), strict=True)), []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            part.add((row, column))
            near = {(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)} & left
            left -= near
            edge += near
        parts.append(frozenset(part))
    return set(parts)


def test_every_connected_part_has_its_mean_probability_class_and_area(made):
    fitted, scores, write, out = made
    files = segcal.view(fitted, write(), out, to="geojson")
    assert [path.name for path in files] == ["a.qml", "a.geojson"]
    valid = scores[0] != -9999
    scaled = np.exp(np.where(valid, scores, 0) / fitted.calibrator.temperature)
    probs = scaled / scaled.sum(0)
    expected = {
        (number, part): np.mean([probs[number][pixel] for pixel in part])
        for number in (1, 2)
        for part in flood((scores.argmax(0) == number) & valid)
    }
    found = {}
    for feature in json.loads(files[1].read_text())["features"]:
        about = feature["properties"]
        back = warp.transform_geom("EPSG:4326", "EPSG:32632", feature["geometry"])
        inside = features.rasterize([back], SPACE, transform=PLACE)
        part = frozenset(zip(*map(list, np.nonzero(inside)), strict=True))
        found[["sea", "open land", "forest"].index(about["class"]), part] = about["probability"]
        assert (about["pixels"], about["area"]) == (len(part), pytest.approx(100 * len(part)))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-5)


def test_a_reader_of_vectors_reads_them(made):
    pyogrio = pytest.importorskip("pyogrio")
    fitted, _, write, out = made
    path = segcal.view(fitted, write(), out, to="geojson")[1]
    about, _, shapes, values = pyogrio.raw.read(path)
    assert (about["crs"], about["geometry_type"]) == ("EPSG:4326", "Polygon")
    assert list(about["fields"]) == ["class", "probability", "pixels", "area"]
    assert len(shapes) == len(json.loads(path.read_text())["features"])
    assert ((values[1] > 1 / 3) & (values[1] <= 1)).all()


def test_a_map_without_a_reference_system_is_refused(made):
    fitted, _, write, out = made
    with pytest.raises(
        InputError, match="has no coordinate reference system, but GeoJSON is in longitude and latitude"
    ):
        segcal.view(fitted, write(None), out, to="geojson")


def test_arrays_are_no_maps(made, tmp_path, rng):
    fitted = made[0]
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "a.npy", rng.normal(size=(3, *SPACE)).astype(np.float32))
    with pytest.raises(InputError, match="the cases are npy files, but polygons lie on a map"):
        segcal.view(fitted, segcal.open_cases(tmp_path / "npy", kind="logits"), tmp_path / "out", to="geojson")
