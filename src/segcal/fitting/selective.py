r"""Fitting of selective scaling: the inner calibrator, the selector, then the temperatures.

The temperatures are set on the validation voxels if there are some, otherwise on those of the fit:

- "nll": of :data:`WRONG_TEMPERATURES` for flagged voxels, and of :data:`RIGHT_TEMPERATURES` for the others, those with
  the lowest NLL; the two do not touch each other;
- "ece": the pair with the lowest ECE of all these voxels together (50 bins);
- "paper": 1 for the others; for flagged voxels 1e10 if more than half of the mispredictions are flagged, 2 otherwise.

Both lists hold 1, so that neither rule can do worse than nothing on the voxels it looks at. Every T of the second list
is at most 1: a model that is overconfident where it is right is left to an inner calibrator. With the rule "nll" and
no inner calibrator, a result with a higher NLL on the validation voxels than temperature scaling is replaced by it.
Then nothing is flagged, and the certificate says so.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.selective import Selective, selector_input
from segcal.calibrators.temperature import TemperatureScaling
from segcal.fitting.certificate import Certificate
from segcal.fitting.convex_problem import solve_temperature
from segcal.fitting.division import gather
from segcal.fitting.request import Request
from segcal.fitting.scores import Detection, certify, detection_quality, gap_sums, in_steps, mean_nll, nll_of
from segcal.fitting.selector import RIGHT, WRONG, Examples, train_selector
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.numerics import winner

WRONG_TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4)
RIGHT_TEMPERATURES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
PAPER_LARGE, PAPER_SMALL, PAPER_RECALL = 1e10, 2.0, 0.5
# Voxels that a selector is trained on, at most. Hard ones are frequent among those of a fit, and a network of
# a few hundred weights needs no more of them.
MOST_VOXELS = {"exact": 1 << 18, "paper": 1 << 21}

InnerFit = Callable[[Request], Certificate]


@dataclass(frozen=True)
class _Tried:
    """Sums over the voxels on which temperatures are chosen, by temperature."""

    nll: dict[float, float]
    gaps: dict[float, Tensor]


class KeptVoxels(VoxelSource):
    """The voxels of a source that a rule keeps, which returns a mask ``(n,)`` for logits ``(C, n)``."""

    def __init__(self, source: VoxelSource, keep: Callable[[Tensor], Tensor]) -> None:
        self._source, self._keep = source, keep
        self.num_classes, self.ids, self.streamed = source.num_classes, source.ids, source.streamed
        self._kept = None if source.streamed else [self._filter(voxels) for voxels in source]
        counts = [(voxels.labels.numel(), float(voxels.weight.sum(dtype=torch.float64))) for voxels in self]
        self.used, self.total_weight = sum(count for count, _ in counts), sum(weight for _, weight in counts)
        self.available = round(self.total_weight)

    def __iter__(self) -> Iterator[Voxels]:
        if self._kept is not None:
            yield from self._kept
            return
        for voxels in self._source:
            yield self._filter(voxels)

    def subset(self, ids: Collection[str]) -> "KeptVoxels":
        """Return what the rule keeps of these cases."""
        return KeptVoxels(self._source.subset(ids), self._keep)

    def weighted(self, factors: Mapping[str, float]) -> "KeptVoxels":
        """Return what the rule keeps, with other weights."""
        return KeptVoxels(self._source.weighted(factors), self._keep)

    def _filter(self, voxels: Voxels) -> Voxels:
        return voxels.take(self._keep(voxels.logits)).each(Tensor.contiguous)


def fit_selective(request: Request, fit_inner: InnerFit) -> Certificate:
    """Fit selective scaling; `fit_inner` fits the inner calibrator, by whatever method it declares."""
    calibrator = request.calibrator
    assert isinstance(calibrator, Selective)
    inside = None
    if calibrator.inner is not None and calibrator.place == "before":
        inside = fit_inner(replace(request, calibrator=calibrator.inner))
    calibrator.to(request.device)
    most, seed = MOST_VOXELS[request.config.method], request.config.seed
    voxels = gather(request.source, most, seed)
    looked_at = voxels if request.validation is None else gather(request.validation, most, seed)
    examples = _make_examples(calibrator, voxels, request.device)
    held_out = None if request.validation is None else _make_examples(calibrator, looked_at, request.device)
    curve = train_selector(calibrator.selector, examples, held_out, calibrator.repeats, request.config, request.report)
    if calibrator.inner is not None and calibrator.place == "unflagged":
        inside = _fit_unflagged(request, calibrator, fit_inner)
    quality = measure_selector(calibrator, looked_at, request.device)
    _set_temperatures(calibrator, looked_at, quality, request.device)
    returned = _better_of(request, calibrator)
    details = _details(calibrator, quality, examples, request.validation is not None, inside) | returned
    used = voxels.labels.numel()
    return certify(request, "selector", voxels=used, passes=len(curve) + 2, details=details, curve=curve)


@torch.no_grad()
def _make_examples(calibrator: Selective, voxels: Voxels, device: torch.device) -> Examples:
    """Return what the selector sees of voxels, and which of them are mispredicted."""
    features, right = [], []
    for logits, labels, *_ in in_steps([voxels], device):
        seen, _ = calibrator.parts(logits[None])
        features.append(selector_input(seen)[0].T.float())
        right.append(torch.where(winner(seen)[0] == labels, RIGHT, WRONG))
    return Examples(torch.cat(features).contiguous(), torch.cat(right), voxels.weight.float().to(device))


@torch.no_grad()
def measure_selector(calibrator: Selective, voxels: Voxels, device: torch.device) -> Detection:
    """Return recall, precision and AUROC of the selector on voxels."""
    margins, wrong = [], []
    for logits, labels, *_ in in_steps([voxels], device):
        seen, _ = calibrator.parts(logits[None])
        margins.append(calibrator.selector(seen)[0].double().cpu().numpy())
        wrong.append((winner(seen)[0] != labels).cpu().numpy())
    return detection_quality(np.concatenate(margins), np.concatenate(wrong), voxels.weight.double().numpy())


def _fit_unflagged(request: Request, calibrator: Selective, fit_inner: InnerFit) -> Certificate | None:
    """Fit the inner calibrator to the voxels it will be used for; None, and the identity, if there are none."""
    assert calibrator.inner is not None

    @torch.no_grad()
    def unflagged(logits: Tensor) -> Tensor:
        parts = logits.split(1 << 18, dim=1)
        return torch.cat([calibrator.selector(part.to(request.device)[None])[0].cpu() <= 0 for part in parts])

    kept = KeptVoxels(request.source, unflagged)
    if not kept.used:
        return None
    validation = None if request.validation is None else KeptVoxels(request.validation, unflagged)
    validation = None if validation is None or not validation.used else validation
    inner = calibrator.inner.cpu()  # where fits leave their result
    certificate = fit_inner(replace(request, calibrator=inner, source=kept, validation=validation))
    calibrator.to(request.device)
    return certificate


@torch.no_grad()
def _set_temperatures(calibrator: Selective, voxels: Voxels, quality: Detection, device: torch.device) -> None:
    recall = quality["recall"]
    if calibrator.temperatures == "paper":
        large = recall is not None and recall > PAPER_RECALL
        wrong, right = PAPER_LARGE if large else PAPER_SMALL, 1.0
    else:
        flagged, others = _try_temperatures(calibrator, voxels, device)
        if calibrator.temperatures == "nll":
            wrong = min(flagged.nll, key=lambda t: flagged.nll[t])
            right = min(others.nll, key=lambda t: others.nll[t])
        else:
            pairs = [(w, r) for w in flagged.gaps for r in others.gaps]
            wrong, right = min(
                pairs, key=lambda pair: float((flagged.gaps[pair[0]] + others.gaps[pair[1]]).abs().sum())
            )
    calibrator.inverse_temperature_wrong.fill_(1 / wrong)
    if calibrator.inner is None:
        calibrator.inverse_temperature_right.fill_(1 / right)


@torch.no_grad()
def _better_of(request: Request, calibrator: Selective) -> dict[str, object]:
    """Make it temperature scaling if that is better on the validation voxels, and return what the certificate says."""
    published = request.config.method == "paper"
    if published or request.validation is None or calibrator.inner is not None or calibrator.temperatures != "nll":
        return {}
    scaling = TemperatureScaling(calibrator.num_classes).to(request.device)
    temperature = 1 / float(solve_temperature(request.source, request.device, request.config.tol).theta)
    scaling.inverse_temperature.fill_(1 / temperature)
    nll, simple = (mean_nll(one, request.validation, request.device) for one in (calibrator, scaling))
    if simple < nll:
        calibrator.selector.set_constant(flagged=False)
        calibrator.inverse_temperature_right.copy_(scaling.inverse_temperature)
    return {"ts_validation_nll": simple, "returned": "ts" if simple < nll else "trained"}


def _try_temperatures(calibrator: Selective, voxels: Voxels, device: torch.device) -> tuple[_Tried, _Tried]:
    """Return the sums by temperature over flagged voxels, and over the others."""
    choices = (WRONG_TEMPERATURES, RIGHT_TEMPERATURES if calibrator.inner is None else (1.0,))
    tried = tuple(_Tried(dict.fromkeys(ts, 0.0), {t: torch.zeros(1) for t in ts}) for ts in choices)
    for logits, labels, weight, *_ in in_steps([voxels], device):
        seen, unflagged = (scores[0] for scores in calibrator.parts(logits[None]))
        mask = calibrator.selector(seen[None])[0] > 0
        for sums, scores, own in ((tried[0], seen, mask), (tried[1], unflagged, ~mask)):
            _add(sums, scores[:, own], labels[own], weight[own])
    return tried[0], tried[1]


def _add(sums: _Tried, scores: Tensor, labels: Tensor, weight: Tensor) -> None:
    if not labels.numel():
        return
    gaps = scores - scores.amax(0)
    right = winner(gaps, axis=0) == labels
    for temperature in sums.nll:
        scaled = gaps / temperature
        sums.nll[temperature] += float((weight.double() * nll_of(scaled, labels).double()).sum())
        confidence = torch.softmax(scaled, 0).amax(0)
        sums.gaps[temperature] = sums.gaps[temperature] + gap_sums(confidence, right, weight)


def _details(
    calibrator: Selective, quality: Detection, examples: Examples, validated: bool, inside: Certificate | None
) -> dict[str, object]:
    right = calibrator.inverse_temperature_right if calibrator.inner is None else None
    return {
        "selector": {**quality, "measured_on": "validation" if validated else "calibration"},
        "mispredictions": int((examples.right == WRONG).sum()),
        "temperature_wrong": 1 / float(calibrator.inverse_temperature_wrong.detach()),
        "temperature_right": None if right is None else 1 / float(right.detach()),
        "rule": calibrator.temperatures,
        "inner": None if inside is None else inside.to_dict(),
    }
