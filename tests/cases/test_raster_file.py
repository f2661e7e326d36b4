"""GeoTIFF files as GDAL has them: windows, nodata, and every byte that places a file in the world."""

import struct

import numpy as np
import pytest

from segcal.cases.raster_file import blank_of, open_raster, raster_like, raster_spacing, raster_values
from segcal.errors import InputError

rasterio = pytest.importorskip("rasterio")
from rasterio.control import GroundControlPoint  # noqa: E402
from rasterio.rpc import RPC  # noqa: E402
from rasterio.shutil import copy  # noqa: E402

# Pixel scale, tie points, transformation, GeoKeys and their numbers and texts, RPCs; GDAL's metadata and nodata.
TAGS = (33550, 33922, 34264, 34735, 34736, 34737, 50844, 42112, 42113)
SPACE = (70, 110)
PLACES = {
    "utm": {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)},
    "degrees": {"crs": "EPSG:4326", "transform": rasterio.Affine(1e-4, 0, 9.1, 0, -1e-4, 45.3)},
    "rotated": {"crs": "EPSG:3857", "transform": rasterio.Affine(3, 1, 7e5, 1, -3, 6e6)},
    "feet": {"crs": "EPSG:2263", "transform": rasterio.Affine(2, 0, 9.8e5, 0, -2, 2e5)},
    "gcps": {
        "crs": "EPSG:4326",
        "gcps": [GroundControlPoint(*each) for each in ((0, 0, 9, 45, 1), (0, 110, 9.5, 45, 2), (70, 0, 9, 44, 3.0))],
    },
    "rpcs": {},
    "nowhere": {},
}
COEFFICIENTS = [1.0, *(round(k / 7, 12) for k in range(19))]  # as suppliers write them: a text
FACTORS = [f"{name}_{what}" for name in ("height", "lat", "line", "long", "samp") for what in ("off", "scale")]
RPCS = RPC(
    **{name: 3.25 + number for number, name in enumerate(FACTORS)},
    **{f"{name}_{what}_coeff": COEFFICIENTS for name in ("line", "samp") for what in ("num", "den")},
    err_bias=0.5, err_rand=0.25,
)  # fmt: skip


def make(path, values, place="utm", nodata=-9999.0, levels=(), tags=None, **about):
    about = {"driver": "GTiff", "count": len(values), "height": SPACE[0], "width": SPACE[1], **PLACES[place], **about}
    with rasterio.open(path, "w", dtype=values.dtype, nodata=nodata, **about) as file:
        file.update_tags(**{"SENSOR": "S2", "AREA_OR_POINT": "Area"} | (tags or {}))
        file.set_band_description(1, "water")
        if place == "rpcs":
            file.rpcs = RPCS
        file.write(values)
        if levels:
            file.build_overviews(levels, rasterio.enums.Resampling.average)


def raw_tags(path):
    """Return the bytes of the tags of the first directory, read by nothing but the specification of TIFF."""
    content = path.read_bytes()
    assert content[:2] == b"II"
    large = content[2] == 43
    word, count = ("<Q", 8) if large else ("<I", 4)
    number = lambda at, kind: struct.unpack_from(kind, content, at)[0]  # noqa: E731
    at = number(8 if large else 4, word)
    entries, at = (number(at, "<Q"), at + 8) if large else (number(at, "<H"), at + 2)
    sizes = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 12: 8, 16: 8}
    found = {}
    for entry in range(at, at + entries * (4 + 2 * count), 4 + 2 * count):
        tag, kind, values = number(entry, "<H"), number(entry + 2, "<H"), number(entry + 4, word)
        length, place = sizes.get(kind, 1) * values, entry + 4 + count
        place = place if length <= count else number(place, word)
        found[tag] = content[place : place + length]
    return {tag: found[tag] for tag in TAGS if tag in found}


@pytest.fixture
def values(rng):
    return rng.normal(size=(3, *SPACE)).astype(np.float32)


def write_like(source, target, values, blank, tile=(16, 40)):
    with raster_like(source, target, len(values), values.dtype, blank) as put:
        for row in range(0, SPACE[0], tile[0]):
            for column in range(0, SPACE[1], tile[1]):
                where = (slice(row, min(row + tile[0], SPACE[0])), slice(column, min(column + tile[1], SPACE[1])))
                put(where, values[(slice(None), *where)])


@pytest.mark.parametrize(
    ("place", "layout"),
    [
        *((place, "COG") for place in PLACES),
        *((place, "strips") for place in ("utm", "gcps", "rpcs")),
        *((place, "tiles") for place in ("rotated", "nowhere")),
    ],
)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_what_places_a_file_in_the_world_is_the_same_bytes(place, layout, values, tmp_path):
    tiled = {} if layout == "strips" else {"tiled": True, "blockxsize": 32, "blockysize": 16}
    make(tmp_path / "a.tif", values, place, levels=() if layout == "strips" else (2, 4), **tiled, compress="lzw")
    source = tmp_path / "a.tif"
    if layout == "COG":
        source = tmp_path / "cog.tif"
        copy(
            tmp_path / "a.tif", source, driver="COG", blocksize=128, compress="deflate", overviews="FORCE_USE_EXISTING"
        )
    write_like(source, tmp_path / "out.tif", -values, -9999.0)
    before, after = raw_tags(source), raw_tags(tmp_path / "out.tif")
    assert before == after
    assert 42113 in before
    assert {34735: place not in ("rpcs", "nowhere"), 50844: place == "rpcs"} == {
        tag: tag in before for tag in (34735, 50844)
    }
    with rasterio.open(source) as one, rasterio.open(tmp_path / "out.tif") as other:
        assert np.array_equal(other.read(), -values)
        same = ("transform", "crs", "nodata", "shape", "block_shapes", "descriptions", "compression", "interleaving")
        for name in same:
            assert getattr(one, name) == getattr(other, name), name
        assert repr((one.gcps, one.rpcs)) == repr((other.gcps, other.rpcs))
        assert one.tags() == other.tags()
        layouts = [file.tags(ns="IMAGE_STRUCTURE").get("LAYOUT") for file in (one, other)]
        assert layouts == ["COG" if layout == "COG" else None] * 2
        assert [one.overviews(k) for k in (1, 2, 3)] == [other.overviews(k) for k in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("out", ".out"))) == ["out.tif"]


