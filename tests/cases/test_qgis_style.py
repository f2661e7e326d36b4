"""Styles of QGIS have the structure that QGIS writes: read by version 3.22 and rendered once, see docs/decisions.md."""

from xml.etree import ElementTree

from segcal.cases.qgis_style import STEPS, polygon_style, raster_style


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
    root = ElementTree.fromstring(polygon_style("probability").split("\n", 1)[1])
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
