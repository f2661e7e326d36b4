"""ECE and mIoU by crop size: models are run on crops of the input, laid side by side."""

from collections.abc import Iterable
from functools import partial
from itertools import product

from torch import Tensor

from segcal.cases.base import Cases
from segcal.errors import InputError
from segcal.studies.factor import FactorData, Model, Runnable, Way, embedded_models, model_outcome
from segcal.studies.study import Outcome, Study

# Shares of the shorter in-plane side of an image that crops have.
SHARES = (0.25, 0.5, 0.75, 1.0)


def crop_outcome(runnables: Iterable[Runnable]) -> Outcome[FactorData]:
    """Run models on crops."""
    return model_outcome("crop_size", "Crop", "Crop size of the input", crop_ways, runnables)


def crop_ways(cases: Cases) -> dict[str, Way]:
    """Return, by their size, ways to see crops; the sizes are shares of the first case's shorter in-plane side."""
    space = cases.read(cases.ids[0]).logits.shape[1:]
    side = min(space[-2:]) if len(space) > 1 else space[0]
    sizes = sorted({max(8, round(share * side)) for share in SHARES})
    return {str(size): partial(in_crops, size=size) for size in sizes}


def in_crops(model: Model, size: int) -> Model:
    """Return a model that sees crops of `size` voxels along each axis, laid side by side.

    The last crop along an axis ends where the image ends, so that every crop is full; where it overlaps the one
    before, its own prediction counts. Axes shorter than `size` are taken whole.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"size is {size!r}, but a count of voxels of at least 1 is needed. Try 64.")

    def predict(image: Tensor) -> Tensor:
        space = image.shape[1:]
        starts = [[*range(0, length - size, size), length - size] if length > size else [0] for length in space]
        whole: Tensor | None = None
        for corner in product(*starts):
            part = (slice(None), *(slice(start, start + size) for start in corner))
            logits = model(image[part])
            whole = logits.new_empty(len(logits), *space) if whole is None else whole
            whole[part] = logits
        assert whole is not None
        return whole

    return predict


STUDY = Study(
    "ECE and mIoU by crop size of the input", "embedded tasks, or networks of yours", "predicts every case four times",
    False, lambda setting: crop_outcome(embedded_models(setting)), FactorData,
)  # fmt: skip
