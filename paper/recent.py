r"""Recent calibrators of others, written from their definitions and their authors' code.

Each function takes the logits of voxels ``(n, C)`` and their labels ``(n,)`` and returns maps by name, from logits to
log-probabilities ``(n, C)``. None of them is part of the package; ``paper/peer_rows.py`` measures them.

- ``smart`` (Guo et al., ICML 2026): one temperature per voxel, :math:`T = \mathrm{softplus}(f(m)) + 0.1`. The margin m
  between the two largest logits is standardised, and f has two hidden layers of 16 rectified units. Adam lowers the
  soft-binned error of the confidence p over 15 Gaussian bins of width 0.05,
  :math:`\sum_b w_b \sqrt{(\bar p_b - \bar a_b)^2 + 10^{-6}}`; with the defaults of the authors' code of 2026: a rate of
  0.005, all voxels in every step, 2,000 steps, and an end after 200 that lower it by less than 0.0001.
- ``sms`` (Berta et al., AISTATS 2026): temperature scaling, mixed with the uniform distribution at
  :math:`1/(n+1)`, then :math:`\mathrm{softmax}((I + D + M) x + b)` with a ridge of C/n on b and on the diagonal D, and
  of C(C-1)/n on the rest M. It is probmetrics 1.3's "logistic" for three classes and more.
- ``affine`` and ``quadratic``: what probmetrics 1.3 does with two classes, without a penalty. ``get_calibrator``
  takes a line of the log-odds (Platt scaling), ``LogisticCalibrator`` a parabola.
- ``h_calibration`` (Huang et al., 2025): pairs of a voxel and a class are sorted by probability q; the mean of q - o
  over 201 neighbours (o is 1 where the class is the true one) has an absolute value. Adam lowers its mean over the
  pairs of each of 15 clusters of q, over clusters, and over which class's voxels are left out. As in the authors' code,
  an epoch has 5,000 voxels, here the next of all; after each, the error over 15 bins of equal width is measured on the
  voxels of the fit. Its rate of 0.005 is halved after 20 epochs without a lower one, and 160 of them, or 2,000 epochs,
  are the end. The maps are a mixture of softmaxes at 16 temperatures, and one increasing curve of all log-probabilities
  of 1, 10, 100 or 500 straight pieces between -100 and 0. Of all maps and epochs, that is kept which has the lowest of
  what is to be judged: of the debiased error over 15 bins of equal mass, and for a second map of the NLL. The authors
  also try more temperatures and integrals of networks.
- ``torch_uncertainty``: the temperature of torch-uncertainty 0.13 with its defaults, 100 steps of L-BFGS in float32
  with a rate of 0.1 and without a line search.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, softplus

Map = Callable[[Tensor], Tensor]
Fit = Callable[[Tensor, Tensor], dict[str, Map]]
Mixed = Callable[[Tensor, Sequence[Tensor]], Tensor]  # from log-probabilities and parameters to probabilities
SEED = 1
BATCH = 5000
# Of what the parameters of h-calibration are measured on after every epoch: as many as its authors have in all.
MEASURED = 20_000


def _lowered(loss: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int, rate: float, search: bool) -> None:
    """Lower a loss by L-BFGS."""
    line = "strong_wolfe" if search else None
    tight = {"tolerance_grad": 1e-10, "tolerance_change": 1e-14} if search else {}
    optimizer = torch.optim.LBFGS(parameters, lr=rate, max_iter=steps, line_search_fn=line, **tight)

    def evaluated() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(evaluated)  # type: ignore[arg-type]


def smart(logits: Tensor, labels: Tensor, epochs: int = 2000) -> dict[str, Map]:
    """Fit a temperature that depends on the margin between the two largest logits."""
    logits, generator = logits.float(), torch.Generator().manual_seed(SEED)
    layers = [nn.Linear(1, 16), nn.Linear(16, 16), nn.Linear(16, 1)]
    for layer in layers:
        bound = layer.in_features**-0.5
        for values in (layer.weight, layer.bias):
            nn.init.uniform_(values, -bound, bound, generator=generator)
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    first = margin(logits)
    mean, deviation = first.mean(), first.std() + 1e-8

    def temperature(of: Tensor) -> Tensor:
        return softplus(net(((of - mean) / deviation)[:, None])) + 0.1

    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    right = (logits.argmax(1) == labels).float()
    best, kept, waited = float("inf"), copy.deepcopy(net.state_dict()), 0
    for _ in range(epochs):
        confidence = (logits / temperature(first)).softmax(1).amax(1)
        loss = soft_binned_error(confidence, right)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if loss.item() < best - 1e-4:
            best, kept, waited = loss.item(), copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
        if waited >= 200:
            break
    net.load_state_dict(kept)
    return {"smart": lambda z: (z / temperature(margin(z.float()))).log_softmax(1).detach()}


def margin(logits: Tensor) -> Tensor:
    """Return the distance between the two largest logits."""
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def soft_binned_error(confidence: Tensor, right: Tensor, bins: int = 15) -> Tensor:
    """Return the error over bins to which every voxel belongs in part."""
    centres = (torch.arange(bins) + 0.5) / bins
    share = (-0.5 * ((confidence[:, None] - centres) / 0.05).square()).exp()
    share = share / share.sum(1, keepdim=True)
    mass = share.sum(0).clamp_min(1e-12)
    gap = (share * (confidence - right)[:, None]).sum(0) / mass
    return (mass / len(right) * (gap.square() + 1e-6).sqrt()).sum()


def sms(logits: Tensor, labels: Tensor) -> dict[str, Map]:
    """Fit structured matrix scaling."""
    (count, classes), log_probs = logits.shape, logits.double().log_softmax(1)
    inverse = torch.ones(1, dtype=torch.float64, requires_grad=True)
    _lowered(lambda: cross_entropy(inverse * log_probs, labels), [inverse], 100, 1.0, True)
    beta = inverse.detach()

    def tempered(of: Tensor) -> Tensor:
        uniform = 1 / (count + 1)
        return ((1 - uniform) * (beta * of.double().log_softmax(1)).softmax(1) + uniform / classes).log()

    x, ridge = tempered(logits), classes / count
    matrix = torch.zeros(classes, classes, dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(classes, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        diagonal = matrix.diagonal().square().sum()
        rest = (classes - 1) * (matrix.square().sum() - diagonal)
        return cross_entropy(x + linear(x, matrix, shift), labels) + ridge * (shift.square().sum() + diagonal + rest)

    _lowered(loss, [matrix, shift], 500, 1.0, True)
    whole, moved = (torch.eye(classes) + matrix).detach(), shift.detach()
    return {"sms (probmetrics)": lambda z: linear(tempered(z), whole, moved).log_softmax(1)}


def logistic(logits: Tensor, labels: Tensor) -> dict[str, Map]:
    """Fit what probmetrics 1.3 has for two classes."""
    return {"affine (probmetrics)": _powers(logits, labels, 1), "quadratic (probmetrics)": _powers(logits, labels, 2)}


def _powers(logits: Tensor, labels: Tensor, degree: int) -> Map:
    """Fit a polynomial of the log-odds."""
    start = torch.zeros(degree + 1, dtype=torch.float64)
    start[1] = 1.0
    factors, unit = start.requires_grad_(), float((logits[:, 1] - logits[:, 0]).double().square().mean().sqrt())

    def scaled(of: Tensor) -> Tensor:
        odds = (of[:, 1] - of[:, 0]).double()
        value = sum(unit * factor * (odds / unit) ** power for power, factor in enumerate(factors))
        return torch.stack([torch.zeros_like(odds), torch.as_tensor(value)], 1)

    _lowered(lambda: cross_entropy(scaled(logits), labels), [factors], 500, 1.0, True)
    return lambda z: scaled(z).log_softmax(1).detach()


def h_calibration(logits: Tensor, labels: Tensor, epochs: int = 2000) -> dict[str, Map]:
    """Fit order-preserving maps to a bounded error of probabilities."""
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(labels), generator=generator)
    log_probs, labels = logits[order].float().log_softmax(1), labels[order]
    lowest: dict[str, float] = {}
    kept: dict[str, Map] = {}
    for of, parameters in (mixture(16, generator), *(curve(pieces) for pieces in (1, 10, 100, 500))):
        for found in _epochs(of, parameters, log_probs, labels, epochs):
            probs, truth = of(log_probs[:MEASURED], found), labels[:MEASURED]
            for name, value in {
                "h-calibration": debiased_error(probs.amax(1), probs.argmax(1) == truth),
                "h-calibration, by NLL": float(-probs[torch.arange(len(truth)), truth].clamp_min(1e-25).log().mean()),
            }.items():
                if value <= lowest.get(name, float("inf")):
                    lowest[name], kept[name] = value, partial(_in_blocks, of, found)
    return kept


def _epochs(
    of: Mixed, parameters: Sequence[Tensor], log_probs: Tensor, labels: Tensor, epochs: int
) -> Iterator[list[Tensor]]:
    """Train, and yield the parameters after every epoch."""
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=20)
    best, waited, count = float("inf"), 0, min(BATCH, len(labels))
    for epoch in range(epochs):
        rows = torch.arange(epoch * count, (epoch + 1) * count) % len(labels)
        loss = 1e5 * neighbour_error(of(log_probs[rows], parameters), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = [each.detach().clone() for each in parameters]
        yield found
        probs = of(log_probs[:MEASURED], found)
        error = binned_error(probs.amax(1), probs.argmax(1) == labels[:MEASURED])
        plan.step(error)
        waited = 0 if error <= best else waited + 1
        best = min(error, best)
        if waited >= 160:
            return


def mixture(number: int, generator: torch.Generator) -> tuple[Mixed, list[Tensor]]:
    """Return a mixture of so many temperatures, and its parameters."""
    bound = number**-0.5
    start = [torch.empty(number).uniform_(-bound, bound, generator=generator).requires_grad_() for _ in range(2)]

    def mapped(of: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        inverse, share = (each.abs() for each in parameters)
        probs = (of.T.contiguous() * inverse[:, None, None]).softmax(1)  # voxels last: ten times as fast
        return ((share / share.sum()) @ probs.flatten(1)).reshape(of.shape[::-1]).T

    return mapped, start


def curve(pieces: int) -> tuple[Mixed, list[Tensor]]:
    """Return an increasing curve of so many straight pieces, and its parameters: the slopes."""
    width = 100 / pieces

    def mapped(of: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        slopes, piece = parameters[0].abs(), (-of / width).long().clamp_max(pieces)
        start = nn.functional.pad(slopes[:-1].cumsum(0), (1, 0)) * width
        return (-start[piece] + slopes[piece] * (of + piece * width)).softmax(1)

    return mapped, [torch.ones(pieces + 1, requires_grad=True)]


def _in_blocks(of: Mixed, parameters: Sequence[Tensor], logits: Tensor) -> Tensor:
    blocks = logits.float().log_softmax(1).split(1 << 15)
    return torch.cat([of(block, parameters).clamp_min(1e-38).log() for block in blocks])


def neighbour_error(probs: Tensor, labels: Tensor, window: int = 200) -> Tensor:
    """Return the error of sorted probabilities against how often their classes are true, in clusters."""
    classes, parts = probs.shape[1], []
    every, order = probs.flatten().sort()
    own, truth = nn.functional.one_hot(labels, classes).flatten()[order], labels.repeat_interleave(classes)[order]
    for left_out in range(classes):
        mine = torch.nonzero(truth != left_out)[:, 0]
        if len(mine) <= window:
            continue
        q = every[mine]
        running = nn.functional.pad((q - own[mine]).cumsum(0), (1, 0))
        at = torch.arange(len(q))
        ends = (at + window // 2 + 1).clamp_max(len(q)), (at - window // 2).clamp_min(0)
        error = ((running[ends[0]] - running[ends[1]]) / (window + 1)).abs()
        edges = clusters(q.detach())
        total = nn.functional.pad(error.cumsum(0), (1, 0))[edges]
        parts.append((total.diff() / (edges.diff() + 1e-5)).mean())
    return torch.stack(parts).mean()


def clusters(ordered: Tensor, number: int = 15, rounds: int = 25) -> Tensor:
    """Return where the clusters of sorted numbers begin and end, by k-means from evenly spread ranks."""
    sums = nn.functional.pad(ordered.double().cumsum(0), (1, 0))
    centres = ordered[torch.linspace(0, len(ordered) - 1, number).long()].double()
    for _ in range(rounds):
        inner = torch.searchsorted(ordered, ((centres[1:] + centres[:-1]) / 2).to(ordered.dtype))
        edges = torch.cat([torch.tensor([0]), inner, torch.tensor([len(ordered)])])
        held = edges.diff()
        before, centres = centres, torch.where(held > 0, sums[edges].diff() / held.clamp_min(1), centres)
        if torch.equal(before, centres):
            break
    return edges


def binned_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error."""
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence.double() - right.double())
    return float(gaps.abs().sum()) / len(right)


