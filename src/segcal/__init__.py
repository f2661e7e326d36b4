"""segcal: honest confidence for trained segmentation models, without changing their masks."""

from segcal.cases import ArrayCases
from segcal.errors import ArtifactError, InputError, SegcalError
from segcal.pooling import POOLINGS, pool

__version__ = "0.1.0"

__all__ = ["POOLINGS", "ArrayCases", "ArtifactError", "InputError", "SegcalError", "pool"]
