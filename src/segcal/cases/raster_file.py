"""GeoTIFF files, opened with rasterio after what they declare has been checked; read and written window by window.

Arrays are (bands, rows, columns). The georeference (transform and CRS, ground control points, RPCs, the value for
nodata, tags) is copied from file to file and compared after writing. A cloud-optimised file (COG) becomes one again. A
file with overviews gets overviews of the same sizes, whose pixels are pixels of the scene: a mean of scores is nobody's
prediction. Lossy compression becomes deflate.

A pixel without data is one where any band has the declared value, or where the mask of the file says so.

A style of QGIS is a file ``NAME.qml`` beside ``NAME.tif`` or ``NAME.geojson``, which is loaded with it. Its colours of
confidence go from red (a guess between two classes) over yellow to blue (sure), which colour-blind readers tell apart.
What lies below 0.5 has one colour, as nothing there is decided by much.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from segcal.atomic import naming
from segcal.cases.nifti_file import usable_spacing
from segcal.cases.safe_io import NUMBERS, check_used, used_bytes
from segcal.documents import reading
from segcal.errors import InputError, load_extra

EXTENSIONS = (".tif", ".tiff")
Where = tuple[slice, ...]
Put = Callable[[Where, np.ndarray], None]
# Megabytes of blocks that the library keeps, instead of a share of the machine.
CACHE = 64
LOSSLESS = {"NONE", "DEFLATE", "LZW", "ZSTD", "LZMA", "PACKBITS", "LERC", "LERC_DEFLATE", "LERC_ZSTD"}
PREDICTORS = {"2": "STANDARD", "3": "FLOATING_POINT"}
# Domains of tags that belong to the file and not to the scene, or are carried in another way.
_OWN = ("IMAGE_STRUCTURE", "DERIVED_SUBDATASETS", "RPC")
# Upper end of each step, and its colour.
STEPS = ((0.5, "#a50026"), (0.7, "#f46d43"), (0.8, "#fdae61"), (0.9, "#fee090"), (0.95, "#abd9e9"), (1.0, "#4575b4"))
_HEAD = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"


@contextmanager
def _library(path: Path) -> Iterator[Any]:
    rasterio = load_extra("rasterio", "geo")
    with rasterio.Env(GDAL_CACHEMAX=CACHE), warnings.catch_warnings():
        # A prediction may have no geographic position, and matrices of scores are no images.
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield rasterio


@contextmanager
def open_raster(path: Path) -> Iterator[Any]:
    """Open a GeoTIFF file whose blocks fit in memory."""
    with _library(path) as rasterio, reading(path):
        with path.open("rb"):  # what is missing is said in our words
            pass
        with rasterio.open(path, driver="GTiff") as file:
            kinds = {np.dtype(kind) for kind in file.dtypes}
            if len(kinds) > 1 or next(iter(kinds)).kind not in NUMBERS:
                raise InputError(f"{path} has bands of {', '.join(file.dtypes)}, but one type of numbers is needed.")
            bands = file.count if file.interleaving is not None and file.interleaving.name == "pixel" else 1
            check_used(path, used_bytes((bands, *file.block_shapes[0]), np.dtype(file.dtypes[0])))
            yield file


def raster_values(file: Any, where: Where | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a window ``(bands, rows, columns)``, scaled if the file says so, and where there are data, if it says that.

    Values where there are none are as stored.
    """
    window = None if where is None else tuple((one.start, one.stop) for one in where)
    values = file.read(window=window)
    valid = None
    if file.nodata is not None:
        nodata = np.asarray(file.nodata).astype(values.dtype)
        valid = ~(np.isnan(values) if np.isnan(nodata) else values == nodata).any(axis=0)
    elif any(flag.name == "per_dataset" for flag in file.mask_flag_enums[0]):
        valid = file.read_masks(1, window=window) != 0
    if set(file.scales) != {1.0} or set(file.offsets) != {0.0}:
        scale, offset = (np.array(each, np.float32)[:, None, None] for each in (file.scales, file.offsets))
        values = values.astype(np.float32) * scale + offset
    return values, valid


def blank_of(file: Any) -> float | None:
    """Return the value of pixels without data, NaN where a mask says which they are; None where all have data."""
    masked = any(flag.name == "per_dataset" for flag in file.mask_flag_enums[0])
    return float(file.nodata) if file.nodata is not None else float("nan") if masked else None


def raster_spacing(file: Any) -> tuple[float, float] | None:
    """Return the size of a pixel in millimetres along rows and columns; None where the CRS has degrees, or is none."""
    if file.crs is None or not file.crs.is_projected:
        return None
    there, metres = file.transform, 1e3 * file.crs.linear_units_factor[1]
    sizes = usable_spacing([np.hypot(there.b, there.e) * metres, np.hypot(there.a, there.d) * metres], 2)
    return None if sizes is None else (sizes[0], sizes[1])