def debiased_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Return the error over bins of equal mass, less what it would be larger by if it was drawn again."""
    p, order = confidence.double().sort()
    edges = torch.tensor([round(len(p) / bins * k) for k in range(bins + 1)])
    held = edges.diff()
    sums = [nn.functional.pad(each.cumsum(0), (1, 0))[edges].diff() / held for each in (p, right.double()[order])]
    gap, spread = (sums[0] - sums[1]).abs(), (sums[1] * (1 - sums[1]) / held).sqrt().clamp_min(1e-30)
    again = spread * math.sqrt(2 / math.pi) * (-((gap / spread) ** 2) / 2).exp() + gap * torch.erf(
        gap / spread / math.sqrt(2)
    )
    return float(2 * held.double() @ gap / len(p) - again.mean())


def torch_uncertainty(logits: Tensor, labels: Tensor) -> dict[str, Map]:
    """Fit the temperature of torch-uncertainty 0.13."""
    logits, inverse = logits.float(), torch.ones(1, requires_grad=True)
    _lowered(lambda: cross_entropy(inverse * logits, labels), [inverse], 100, 0.1, False)
    return {"ts (torch-uncertainty)": lambda z: (inverse * z).log_softmax(1).detach()}


def recent(classes: int) -> tuple[Fit, ...]:
    """Return the fits for so many classes."""
    return (smart, sms, *([logistic] if classes == 2 else []), h_calibration, torch_uncertainty)
