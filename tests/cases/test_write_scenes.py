from contextlib import contextmanager
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.cases.formats.geotiff import GeoTiff
from segcal.cases.raster_file import STEPS, polygon_style, raster_style
from segcal.cases.write import ScenePart, write_scene

rasterio = pytest.importorskip("rasterio")

SPACE = (12, 17)
HALVES = [(slice(0, 5), slice(0, 17)), (slice(5, 12), slice(0, 17))]


@pytest.fixture
def made(tmp_path, rng):
    """Return a writer of one case of three classes, its log-probabilities and its confidence."""
    logits = rng.normal(size=(3, *SPACE)).astype(np.float32)
    (tmp_path / "in").mkdir()
    about = {"driver": "GTiff", "dtype": "float32", "count": 3, "height": 12, "width": 17, "crs": "EPSG:3857"}
    place = rasterio.Affine(2, 0, 7e5, 0, -2, 6e6)
    with rasterio.open(tmp_path / "in" / "a.tif", "w", transform=place, **about) as file:
        file.write(logits)
    log_probs = torch.log_softmax(torch.from_numpy(logits), 0)
    writer = CaseWriter(open_cases(tmp_path / "in", kind="logits"), tmp_path / "out")
    return writer, log_probs, log_probs.amax(0).exp().numpy()


def parts_of(log_probs, confidence):
    for where in HALVES:
        cut = (slice(None), *where)
        yield ScenePart(where, log_probs[cut], log_probs.argmax(0)[where], confidence[where])


def test_windows_make_one_file_with_its_map_and_style(made):
    writer, log_probs, confidence = made
    files = write_scene(writer, "a", parts_of(log_probs, confidence), confidence=True)
    assert [str(path.relative_to(writer.folder)) for path in files] == ["confidence/a.qml", "confidence/a.tif", "a.tif"]
    with rasterio.open(files[2]) as file, rasterio.open(files[1]) as shown:
        assert np.array_equal(file.read(), log_probs)
        assert np.array_equal(shown.read(1), confidence)
        assert (file.nodata, shown.nodata) == (None, None)
        assert shown.transform == file.transform
    assert files[0].read_text("utf-8") == raster_style()
    assert writer.done("a", confidence=True)


def test_a_file_that_reads_back_as_another_is_not_put_in_place(made, monkeypatch):
    writer, log_probs, confidence = made
    writer.verify, canvas = True, GeoTiff.canvas

    @contextmanager
    def broken(*given):
        with canvas(*given) as put:
            yield lambda where, values: put(where, np.nextafter(values, np.float32(9)))

    monkeypatch.setattr(GeoTiff, "canvas", broken)
    with pytest.raises(CaseError, match=r"case 'a': a\.tif read back has other values, but the same are needed"):
        write_scene(writer, "a", parts_of(log_probs, confidence))
    assert not list(writer.folder.glob("*.tif"))
    assert not writer.done("a")


def test_a_scene_that_fails_on_its_way_leaves_nothing(made):
    writer, log_probs, confidence = made

    def parts():
        yield next(parts_of(log_probs, confidence))
        raise CaseError("a", "it ends here")

    with pytest.raises(CaseError, match="it ends here"):
        write_scene(writer, "a", parts(), confidence=True)
    assert [path.name for path in writer.folder.iterdir()] == []


def test_a_raster_has_one_colour_per_step_up_to_infinity():
    root = ElementTree.fromstring(raster_style().split("\n", 1)[1])
    renderer = root.find("pipe/rasterrenderer")
    assert (root.tag, renderer.get("type"), renderer.get("band")) == ("qgis", "singlebandpseudocolor", "1")
    shader = renderer.find("rastershader/colorrampshader")
    assert shader.get("colorRampType") == "DISCRETE"
    ends = [float(item.get("value")) for item in shader.findall("item")]
    assert ends == [*(upper for upper, _ in STEPS[:-1]), float("inf")]
    assert [item.get("color") for item in shader] == [colour for _, colour in STEPS]


def test_polygons_have_one_symbol_per_range_and_no_gap():
    root = ElementTree.fromstring(polygon_style().split("\n", 1)[1])
    renderer = root.find("renderer-v2")
    assert (renderer.get("type"), renderer.get("attr")) == ("graduatedSymbol", "probability")
    ranges = renderer.findall("ranges/range")
    assert [float(each.get("lower")) for each in ranges] == [0.0, *(float(each.get("upper")) for each in ranges[:-1])]
    assert float(ranges[-1].get("upper")) == 1
    symbols = {each.get("name"): each for each in renderer.findall("symbols/symbol")}
    for each, (_, colour) in zip(ranges, STEPS, strict=True):
        (layer,) = symbols[each.get("symbol")].findall("layer")
        rgb = next(prop.get("v") for prop in layer.findall("prop") if prop.get("k") == "color").split(",")
        assert "#" + "".join(f"{int(part):02x}" for part in rgb[:3]) == colour