def test_pixels_of_an_overview_are_pixels_of_the_scene_and_points_stay_points(values, tmp_path):
    make(tmp_path / "a.tif", values, levels=(2,), tags={"AREA_OR_POINT": "Point"})
    write_like(tmp_path / "a.tif", tmp_path / "out.tif", values, -9999.0)
    assert raw_tags(tmp_path / "a.tif") == raw_tags(tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif", overview_level=0) as small:
        found = small.read()
    blocks = values.reshape(3, 35, 2, 55, 2)
    assert found.shape == (3, 35, 55)
    assert (blocks == found[:, :, None, :, None]).any(axis=(2, 4)).all()


@pytest.mark.parametrize("nodata", [-9999.0, float("nan"), 0.0])
def test_a_pixel_without_data_is_one_where_any_band_has_none(nodata, values, tmp_path):
    values[0, 3, 5] = values[1, 7] = nodata
    make(tmp_path / "a.tif", values, nodata=nodata)
    expected = np.ones(SPACE, bool)
    expected[3, 5] = expected[7] = False
    with open_raster(tmp_path / "a.tif") as file:
        found, valid = raster_values(file, (slice(2, 9), slice(4, 50)))
        assert np.array_equal(found, values[:, 2:9, 4:50], equal_nan=True)
        assert np.array_equal(valid, expected[2:9, 4:50])
        assert np.array_equal(blank_of(file), nodata, equal_nan=True)


def test_the_mask_of_a_file_says_where_data_are(values, tmp_path):
    make(tmp_path / "a.tif", values, nodata=None)
    with open_raster(tmp_path / "a.tif") as file:
        assert raster_values(file)[1] is None
        assert blank_of(file) is None
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(tmp_path / "a.tif", "r+") as file:
        file.write_mask(np.arange(SPACE[1]) >= 4 * np.ones(SPACE))
    with open_raster(tmp_path / "a.tif") as file:
        assert np.array_equal(raster_values(file)[1], np.arange(SPACE[1]) >= 4 * np.ones(SPACE))
        assert np.isnan(blank_of(file))


def test_scaled_integers_are_read_as_what_they_mean(tmp_path):
    stored = np.arange(np.prod(SPACE), dtype=np.uint32).reshape(1, *SPACE).astype(np.uint8)
    make(tmp_path / "a.tif", stored, nodata=255)
    with rasterio.open(tmp_path / "a.tif", "r+") as file:
        file.scales, file.offsets = [1 / 250], [0.125]
    with open_raster(tmp_path / "a.tif") as file:
        found, valid = raster_values(file)
    np.testing.assert_allclose(found[valid[None]], (stored / 250 + 0.125)[stored < 255], rtol=1e-6)
    assert np.array_equal(valid, stored[0] < 255)


@pytest.mark.parametrize(
    ("place", "sizes"),
    [("utm", (1e4, 1e4)), ("degrees", None), ("rotated", (10**3.5, 10**3.5)), ("feet", (2 * 304.8006, 2 * 304.8006))],
)
def test_the_size_of_a_pixel_is_in_millimetres(place, sizes, values, tmp_path):
    make(tmp_path / "a.tif", values, place)
    with open_raster(tmp_path / "a.tif") as file:
        found = raster_spacing(file)
        assert found == sizes if sizes is None else found == pytest.approx(sizes)


def test_lossy_compression_does_not_come_back(values, tmp_path):
    make(tmp_path / "a.tif", (np.abs(values) * 50).astype(np.uint8), nodata=None, compress="jpeg")
    write_like(tmp_path / "a.tif", tmp_path / "out.tif", values, None)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.compression.name == "deflate"
        assert np.array_equal(file.read(), values)


def test_what_is_no_number_or_does_not_fit_in_memory_is_refused(values, tmp_path, monkeypatch):
    make(tmp_path / "a.tif", values.astype("complex64"), nodata=None)
    match = "bands of complex64, complex64, complex64, but one type"
    with pytest.raises(InputError, match=match), open_raster(tmp_path / "a.tif"):
        pass
    make(tmp_path / "a.tif", values, compress="deflate", blockysize=SPACE[0])
    monkeypatch.setattr("segcal.cases.safe_io.memory_limit", lambda: 50_000)
    with pytest.raises(InputError, match=r"a\.tif needs .* GiB, but at most"), open_raster(tmp_path / "a.tif"):
        pass
