"""All tables of one case, from one pass over its voxels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.checks import as_tensor, check_floating, check_labels
from segcal.errors import InputError
from segcal.kernels.raw_tables import Layout, Map, RawTables
from segcal.kernels.reliability import count_images as count_raw
from segcal.kernels.reliability import count_voxels
from segcal.raters import Votes
from segcal.statistics.additive import FIXED, PER_CASE, AdditiveTable, Confusion, Flips, FreeEnergy, Likelihood, Ranking
from segcal.statistics.boundary import Bands, LabelBands
from segcal.statistics.raters import RaterTable, bands_of, count_votes, rater_table
from segcal.statistics.reliability import Curve, curves_by_band, curves_by_region
from segcal.statistics.surface import Surface
from segcal.statistics.voxel_sample import VoxelSample
from segcal.types import IGNORED

BINS = (50, 15)
CLASS_BINS = 15
# How far the probabilities of a voxel may miss a sum of 1, in the log domain: stored half floats miss it by their
# rounding, computed ones hardly; unnormalised scores miss it by far more.
NORMALISED = {torch.float16: 0.02, torch.bfloat16: 0.1, torch.float32: 1e-3, torch.float64: 1e-3}


@dataclass(frozen=True)
class CaseTables(AdditiveTable):
    """The tables of one case, or of several added up; None for what was not asked for."""

    num_classes: Annotated[int, FIXED]
    likelihood: Likelihood
    confusion: Confusion
    reliability: dict[int, dict[str, Curve]]  # by the number of bins and the region
    classwise: dict[str, Curve] | None  # by region (all, foreground, union): (classes, bins), each class's probability
    ranking: Ranking
    free_energy: FreeEnergy | None = None  # None for log-probabilities
    flips: Flips | None = None  # None without a reference prediction
    bands: Bands | None = None
    surface: Annotated[Surface | None, PER_CASE] = None
    sample: VoxelSample | None = None
    raters: RaterTable | None = None  # of several raters: then counts are of votes, and sums in units of all of a voxel

    @property
    def votes(self) -> int:
        """The votes that a voxel can have, 1 of one rater."""
        return 1 if self.raters is None else sum(self.raters.weights)

    @property
    def voxels(self) -> int:
        """The voxels that count; one that lacks votes counts by its share."""
        return self.likelihood.voxels // self.votes


class Counted(NamedTuple):
    """The tables of a case and, if it was asked for, its prediction ``(*space)``, int16."""

    tables: CaseTables
    prediction: np.ndarray | None


def count_logits(
    logits: Tensor,
    labels: Tensor,
    bins: Sequence[int] = BINS,
    class_bins: int = CLASS_BINS,
    bands: LabelBands | None = None,
    reference: np.ndarray | None = None,
    predict: bool = False,
    normalised: bool = False,
    votes: Votes | None = None,
) -> Counted:
    """Count one case from raw scores.

    Args:
        logits: ``(classes, *space)``, of any floating type, on any device; read as they are.
        labels: ``(*space)``, class indices; :data:`segcal.types.IGNORED` does not count.
        bins: the numbers of bins of confidence.
        class_bins: the number of bins of each class's probability; 0 to leave the class-wise tables out.
        bands: the bands of the label map (:func:`segcal.statistics.boundary.find_bands`).
        reference: the prediction to compare with, ``(*space)``; it stays where no class is strictly above it.
        predict: also return the prediction.
        normalised: the scores must be log-probabilities; they have no free energy.
        votes: of several raters; `labels` are then their majority, which bands and masks are about.

    >>> z = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]])
    >>> count_logits(z, torch.tensor([0, 1, 0])).tables.confusion.count
    array([[1, 1],
           [0, 1]])
    """
    name = "log_probs" if normalised else "logits"
    scores = as_tensor(logits, name)
    check_floating(scores, name)
    if scores.ndim < 1 or scores.shape[0] < 2:
        raise InputError(
            f"{name} has shape {tuple(scores.shape)}, but (classes, *space) with at least 2 classes is needed. "
            "Classes are the first axis of a case."
        )
    _check_bins(bins, class_bins)
    num_classes, *space = scores.shape
    y, old = _labels(labels, "labels", space, num_classes, IGNORED), None
    if reference is not None:
        old = _labels(reference, "reference", space, num_classes, None).reshape(-1).numpy().astype(np.int16, copy=False)
    layout = Layout(num_classes, tuple(bins), class_bins, 1 if bands is None else len(bands.edges) + 1)
    prediction = np.empty(y.numel(), np.int16) if predict or votes is not None else None
    codes, voxels = None if bands is None else bands.code, None
    if votes is None:
        raw = count_voxels(scores, y, layout, codes, old, prediction)
    else:

        def count(z: Tensor, own: Tensor, code: Map, before: Map, whole: bool) -> RawTables:
            return count_voxels(z, own, layout, code, before, prediction if whole else None)

        raw, voxels = count_votes(scores, votes, count, codes, old)
        bands = None if bands is None else bands_of(bands, votes)
    tables = _tables(raw, bins, bands, reference is not None)
    if votes is not None and prediction is not None:
        sums = None if tables.classwise is None else tables.classwise["all"].confidence.sum(-1)
        tables = replace(tables, raters=rater_table(votes, prediction, tables.likelihood, sums, voxels or 0))
    if not normalised:
        tables = _with_energy(tables, raw, voxels)
    elif raw.offset[0] > NORMALISED[scores.dtype]:
        raise InputError(
            f"log_probs has a voxel whose logsumexp over classes is off zero by {raw.offset[0]:.3g}, but "
            "log-probabilities are normalised. Take torch.log_softmax over classes, or use count_logits for raw scores."
        )
    return Counted(tables, None if prediction is None else prediction.reshape(space))


def count_images(
    logits: Tensor, labels: Tensor, bins: Sequence[int] = BINS, class_bins: int = CLASS_BINS
) -> list[CaseTables]:
    """Count each image of finite logits ``(images, classes, *space)``, with labels that are usable, as one case."""
    _check_bins(bins, class_bins)
    found = count_raw(logits, labels, Layout(logits.shape[1], tuple(bins), class_bins))
    return [_with_energy(_tables(raw, bins, None, False), raw) for raw in found]


def _with_energy(tables: CaseTables, raw: RawTables, voxels: int | None = None) -> CaseTables:
    voxels = raw.voxels() if voxels is None else voxels
    return replace(tables, free_energy=FreeEnergy(voxels, float(raw.energy[0]), float(raw.energy[1])))


def _labels(labels: object, name: str, space: list[int], num_classes: int, ignore: int | None) -> Tensor:
    """Return class indices as they are if they are usable; only others are copied, and refused or converted."""
    y = as_tensor(labels, name)
    low = 0 if ignore is None else IGNORED
    usable = y.dtype in (torch.int64, torch.int16) and [*y.shape] == space
    if usable and (y.numel() == 0 or (int(y.min()) >= low and int(y.max()) < num_classes)):
        return y if name == "reference" else y.to(torch.int64)
    return check_labels(y, name, space, num_classes, ignore)


def _check_bins(bins: Sequence[int], class_bins: int) -> None:
    """Refuse numbers of bins that are none."""
    for count in bins:
        if not isinstance(count, int) or not 1 <= count <= 100_000:
            raise InputError(
                f"bins contains {count!r}, but whole numbers from 1 to 100000 are needed. The paper uses 50."
            )
    if not bins or not isinstance(class_bins, int) or not 0 <= class_bins <= 10_000:
        raise InputError(
            f"bins is {tuple(bins)} and class_bins is {class_bins!r}, but at least one number of bins, and class_bins "
            "from 0 to 10000, are needed. Pass for example bins=(50, 15), class_bins=15."
        )


def _tables(raw: RawTables, bins: Sequence[int], bands: LabelBands | None, compared: bool) -> CaseTables:
    voxels = raw.voxels()
    starts = np.cumsum([0, *bins])
    cells = {n: (raw.cells[..., a : a + n], raw.confidence[..., a : a + n]) for n, a in zip(bins, starts, strict=False)}
    classwise = None
    if raw.class_count.shape[-1]:
        apart = Curve(raw.class_count, raw.class_hits, raw.class_prob)
        classwise = {"all": apart.summed(0), "foreground": apart[2], "union": apart[1:].summed(0)}
    return CaseTables(
        num_classes=len(raw.confusion),
        likelihood=Likelihood(voxels, *(float(value) for value in raw.sums)),
        confusion=Confusion(raw.confusion, int(raw.ignored[0])),
        reliability={n: curves_by_region(*cell) for n, cell in cells.items()},
        classwise=classwise,
        ranking=Ranking(raw.uncertainty.sum(1), raw.uncertainty[:, 0].copy()),
        flips=Flips(raw.flips, voxels) if compared else None,
        bands=None
        if bands is None
        else Bands(bands.edges, bands.count, bands.distance, {n: curves_by_band(*cell) for n, cell in cells.items()}),
    )
