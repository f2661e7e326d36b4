r"""Likelihood of scores that are looked up in curves, and its derivatives, on the CPU.

A curve is a row of values at nodes 0 to R, linear in between and beyond the last one. Where a voxel stands on each is
known before (positions: node and share of the way to the next). The drop of class k below the winner i is

.. math:: s_k = \sum_r a_r\, \mathrm{row}_r(\text{position}_k),

over one row for all (a = 1), for each context the two rows between which the voxel stands, and, if classes have rows,
that of the pair of winner and class, or of the class. So a voxel touches a few numbers of many, however many rows there
are: its gradient and its Hessian are looked up and added in place. Sums do not depend on the number of threads.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from torch import Tensor, from_numpy

from segcal.kernels.loops import compiled, in_parts

# Classes with a probability below this have no curvature that a step could use.
NO_CURVATURE = 1e-5


def likelihood(
    positions: Tensor, target: Tensor, weight: Tensor, rows: Tensor, classes: int, hats: Sequence[int]
) -> tuple[float, Tensor]:
    """Return the summed NLL and its gradient in `rows`.

    Args:
        positions: ``(classes + contexts, n)``: of the gap of each class on its curve, -1 for the winner; then of each
            context between its hats.
        target: ``(n,)`` labels.
        weight: ``(n,)``.
        rows: ``(rows, nodes)`` float64: one for all, those of the hats of each context; and if there are more, one for
            every winner and class, or for every class.
        classes: C.
        hats: how many each context has.
    """
    voxels = positions.numpy(), target.numpy(), weight.numpy()
    own, counts = rows.contiguous().numpy(), np.array(hats, np.int64)

    def add(begin: int, end: int) -> tuple[float, np.ndarray]:
        gradient = np.zeros(rows.shape)
        return _likelihood(*voxels, own, classes, counts, begin, end, gradient), gradient

    values, gradients = zip(*in_parts(add, positions.shape[1]), strict=True)
    return sum(values), from_numpy(sum(gradients))


def hessian(
    positions: Tensor, weight: Tensor, rows: Tensor, classes: int, hats: Sequence[int], spread: Tensor | None = None
) -> Tensor:
    """Return the Hessian of the summed NLL in the values of `rows`, those of shared ones first.

    With `spread` ``(nodes, groups)``, the rows of classes are that times numbers of theirs, so many for each, and the
    Hessian is in these numbers: where there are many rows, it is much smaller.
    """
    own, counts, nodes = rows.contiguous().numpy(), np.array(hats, np.int64), rows.shape[1]
    made = np.eye(nodes) if spread is None else spread.contiguous().numpy()
    shared = (1 + int(counts.sum())) * nodes
    size = shared + (len(rows) - shared // nodes) * made.shape[1]
    voxels = positions.numpy(), weight.numpy()

    def add(begin: int, end: int) -> np.ndarray:
        part = np.zeros((size, size))
        _hessian(*voxels, own, made, classes, counts, begin, end, part)
        return part

    first, *others = in_parts(add, positions.shape[1])
    for part in others:
        first += part
    first[:shared, shared:] = first[shared:, :shared].T
    lower = np.tril_indices(size, -1)
    first[lower] = first.T[lower]
    return from_numpy(first)


@njit(inline="always")
def _shared(x, v, classes, hats, rows, index, share, curve):  # type: ignore[no-untyped-def]
    """Find the rows that all classes of a voxel share, and their sum; return how many there are."""
    index[0], share[0] = 0, 1.0
    found, first = 1, 1
    for c in range(len(hats)):
        where = x[classes + c, v]
        left = min(int(where), hats[c] - 2)
        rest = where - left
        if rest < 1:
            index[found], share[found] = first + left, 1 - rest
            found += 1
        if rest > 0:
            index[found], share[found] = first + left + 1, rest
            found += 1
        first += hats[c]
    for m in range(rows.shape[1]):
        curve[m] = 0.0
        for r in range(found):
            curve[m] += share[r] * rows[index[r], m]
    return found


@njit(inline="always")
def _own_row(rows, base, classes, winner, k):  # type: ignore[no-untyped-def]
    """Return the row of a class below a winner; -1 if classes have none."""
    if len(rows) == base:
        return -1
    return base + (winner * classes + k if len(rows) == base + classes * classes else k)


@njit(inline="always")
def _drops(x, v, classes, base, rows, curve, node, rest, drop):  # type: ignore[no-untyped-def]
    """Find where every class stands and how far it drops below the winner, which is returned."""
    winner = 0
    for k in range(classes):
        if x[k, v] < 0:
            winner = k
    for k in range(classes):
        where = x[k, v]
        if k == winner:
            node[k], rest[k], drop[k] = -1, 0.0, 0.0
            continue
        m = min(int(where), rows.shape[1] - 2)
        a = where - m
        low, high = curve[m], curve[m + 1]
        own = _own_row(rows, base, classes, winner, k)
        if own >= 0:
            low += rows[own, m]
            high += rows[own, m + 1]
        node[k], rest[k], drop[k] = m, a, low + a * (high - low)
    return winner


@njit(inline="always")
def _exponentials(drop, classes):  # type: ignore[no-untyped-def]
    """Replace drops by probabilities, and return the sum of exponentials."""
    total = 0.0
    for k in range(classes):
        drop[k] = np.exp(-drop[k])
        total += drop[k]
    for k in range(classes):
        drop[k] /= total
    return total


@compiled
def _likelihood(x, target, weight, rows, classes, hats, start, stop, gradient):  # type: ignore[no-untyped-def]
    nodes, base = rows.shape[1], 1 + hats.sum()
    index, share = np.zeros(2 * len(hats) + 1, np.int64), np.zeros(2 * len(hats) + 1)
    curve, push = np.zeros(nodes), np.zeros(nodes)
    node, rest, drop = np.zeros(classes, np.int64), np.zeros(classes), np.zeros(classes)
    value = 0.0
    for v in range(start, stop):
        found = _shared(x, v, classes, hats, rows, index, share, curve)
        winner = _drops(x, v, classes, base, rows, curve, node, rest, drop)
        value += weight[v] * drop[target[v]]
        value += weight[v] * np.log(_exponentials(drop, classes))  # which become probabilities
        push[:] = 0.0
        for k in range(classes):
            if node[k] >= 0:
                residual = weight[v] * ((k == target[v]) - drop[k])
                left, right = residual * (1 - rest[k]), residual * rest[k]
                push[node[k]] += left
                push[node[k] + 1] += right
                own = _own_row(rows, base, classes, winner, k)
                if own >= 0:
                    gradient[own, node[k]] += left
                    gradient[own, node[k] + 1] += right
        for r in range(found):
            for m in range(nodes):
                gradient[index[r], m] += share[r] * push[m]
    return value


@njit(inline="always")
def _moments(classes, node, rest, probs, mean, bend, touched):  # type: ignore[no-untyped-def]
    """Set the mean of a voxel's nodes and its matrix of second moments about it; classes without curvature go.

    Return how many nodes are touched, and list them: all others have zeros, and of most voxels there are few.
    """
    mean[:] = 0.0
    bend[:] = 0.0
    for k in range(classes):
        if node[k] >= 0 and probs[k] < NO_CURVATURE:
            node[k] = -1
        if node[k] >= 0:
            m, left, right = node[k], probs[k] * (1 - rest[k]), probs[k] * rest[k]
            mean[m] += left
            mean[m + 1] += right
            bend[m, m] += left * (1 - rest[k])
            bend[m, m + 1] += left * rest[k]
            bend[m + 1, m + 1] += right * rest[k]
    count = 0
    for m in range(len(mean)):
        if mean[m] != 0.0:
            touched[count] = m
            count += 1
    for i in range(count):
        m = touched[i]
        for j in range(i, count):
            n = touched[j]
            bend[m, n] -= mean[m] * mean[n]
            bend[n, m] = bend[m, n]
    return count


@njit(inline="always")
def _add_shared(weight, found, index, share, bend, touched, count, hessian):  # type: ignore[no-untyped-def]
    """Add the part of rows that all classes share; their indices increase."""
    nodes = len(bend)
    for r in range(found):
        for s in range(r, found):
            both = weight * share[r] * share[s]
            for i in range(count):
                row = index[r] * nodes + touched[i]
                for j in range(count):
                    hessian[row, index[s] * nodes + touched[j]] += both * bend[touched[i], touched[j]]


@njit(inline="always")
def _add_mixed(  # type: ignore[no-untyped-def]
    mass, found, index, share, node, rest, mean, touched, count, place, hessian
):
    """Add the part between one number of a class and the shared rows."""
    nodes = len(mean)
    for r in range(found):
        first = index[r] * nodes
        for i in range(count):
            hessian[place, first + touched[i]] -= mass * share[r] * mean[touched[i]]
        hessian[place, first + node] += mass * share[r] * (1 - rest)
        hessian[place, first + node + 1] += mass * share[r] * rest


@njit(inline="always")
def _of_classes(rows, base, classes, winner, node, rest, spread, starts, slopes):  # type: ignore[no-untyped-def]
    """Find where the numbers of each class begin, and how its drop changes with each."""
    for k in range(classes):
        if node[k] >= 0:
            own = _own_row(rows, base, classes, winner, k) - base
            starts[k] = base * rows.shape[1] + own * spread.shape[1]
            for g in range(spread.shape[1]):
                slopes[k, g] = (1 - rest[k]) * spread[node[k], g] + rest[k] * spread[node[k] + 1, g]


@njit(inline="always")
def _add_own(mass, k, place, starts, slopes, classes, node, probs, hessian):  # type: ignore[no-untyped-def]
    """Add the part between one number of class k and the numbers of all classes."""
    for j in range(classes):
        if node[j] >= 0:
            change = mass * ((j == k) - probs[j])
            for h in range(slopes.shape[1]):
                if slopes[j, h] != 0.0 and place <= starts[j] + h:
                    hessian[place, starts[j] + h] += change * slopes[j, h]


@compiled
def _hessian(x, weight, rows, spread, classes, hats, start, stop, hessian):  # type: ignore[no-untyped-def]
    """Add to the upper triangle; between numbers of classes, which come last, and shared rows, to the lower one."""
    nodes, base, groups = rows.shape[1], 1 + hats.sum(), spread.shape[1]
    index, share = np.zeros(2 * len(hats) + 1, np.int64), np.zeros(2 * len(hats) + 1)
    curve, mean, bend = np.zeros(nodes), np.zeros(nodes), np.zeros((nodes, nodes))
    node, rest, probs = np.zeros(classes, np.int64), np.zeros(classes), np.zeros(classes)
    touched, starts, slopes = np.zeros(nodes, np.int64), np.zeros(classes, np.int64), np.zeros((classes, groups))
    for v in range(start, stop):
        found = _shared(x, v, classes, hats, rows, index, share, curve)
        winner = _drops(x, v, classes, base, rows, curve, node, rest, probs)
        _exponentials(probs, classes)
        count = _moments(classes, node, rest, probs, mean, bend, touched)
        _add_shared(weight[v], found, index, share, bend, touched, count, hessian)
        if len(rows) == base:
            continue
        _of_classes(rows, base, classes, winner, node, rest, spread, starts, slopes)
        for k in range(classes):
            if node[k] >= 0:
                for g in range(groups):
                    if slopes[k, g] != 0.0:
                        mass, place = weight[v] * probs[k] * slopes[k, g], starts[k] + g
                        _add_mixed(mass, found, index, share, node[k], rest[k], mean, touched, count, place, hessian)
                        _add_own(mass, k, place, starts, slopes, classes, node, probs, hessian)