@contextmanager
def raster_like(
    source: Path, path: Path, bands: int, dtype: np.dtype[Any], blank: float | None, overviews: bool = True
) -> Iterator[Put]:
    """Give what writes windows of a new file that lies where another one does, and is arranged like it."""
    with open_raster(source) as like, _library(path) as rasterio:
        about, (height, width) = like.tags(ns="IMAGE_STRUCTURE"), like.block_shapes[0]
        optimised, packed = about.get("LAYOUT") == "COG", about.get("COMPRESSION", "NONE")
        packing = {"compress": packed if packed in LOSSLESS else "DEFLATE"}
        facts = {"width": like.width, "height": like.height, "count": bands, "dtype": dtype.name, "nodata": blank}
        place = {"crs": like.crs} | ({} if like.transform.is_identity else {"transform": like.transform})
        if like.gcps[0]:
            place = {"gcps": like.gcps[0], "crs": like.gcps[1]}
        arranged = {"interleave": about.get("INTERLEAVE", "PIXEL"), "BIGTIFF": "IF_SAFER", "blockysize": height}
        arranged |= {"tiled": True, "blockxsize": width} if like.profile.get("tiled") else {}
        predictor = about.get("PREDICTOR") if packing["compress"] in ("DEFLATE", "LZW", "ZSTD") else None
        arranged |= {} if predictor is None else {"predictor": predictor}
        first = path.with_name(f".{path.name}") if optimised else path
        with (
            naming(path),
            rasterio.open(first, "w", driver="GTiff", **facts, **place, **packing, **arranged) as made,
        ):
            _carry(like, made)
            yield lambda where, values: made.write(values, window=tuple((one.start, one.stop) for one in where))
            levels = like.overviews(1) if overviews else []
            if levels:
                made.build_overviews(levels, rasterio.enums.Resampling.nearest)
        if optimised:
            packing |= {"predictor": PREDICTORS.get(predictor or "", "NO"), "blocksize": width}
            kept = "FORCE_USE_EXISTING" if levels else "NONE"
            load_extra("rasterio.shutil", "geo").copy(
                first, path, driver="COG", overviews=kept, resampling="NEAREST", bigtiff="IF_SAFER", **packing
            )
            first.unlink()
        check_place(like, path)


def _carry(like: Any, made: Any) -> None:
    """Carry what a file says beside its values; statistics are those of other values."""
    for domain in [None, *(name for name in like.tag_namespaces() if name not in _OWN and "xml:" not in name)]:
        made.update_tags(ns=domain, **like.tags(ns=domain))
    if like.rpcs is not None:
        made.rpcs = like.rpcs
    for band in like.indexes if like.count == made.count else ():
        made.update_tags(band, **{key: text for key, text in like.tags(band).items() if "STATISTICS_" not in key})
        if like.descriptions[band - 1]:
            made.set_band_description(band, like.descriptions[band - 1])


def check_place(like: Any, path: Path) -> None:
    """Refuse a file that does not lie where the one lies that it was made like."""
    with open_raster(path) as made:
        for name in ("shape", "transform", "crs", "gcps", "rpcs"):
            one, other = (repr(getattr(each, name)) for each in (like, made))
            if one != other:
                raise InputError(
                    f"{path.name} read back has the {name} {other[:200]}, but {one[:200]} is to be kept. This is a "
                    "fault of the library or of segcal: nothing was written."
                )


def raster_style() -> str:
    """Return the style of a map of confidence, band 1 of a raster."""
    item = '\n<item value="{}" color="{}" alpha="255" label="{:g} to {:g}"/>'
    items = "".join(item.format("inf" if high == 1 else high, colour, low, high) for low, high, colour, _ in _steps())
    return f"""{_HEAD}<qgis version="3.22" styleCategories="Symbology"><pipe>
<rasterrenderer type="singlebandpseudocolor" band="1" opacity="1" alphaBand="-1" nodataColor=""
 classificationMin="0" classificationMax="1">
<rastershader><colorrampshader colorRampType="DISCRETE" classificationMode="1" clip="0">{items}
</colorrampshader></rastershader></rasterrenderer></pipe></qgis>
"""


def polygon_style() -> str:
    """Return the style of polygons that have a probability each."""
    each = '\n<range lower="{}" upper="{}" symbol="{}" label="{:g} to {:g}" render="true"/>'
    ranges = "".join(each.format(low, high, k, low, high) for k, (low, high, _, _) in enumerate(_steps()))
    symbol = """
<symbol type="fill" name="{}" alpha="0.7"><layer class="SimpleFill" enabled="1" locked="0" pass="0">
<prop k="color" v="{},255"/><prop k="style" v="solid"/><prop k="outline_color" v="35,35,35,255"/></layer></symbol>"""
    symbols = "".join(symbol.format(k, rgb) for k, (_, _, _, rgb) in enumerate(_steps()))
    return f"""{_HEAD}<qgis version="3.22" styleCategories="Symbology">
<renderer-v2 type="graduatedSymbol" attr="probability" graduatedMethod="GraduatedColor" symbollevels="0">
<ranges>{ranges}
</ranges><symbols>{symbols}
</symbols></renderer-v2></qgis>
"""


def _steps() -> Iterator[tuple[float, float, str, str]]:
    """Yield both ends of each step, and its colour as HTML and as numbers."""
    for (low, _), (high, colour) in pairwise([(0.0, ""), *STEPS]):
        yield low, high, colour, ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
