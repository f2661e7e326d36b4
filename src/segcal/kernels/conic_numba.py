r"""Likelihood of scores that are looked up in curves, and its derivatives, on the CPU.

A curve is a row of values at nodes 0 to R, linear in between and beyond the last one. Where a voxel stands on each is
known before (positions: node and share of the way to the next). The drop of class k below the winner i is

.. math:: s_k = \sum_r a_r\, \mathrm{row}_r(\text{position}_k),

over one row for all (a = 1), and for each context the two rows on either side of the voxel. If classes have rows, there
is also that of the pair of winner and class, or of the class. So a voxel touches few numbers, however many rows there
are. Its gradient and its Hessian are looked up and added in place. Sums do not depend on the number of threads.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from torch import Tensor, from_numpy

from segcal.kernels.exponential import fast_exp
from segcal.kernels.loops import compiled, in_parts

# Classes with a probability below this have no curvature that a step could use.
NO_CURVATURE = 1e-5
# Voxels whose exponentials are taken side by side.
TILE = 64


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

    With `spread` ``(nodes, groups)``, the rows of classes are that matrix times numbers of each class. The Hessian is
    in these numbers. Where there are many rows, it is much smaller.
    """
    own, counts, nodes = rows.contiguous().numpy(), np.array(hats, np.int64), rows.shape[1]
    made = np.eye(nodes) if spread is None else spread.contiguous().numpy()
    shared = (1 + int(counts.sum())) * nodes
    size = shared + (len(rows) - shared // nodes) * made.shape[1]
    x, masses = positions.numpy(), weight.numpy()
    cell = np.zeros(x.shape[1], np.int64)
    for count, row in zip(hats, x[classes:], strict=True):
        cell = cell * count + np.minimum(row.astype(np.int64), count - 2)
    order = np.argsort(cell, kind="stable")

    def add(begin: int, end: int) -> np.ndarray:
        part = np.zeros((size, size))
        _hessian(x, masses, order, cell, own, made, classes, counts, begin, end, part)
        return part

    first, *others = in_parts(add, positions.shape[1])
    for part in others:
        first += part
    first[:shared, shared:] = first[shared:, :shared].T
    upper = np.triu(first)
    first = upper + np.triu(upper, 1).T
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
    curve[:] = 0.0
    for r in range(found):
        row = rows[index[r]]
        for m in range(len(row)):
            curve[m] += share[r] * row[m]
    return found


@njit(inline="always")
def _own_row(rows, base, classes, winner, k):  # type: ignore[no-untyped-def]
    """Return the row of a class below a winner; -1 if classes have none."""
    if len(rows) == base:
        return -1
    return base + (winner * classes + k if len(rows) == base + classes * classes else k)


@njit(inline="always")
def _drops(x, v, classes, base, rows, curve, t, node, rest, drop):  # type: ignore[no-untyped-def]
    """Find where every class of voxel v, the t-th of its tile, stands, and how far it drops below the winner.

    Return the winner, which has node -1.
    """
    winner = 0
    for k in range(classes):
        if x[k, v] < 0:
            winner = k
    for k in range(classes):
        where = x[k, v]
        if k == winner:
            node[k, t], rest[k, t], drop[k, t] = -1, 0.0, 0.0
            continue
        m = min(int(where), rows.shape[1] - 2)
        a = where - m
        low, high = curve[m], curve[m + 1]
        own = _own_row(rows, base, classes, winner, k)
        if own >= 0:
            low += rows[own, m]
            high += rows[own, m + 1]
        node[k, t], rest[k, t], drop[k, t] = m, a, low + a * (high - low)
    return winner


@njit(inline="always")
def _exponentials(drop, total, size):  # type: ignore[no-untyped-def]
    """Replace the drops of a tile by probabilities, and set the sums of exponentials."""
    total[:size] = 0.0
    for k in range(len(drop)):
        row = drop[k]
        for t in range(size):
            row[t] = fast_exp(-row[t])
            total[t] += row[t]
    for k in range(len(drop)):
        row = drop[k]
        for t in range(size):
            row[t] /= total[t]


@compiled
def _likelihood(x, target, weight, rows, classes, hats, start, stop, gradient):  # type: ignore[no-untyped-def]
    nodes, base = rows.shape[1], 1 + hats.sum()
    index, share = np.zeros((TILE, 2 * len(hats) + 1), np.int64), np.zeros((TILE, 2 * len(hats) + 1))
    found, winner, own, total = np.zeros(TILE, np.int64), np.zeros(TILE, np.int64), np.zeros(TILE), np.zeros(TILE)
    curve, push = np.zeros(nodes), np.zeros(nodes)
    node, rest, drop = np.zeros((classes, TILE), np.int64), np.zeros((classes, TILE)), np.zeros((classes, TILE))
    value = 0.0
    for begin in range(start, stop, TILE):
        size = min(TILE, stop - begin)
        for t in range(size):
            v = begin + t
            found[t] = _shared(x, v, classes, hats, rows, index[t], share[t], curve)
            winner[t] = _drops(x, v, classes, base, rows, curve, t, node, rest, drop)
            own[t] = drop[target[v], t]
        _exponentials(drop, total, size)  # which become probabilities
        for t in range(size):
            v = begin + t
            value += weight[v] * (own[t] + np.log(total[t]))
            push[:] = 0.0
            for k in range(classes):
                m = node[k, t]
                if m >= 0:
                    residual = weight[v] * ((k == target[v]) - drop[k, t])
                    left, right = residual * (1 - rest[k, t]), residual * rest[k, t]
                    push[m] += left
                    push[m + 1] += right
                    place = _own_row(rows, base, classes, winner[t], k)
                    if place >= 0:
                        gradient[place, m] += left
                        gradient[place, m + 1] += right
            for r in range(found[t]):
                row = gradient[index[t, r]]
                for m in range(nodes):
                    row[m] += share[t, r] * push[m]
    return value


@njit(inline="always")
def _moments(classes, t, node, rest, probs, mean, bend, touched):  # type: ignore[no-untyped-def]
    """Set the mean of a voxel's nodes and its matrix of second moments about it; classes without curvature go.

    Return how many nodes are touched, and list them: all others have zeros, and of most voxels there are few.
    """
    mean[:] = 0.0
    bend[:] = 0.0
    for k in range(classes):
        if node[k, t] >= 0 and probs[k, t] < NO_CURVATURE:
            node[k, t] = -1
        if node[k, t] >= 0:
            m, left, right = node[k, t], probs[k, t] * (1 - rest[k, t]), probs[k, t] * rest[k, t]
            mean[m] += left
            mean[m + 1] += right
            bend[m, m] += left * (1 - rest[k, t])
            bend[m, m + 1] += left * rest[k, t]
            bend[m + 1, m + 1] += right * rest[k, t]
    count = 0
    for m in range(len(mean)):
        if mean[m] != 0.0:
            touched[count] = m
            count += 1
    for i in range(count):
        m = touched[i]
        for j in range(i, count):
            bend[m, touched[j]] -= mean[m] * mean[touched[j]]
    return count


@njit(inline="always")
def _enter(x, v, classes, hats, rows, index, local):  # type: ignore[no-untyped-def]
    """Find the shared rows of the cell in which a voxel stands, and their sum as a linear function of its shares."""
    index[0], first = 0, 1
    local[0] = rows[0]
    for c in range(len(hats)):
        left = first + min(int(x[classes + c, v]), hats[c] - 2)
        index[2 * c + 1], index[2 * c + 2] = left, left + 1
        local[0] += rows[left]
        local[c + 1] = rows[left + 1] - rows[left]
        first += hats[c]


@njit(inline="always")
def _of_classes(rows, base, classes, winner, t, node, rest, spread, starts, place, owner, slope):  # type: ignore[no-untyped-def]
    """List the numbers of classes that a voxel depends on: index, class, and how its drop changes; return how many."""
    groups, count = spread.shape[1], 0
    for k in range(classes):
        starts[k] = count
        m = node[k, t]
        if m >= 0:
            first = (_own_row(rows, base, classes, winner, k) - base) * groups
            for g in range(groups):
                change = (1 - rest[k, t]) * spread[m, g] + rest[k, t] * spread[m + 1, g]
                if change != 0.0:
                    place[count], owner[count], slope[count] = first + g, k, change
                    count += 1
    starts[classes] = count
    return count


@njit(inline="always")
def _add_shared(weight, u, bend, touched, count, products):  # type: ignore[no-untyped-def]
    """Add the second moments of nodes, times every product of two of `u`."""
    for i in range(count):
        for j in range(i, count):
            row, change = products[touched[i], touched[j]], weight * bend[touched[i], touched[j]]
            p = 0
            for a in range(len(u)):
                for b in range(a, len(u)):
                    row[p] += change * u[a] * u[b]
                    p += 1


@njit(inline="always")
def _add_mixed(mass, u, row, node, rest, mean, touched, count):  # type: ignore[no-untyped-def]
    """Add the block between one number of a class and shared nodes, times each of `u`."""
    for i in range(count):
        change = mass * mean[touched[i]]
        for p in range(len(u)):
            row[touched[i], p] -= change * u[p]
    for p in range(len(u)):
        row[node, p] += mass * (1 - rest) * u[p]
        row[node + 1, p] += mass * rest * u[p]


@njit(inline="always")
def _add_own(mass, i, count, end, place, owner, slope, t, probs, row):  # type: ignore[no-untyped-def]
    """Add the block between one number of a class and those from it on; those of its class end at `end`."""
    for j in range(i, end):
        row[place[j]] += mass * slope[j]
    for j in range(i, count):
        row[place[j]] -= mass * probs[owner[j], t] * slope[j]


@njit(inline="always")
def _to_rows(values, out):  # type: ignore[no-untyped-def]
    """Turn sums over voxels times `u` into sums times the shares of rows: 1, and of each context 1 - u and u."""
    out[0] = values[0]
    for c in range(1, len(values)):
        out[2 * c - 1], out[2 * c] = values[0] - values[c], values[c]


@njit(inline="always")
def _leave(index, products, mixed, square, half, both, hessian):  # type: ignore[no-untyped-def]
    """Add what was gathered in a cell to the rows between which its voxels stand, and clear it."""
    nodes, size = products.shape[0], len(square)
    for m in range(nodes):
        for n in range(m, nodes):
            p = 0
            for a in range(size):
                for b in range(a, size):
                    square[a, b] = square[b, a] = products[m, n, p]
                    p += 1
            for a in range(size):
                _to_rows(square[a], half[a])
            for r in range(len(index)):
                _to_rows(half[:, r], both[r])
                for s in range(r, len(index)):
                    hessian[index[r] * nodes + m, index[s] * nodes + n] += both[r, s]
                    if r < s and m < n:
                        hessian[index[r] * nodes + n, index[s] * nodes + m] += both[r, s]
    products[:] = 0.0
    shared = len(hessian) - len(mixed)
    for q in range(len(mixed)):
        for m in range(nodes):
            if mixed[q, m, 0] != 0.0:
                _to_rows(mixed[q, m], both[0])
                for r in range(len(index)):
                    hessian[shared + q, index[r] * nodes + m] += both[0, r]
    mixed[:] = 0.0


@compiled
def _hessian(x, weight, order, cell, rows, spread, classes, hats, start, stop, hessian):  # type: ignore[no-untyped-def]
    """Add to the upper triangle; between numbers of classes, which come last, and shared rows, to the lower one.

    Voxels come cell by cell. Inside one the shares of rows are linear in few numbers u. Sums of products of these are
    gathered, which are fewer than those of rows.
    """
    nodes, base, groups, size = rows.shape[1], 1 + hats.sum(), spread.shape[1], len(hats) + 1
    shared = base * nodes
    index, local = np.zeros(2 * size - 1, np.int64), np.zeros((size, nodes))
    products, mixed = np.zeros((nodes, nodes, size * (size + 1) // 2)), np.zeros((len(hessian) - shared, nodes, size))
    square, half, both = np.zeros((size, size)), np.zeros((size, 2 * size - 1)), np.zeros((2 * size - 1, 2 * size - 1))
    curve, mean, bend, touched = np.zeros(nodes), np.zeros(nodes), np.zeros((nodes, nodes)), np.zeros(nodes, np.int64)
    node, rest, probs = np.zeros((classes, TILE), np.int64), np.zeros((classes, TILE)), np.zeros((classes, TILE))
    shares, winner, total = np.ones((TILE, size)), np.zeros(TILE, np.int64), np.zeros(TILE)
    starts, slope = np.zeros(classes + 1, np.int64), np.zeros(classes * groups)
    place, owner = np.zeros(classes * groups, np.int64), np.zeros(classes * groups, np.int64)
    begin = start
    while begin < stop:
        end = begin + 1
        while end < min(stop, begin + TILE) and cell[order[end]] == cell[order[begin]]:
            end += 1
        _enter(x, order[begin], classes, hats, rows, index, local)
        for t in range(end - begin):
            v = order[begin + t]
            for c in range(len(hats)):
                where = x[classes + c, v]
                shares[t, c + 1] = where - min(int(where), hats[c] - 2)
            curve[:] = 0.0
            for p in range(size):
                for m in range(nodes):
                    curve[m] += shares[t, p] * local[p, m]
            winner[t] = _drops(x, v, classes, base, rows, curve, t, node, rest, probs)
        _exponentials(probs, total, end - begin)
        for t in range(end - begin):
            u, own_weight = shares[t], weight[order[begin + t]]
            found = _moments(classes, t, node, rest, probs, mean, bend, touched)
            _add_shared(own_weight, u, bend, touched, found, products)
            if len(rows) == base:
                continue
            count = _of_classes(rows, base, classes, winner[t], t, node, rest, spread, starts, place, owner, slope)
            for i in range(count):
                k = owner[i]
                mass = own_weight * probs[k, t] * slope[i]
                _add_mixed(mass, u, mixed[place[i]], node[k, t], rest[k, t], mean, touched, found)
                row = hessian[shared + place[i], shared:]
                _add_own(mass, i, count, starts[k + 1], place, owner, slope, t, probs, row)
        if end == stop or cell[order[end]] != cell[order[begin]]:
            _leave(index, products, mixed, square, half, both, hessian)
        begin = end
