"""The file formats that segcal reads and writes, by the name a user declares."""

from segcal.cases.formats.base import Format, FormatFacts, Header, Options, Stored
from segcal.cases.formats.geotiff import GeoTiff
from segcal.cases.formats.nifti import Nifti, NiftiClasses
from segcal.cases.formats.nnunet import Nnunet
from segcal.cases.formats.npy import Npy, Npz
from segcal.cases.formats.ome_zarr import OmeZarr
from segcal.cases.formats.safetensors import Safetensors
from segcal.cases.formats.store import Store
from segcal.cases.formats.zarr import Zarr

FORMATS: dict[str, type[Format]] = {
    "npy": Npy,
    "npz": Npz,
    "nifti": Nifti,
    "nifti_classes": NiftiClasses,
    "zarr": Zarr,
    "safetensors": Safetensors,
    "nnunet": Nnunet,
    "store": Store,
    "geotiff": GeoTiff,
    "ome-zarr": OmeZarr,
}

__all__ = ["FORMATS", "Format", "FormatFacts", "Header", "Options", "Stored"]
