"""Tables for the kernels of CUDA devices, computed with as a kernel computes with them, in NumPy."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal import make_calibrator
from segcal.kernels.plan import (
    FIRST,
    PLACES,
    SHIFT,
    affine_tables,
    curve_tables,
    drop_tables,
    first_guesses,
    function_tables,
    network_tables,
    searched,
    sorting_network,
)


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_a_network_sorts_all_zeros_and_ones_and_so_everything(size):
    network = sorting_network(size)
    for values in itertools.product((0, 1), repeat=size):
        row = list(values)
        for i, j in zip(network[::2], network[1::2], strict=True):
            assert i < j
            row[i], row[j] = min(row[i], row[j]), max(row[i], row[j])
        assert row == sorted(values)


@pytest.mark.parametrize("size", [20, 33])
def test_a_network_sorts_many_numbers(size):
    values = np.random.default_rng(size).normal(size=(size, 500)).round(1)
    rows = list(values)
    network = sorting_network(size)
    for i, j in zip(network[::2], network[1::2], strict=True):
        rows[i], rows[j] = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
    assert (np.array(rows) == np.sort(values, axis=0)).all()


def places(p):
    """Return which interval of the first guesses a float32 probability is in."""
    low = p <= np.float32(0.5)
    bits = np.where(low, p, np.float32(1) - p).astype(np.float32).view(np.int32) >> SHIFT
    place = np.clip(bits - FIRST, 0, PLACES - 1)
    return np.where(low, place, 2 * PLACES - 1 - place)


@given(st.integers(0, 10**6), st.sampled_from(["even", "steep", "few", "equal"]))
def test_a_search_from_the_first_guess_finds_how_many_points_are_below(seed, shape):
    rng = np.random.default_rng(seed)
    if shape == "even":
        points = np.linspace(0, 1, 1024)
    elif shape == "steep":
        points = 1 / (1 + np.exp(-rng.normal(scale=8, size=300)))
    else:
        points = rng.choice([0.0, 1e-12, 0.25, 0.5, 0.75, 1 - 2.0**-24, 1.0], 5 if shape == "equal" else 4)
    points = np.sort(points).astype(np.float32)
    p = np.concatenate([rng.random(300) ** rng.integers(1, 30), 1 - rng.random(300) ** 20, points, [0.5, 1.0, 1e-37]])
    p = p.astype(np.float32)
    guesses = first_guesses(torch.from_numpy(points)).numpy()
    assert len(guesses) == 2 * PLACES + 1
    below, step = guesses[places(p)].astype(np.int64), int(guesses[-1])
    while step > 0:
        further = below + step
        inside = points[np.minimum(further, len(points)) - 1] < p
        below = np.where((further <= len(points)) & inside, further, below)
        step //= 2
    assert (below == np.searchsorted(points, p)).all()


def test_pieces_of_a_table_meet_its_points():
    points, heights = torch.tensor([0.0, 0.2, 0.2, 1.0]), torch.tensor([0.1, 0.3, 0.4, 0.9])
    (table, _, numbers), knots = function_tables("table", [points, heights, torch.tensor([1e-6, 1e-9])], 3)
    assert knots == 4
    assert numbers.tolist() == torch.tensor([1e-6, 1e-9]).tolist()
    for right, p, expected in ((1, 0.1, 0.2), (1, 0.2, 0.3), (2, 0.2001, 0.4), (3, 0.6, 0.65)):
        low, slope = table[right - 1], table[knots + right]
        found = (max(p - float(low), 0) * float(slope)) + float(table[2 * knots + right - 1])
        assert min(found, float(table[2 * knots + right])) == pytest.approx(expected, abs=1e-6)


def test_a_piece_is_found_by_how_many_points_are_below():
    rng = np.random.default_rng(0)
    points, heights = np.sort(rng.random(7)).astype(np.float32), np.sort(rng.random(7)).astype(np.float32)
    (table, _, _), knots = function_tables(
        "table", [torch.from_numpy(points), torch.from_numpy(heights), torch.zeros(2)], 3
    )
    reached, pieces = (part.numpy() for part in searched(table, knots))
    assert reached[:7].tolist() == points.tolist()
    assert len(reached) >= 2 * 7
    assert (reached[7:] == np.inf).all()
    for p in (*rng.random(50), 0.0, points[0], points[3], 1.0):
        low, slope, low_height, high_height = pieces[np.searchsorted(points, p)]
        found = min(max(p - low, 0) * slope + low_height, high_height)
        assert found == pytest.approx(np.interp(p, points, heights), abs=1e-6)


def test_drops_of_sorted_gaps_are_those_of_their_differences():
    rng, classes = np.random.default_rng(0), 6
    matrix, bias = rng.random((classes, 5, 5)), rng.random((classes, 5))
    fours = drop_tables([torch.from_numpy(matrix), torch.from_numpy(bias)]).numpy()
    assert fours.shape == (5, 2, classes, 4)
    gaps = np.sort(np.append(0, rng.random(5) * 6))
    given = np.append(1, gaps[1:])  # the bias has the place of the first gap
    for winner in range(classes):
        expected = np.cumsum(matrix[winner] @ np.diff(gaps) + bias[winner])
        found = fours[:, :, winner].reshape(5, 8)
        assert found[:, :6] @ given == pytest.approx(expected, abs=1e-5)
        assert not found[:, 6:].any()


def test_maps_lie_by_row_then_four_columns_then_winner():
    matrix, bias = torch.arange(32.0).reshape(2, 4, 4), torch.arange(8.0).reshape(2, 4)
    fours = affine_tables([matrix, bias])
    assert fours.shape == (4, 2, 2, 4)  # five columns, of which the first is the bias
    for row in range(4):
        for winner in range(2):
            given = fours[row, :, winner].flatten().tolist()
            assert given == [float(bias[winner, row]), *matrix[winner, row].tolist(), 0, 0, 0]


def test_layers_lie_by_row_with_the_bias_before_the_weights():
    network = make_calibrator("pts", 6, largest=4, hidden=(3, 2)).requires_grad_(False).network
    for parameter in network.parameters():
        parameter += torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layers = zip(network.weights, network.biases, strict=True)
    numbers, sizes, starts = network_tables([each for layer in layers for each in layer])
    assert (sizes, starts) == ((4, 3, 2, 1), (0, 15, 23))
    given = values = torch.randn(4, generator=torch.Generator().manual_seed(1))
    for before, after, start in zip(sizes, sizes[1:], starts, strict=False):
        rows = numbers[start : start + after * (before + 1)].reshape(after, before + 1)
        values = rows[:, 0] + rows[:, 1:] @ (values if start == 0 else values.relu())
    torch.testing.assert_close(values, network(given))


@pytest.mark.parametrize("contexts", [[], ["gap_far", "share_far", "gap_image"]])
@pytest.mark.parametrize("by_class", [False, True])
def test_curves_of_shares_are_those_of_the_calibrator(by_class, contexts):
    generator = torch.Generator().manual_seed(0)
    calibrator = make_calibrator("conic_class" if by_class else "conic", 4, contexts=contexts)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
    calibrator.knots[1:] = torch.tensor([0.3, 0.9, 1.0, 2.0, 2.5, 4.0, 7.0])
    calibrator.hat_knots += 0.3 * torch.rand(calibrator.hat_knots.shape, dtype=torch.float64, generator=generator)
    logits = 4 * torch.randn(4, 300, dtype=torch.float64, generator=generator)
    around = 5 * torch.rand(len(contexts), 300, dtype=torch.float64, generator=generator)
    plan = calibrator.plan()
    tables, (ramps, _, owners, winners, group, _) = curve_tables(plan, list(plan.tables))
    rows, slopes, pieces, pairs = (table.detach().double().numpy() for table in tables)
    rows, pieces, slopes = rows.reshape(-1, 4), pieces.reshape(-1, 2), slopes.reshape(len(owners) + 1, -1)
    shares = [np.clip(around[c].numpy() * rate + start, 0, 1) for c, (start, rate) in zip(owners, pieces, strict=True)]
    shared = np.maximum(slopes[0][:, None] + sum(np.outer(s, v).T for s, v in zip(shares, slopes[1:], strict=True)), 0)
    gaps, winner = (logits.amax(0) - logits).numpy(), logits.argmax(0).numpy()
    scores = np.zeros_like(gaps)
    for k in range(4):
        for j, (start, rate, width, _) in enumerate(rows):
            ramp = np.clip(gaps[k] * rate + start, 0, 1 if j + 1 < ramps else None)
            own = pairs[k, j // group // 4, winner, j // group % 4] if winners else 0.0
            scores[k] -= (shared[j] + own * width) * ramp
    expected = calibrator._mapped(logits[None], around[None])[0].detach().numpy()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)
