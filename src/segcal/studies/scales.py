"""ECE and mIoU over test-time scales: models are run on one scale of an image, and on several with their mean."""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor
from torch.nn import functional

from segcal.cases.base import Cases
from segcal.errors import InputError
from segcal.pooling import pool
from segcal.studies.factor import FactorData, Model, Runnable, Way, embedded_models, model_outcome
from segcal.studies.study import Outcome, Study

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
SCALE_SETS = ((1.0,), SCALES[1:4], SCALES)
INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def scales_outcome(runnables: Iterable[Runnable]) -> Outcome[FactorData]:
    """Run models on one scale, and on several with their mean."""
    return model_outcome("test_scales", "Scales", "Averaging over test-time scales", scale_ways, runnables)


def scale_ways(cases: Cases) -> dict[str, Way]:
    """Return, by their scales, ways to see one scale or several; they are the same for all cases."""
    return {", ".join(f"{scale:g}" for scale in scales): partial(over_scales, scales=scales) for scales in SCALE_SETS}


def over_scales(model: Model, scales: Sequence[float] = SCALES, pooling: str = "mean_probs") -> Model:
    """Return a model that sees an image at several scales and pools what it predicts.

    Args:
        model: sees each of the resized images.
        scales: factors on the size of the image.
        pooling: a name of :data:`segcal.POOLINGS`, of predictions that have been brought back to the image's size.
    """
    if not scales or not all(scale > 0 for scale in scales):
        raise InputError(f"scales is {tuple(scales)}, but positive factors are needed. Try (0.75, 1.0, 1.25).")

    def predict(image: Tensor) -> Tensor:
        return pool((_at_scale(model, image, scale) for scale in scales), pooling)

    return predict


def _at_scale(model: Model, image: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return model(image)
    space = image.shape[1:]
    size = [max(1, round(scale * length)) for length in space]
    how = INTERPOLATIONS[len(space)]
    resized = functional.interpolate(image[None].float(), size=size, mode=how, align_corners=False)[0]
    logits = model(resized)
    back: Tensor = functional.interpolate(logits[None], size=list(space), mode=how, align_corners=False)[0]
    return back


STUDY = Study(
    "ECE and mIoU with averaging over test-time scales", "embedded tasks, or networks of yours",
    "predicts every case ten times", False, lambda setting: scales_outcome(embedded_models(setting)), FactorData,
)  # fmt: skip
