"""Styles of QGIS for confidence: a file ``NAME.qml`` beside ``NAME.tif`` or ``NAME.geojson``, which is loaded with it.

Colours go from red (a guess between two classes) over yellow to blue (sure), which colour-blind readers tell apart.
What lies below 0.5 has one colour, as nothing there is decided by much.
"""

from itertools import pairwise
from xml.etree import ElementTree

# Upper end of each step, and its colour.
STEPS = ((0.5, "#a50026"), (0.7, "#f46d43"), (0.8, "#fdae61"), (0.9, "#fee090"), (0.95, "#abd9e9"), (1.0, "#4575b4"))
_HEAD = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


def raster_style() -> str:
    """Return the style of a map of confidence, band 1 of a raster."""
    root = ElementTree.Element("qgis", version="3.22", styleCategories="Symbology")
    pipe = ElementTree.SubElement(root, "pipe")
    about = {"type": "singlebandpseudocolor", "band": "1", "opacity": "1", "alphaBand": "-1", "nodataColor": ""}
    renderer = ElementTree.SubElement(pipe, "rasterrenderer", about, classificationMin="0", classificationMax="1")
    shader = ElementTree.SubElement(ElementTree.SubElement(renderer, "rastershader"), "colorrampshader")
    shader.attrib.update({"colorRampType": "DISCRETE", "classificationMode": "1", "clip": "0"})
    for (upper, colour), label in zip(STEPS, _labels(), strict=True):
        end = "inf" if upper == 1 else f"{upper}"
        ElementTree.SubElement(shader, "item", value=end, color=colour, alpha="255", label=label)
    return _text(root)


def polygon_style(attribute: str = "probability") -> str:
    """Return the style of polygons that have a probability each."""
    root = ElementTree.Element("qgis", version="3.22", styleCategories="Symbology")
    about = {"type": "graduatedSymbol", "attr": attribute, "graduatedMethod": "GraduatedColor", "symbollevels": "0"}
    renderer = ElementTree.SubElement(root, "renderer-v2", about)
    ranges, symbols = (ElementTree.SubElement(renderer, name) for name in ("ranges", "symbols"))
    lower = 0.0
    for number, ((upper, colour), label) in enumerate(zip(STEPS, _labels(), strict=True)):
        range_of = {"lower": f"{lower}", "upper": f"{upper}", "symbol": f"{number}", "label": label, "render": "true"}
        ElementTree.SubElement(ranges, "range", range_of)
        symbol = ElementTree.SubElement(symbols, "symbol", type="fill", name=f"{number}", alpha="0.7")
        layer = ElementTree.SubElement(
            symbol, "layer", {"class": "SimpleFill", "enabled": "1", "locked": "0", "pass": "0"}
        )
        rgb = ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
        for key, value in {"color": f"{rgb},255", "style": "solid", "outline_color": "35,35,35,255"}.items():
            ElementTree.SubElement(layer, "prop", k=key, v=value)
        lower = upper
    return _text(root)


def _labels() -> list[str]:
    ends = [0.0, *(upper for upper, _ in STEPS)]
    return [f"{low:g} to {high:g}" for low, high in pairwise(ends)]


def _text(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return _HEAD + ElementTree.tostring(root, encoding="unicode") + "\n"
