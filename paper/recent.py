r"""Recent calibrators of others, written from their definitions: SMART, structured matrix scaling, h-calibration.

Each function takes the logits of voxels ``(n, C)`` and their labels ``(n,)`` and returns a map from logits to
log-probabilities ``(n, C)``. None of them is part of the package; ``paper/peer_rows.py`` measures them.

- ``smart`` (Guo et al., ICML 2026): one temperature per voxel, :math:`T = \mathrm{softplus}(f(m)) + 0.1`. The margin m
  between the two largest logits is standardised, and f has two hidden layers of 16 rectified units. Adam lowers the
  soft-binned error of the confidence p over 15 Gaussian bins of width 0.05,
  :math:`\sum_b w_b \sqrt{(\bar p_b - \bar a_b)^2 + 10^{-6}}`; with the defaults of the authors' code of 2026.
- ``sms`` (Berta et al., AISTATS 2026): temperature scaling, mixed with the uniform distribution at
  :math:`1/(n+1)`, then :math:`\mathrm{softmax}((I + D + M) x + b)` with a ridge of C/n on b and on the diagonal D, and
  of C(C-1)/n on the rest M. ``probmetrics``: what ``get_calibrator("logistic")`` of probmetrics 1.3 does, which is
  this for three classes and more, and Platt scaling of the log-odds for two.
- ``h_calibration`` (Huang et al., 2025): a mixture of softmaxes at 16 temperatures. Pairs of a voxel and a class are
  sorted by probability q; the mean of q - o over 201 neighbours (o is 1 where the class is the true one) has an
  absolute value. Adam lowers its mean over the pairs of each of 15 clusters of q, over clusters, and over which class's
  voxels are left out. The parameters with the least binned error (15 bins) on the voxels of the fit are kept.
- ``torch_uncertainty``: the temperature of torch-uncertainty 0.13 with its defaults, 100 steps of L-BFGS in float32
  with a rate of 0.1 and without a line search.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, softplus

Map = Callable[[Tensor], Tensor]
Fit = Callable[[Tensor, Tensor], Map]
SEED = 1


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


def smart(logits: Tensor, labels: Tensor, epochs: int = 2000, most: int = 20_000) -> Map:
    """Fit a temperature that depends on the margin between the two largest logits; to at most `most` voxels."""
    generator = torch.Generator().manual_seed(SEED)
    chosen = torch.randperm(len(labels), generator=generator)[:most]
    logits, labels = logits[chosen].float(), labels[chosen]
    layers = [nn.Linear(1, 16), nn.Linear(16, 16), nn.Linear(16, 1)]
    for layer in layers:
        bound = layer.in_features**-0.5
        for values in (layer.weight, layer.bias):
            nn.init.uniform_(values, -bound, bound, generator=generator)
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    first = margin(logits)
    mean, deviation = first.mean(), first.std(unbiased=False).clamp_min(1e-8)

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
    return lambda z: (z / temperature(margin(z.float()))).log_softmax(1).detach()


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


def sms(logits: Tensor, labels: Tensor) -> Map:
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
    return lambda z: linear(tempered(z), whole, moved).log_softmax(1)


def probmetrics(logits: Tensor, labels: Tensor) -> Map:
    """Fit what probmetrics 1.3 calls "logistic"."""
    if logits.shape[1] > 2:
        return sms(logits, labels)
    odds = (logits[:, 1] - logits[:, 0]).double()
    slope, shift = (torch.full((1,), start, dtype=torch.float64, requires_grad=True) for start in (1.0, 0.0))

    def scaled(of: Tensor) -> Tensor:
        found = slope * of + shift
        return torch.stack([torch.zeros_like(found), found], 1)

    _lowered(lambda: cross_entropy(scaled(odds), labels), [slope, shift], 200, 1.0, True)
    return lambda z: scaled((z[:, 1] - z[:, 0]).double()).log_softmax(1).detach()


def h_calibration(logits: Tensor, labels: Tensor, epochs: int = 150, most: int = 20_000) -> Map:
    """Fit a mixture of temperatures to a bounded error of probabilities; to at most `most` voxels."""
    generator, number, batch = torch.Generator().manual_seed(SEED), 16, 5000
    chosen = torch.randperm(len(labels), generator=generator)[:most]
    log_probs, labels = logits[chosen].float().log_softmax(1), labels[chosen]
    scale, weight = (
        torch.empty(number).uniform_(-(number**-0.5), number**-0.5, generator=generator).requires_grad_() for _ in "sw"
    )

    def mapped(of: Tensor) -> Tensor:
        share = weight.abs() / weight.abs().sum()
        return ((of[..., None] * scale.abs()).softmax(1) * share).sum(2)

    optimizer = torch.optim.Adam([scale, weight], lr=5e-3)
    best, kept = float("inf"), (scale.detach().clone(), weight.detach().clone())
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(batch):
            if len(rows) < batch <= len(labels):
                continue
            loss = 1e5 * neighbour_error(mapped(log_probs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            probs = mapped(log_probs)
        error = binned_error(probs.amax(1), probs.argmax(1) == labels)
        if error <= best:
            best, kept = error, (scale.detach().clone(), weight.detach().clone())
    scale.data, weight.data = kept

    def final(z: Tensor) -> Tensor:
        blocks = z.float().log_softmax(1).split(1 << 15)
        with torch.no_grad():
            return torch.cat([mapped(block).clamp_min(1e-38).log() for block in blocks])

    return final


def neighbour_error(probs: Tensor, labels: Tensor, window: int = 200) -> Tensor:
    """Return the error of sorted probabilities against how often their classes are true, in clusters."""
    classes, parts = probs.shape[1], []
    for left_out in range(classes):
        mine = labels != left_out
        if mine.sum() * classes <= window:
            continue
        own = torch.zeros(int(mine.sum()), classes).scatter_(1, labels[mine][:, None], 1.0).flatten()
        q, order = probs[mine].flatten().sort()
        running = nn.functional.pad((q - own[order]).cumsum(0), (1, 0))
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
        centres = torch.where(held > 0, sums[edges].diff() / held.clamp_min(1), centres)
    return edges


def binned_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error."""
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence.double() - right.double())
    return float(gaps.abs().sum()) / len(right)


def torch_uncertainty(logits: Tensor, labels: Tensor) -> Map:
    """Fit the temperature of torch-uncertainty 0.13."""
    logits, inverse = logits.float(), torch.ones(1, requires_grad=True)
    _lowered(lambda: cross_entropy(inverse * logits, labels), [inverse], 100, 0.1, False)
    return lambda z: (inverse * z).log_softmax(1).detach()


RECENT: dict[str, Fit] = {
    "smart": smart,
    "sms (probmetrics)": probmetrics,
    "h-calibration": h_calibration,
    "ts (torch-uncertainty)": torch_uncertainty,
}
