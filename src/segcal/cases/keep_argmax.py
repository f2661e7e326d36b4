r"""Keeping a decision through rounding.

A calibrator that keeps the mask leaves the old winner :math:`w` with :math:`s_w \ge s_j` for all classes. Rounded to a
file's float16 or float32, two scores can become equal, and then a lowest-index ``argmax`` may name another class
(definitions 13.8). :func:`keep_decision` lowers such classes by the least amount that the number type allows. Those
with a lower index go to the next number below :math:`s_w`, the others to :math:`s_w` itself. The winner's own value
never changes, no value rises, and a voxel whose winner is right already is not touched.

Another class that is above the winner by more than rounding can explain is a changed decision, which is an error.
"""

import numpy as np

from segcal.checks import as_tensor
from segcal.errors import InputError
from segcal.kernels.compare_winner import WINS, compare_winner
from segcal.numerics import winner as decide

# exp, log and the division by a sum are each within two units in the last place, and rounding adds one.
MAX_UNITS = 8


def keep_decision(values: np.ndarray, winner: np.ndarray, name: str = "values") -> np.ndarray:
    """Make `winner` ``(*space)`` the lowest-index maximum over axis 0 of `values`, in place, and return `values`.

    Values are floating-point scores ``(classes, *space)`` as they will be stored; `name` is for messages.

    >>> keep_decision(np.array([[0.5], [0.5]], np.float16), np.array([1])).T
    array([[0.4998, 0.5   ]], dtype=float16)
    """
    wrong = compare_winner(as_tensor(values, "values"), as_tensor(winner, "winner")) != WINS
    if not wrong.any():
        return values
    scores = values[:, wrong]
    wanted = winner[wrong].astype(np.int64)
    own = np.take_along_axis(scores, wanted[None], axis=0)
    highest = scores.max(axis=0, keepdims=True)
    # Compared in float64: float16 differences overflow.
    excess = highest.astype(np.float64) - own.astype(np.float64)
    beyond = excess > MAX_UNITS * np.spacing(np.maximum(np.abs(highest), np.abs(own))).astype(np.float64)
    if beyond.any():
        raise InputError(
            f"{name} would name another class at {int(beyond.sum())} of {winner.size} voxels, but the decision is to "
            "be kept. Use a calibrator that preserves the argmax, or write without keeping the decision."
        )
    below = np.nextafter(own, np.asarray(-np.inf, own.dtype))
    lower_index = np.arange(len(scores))[:, None] < wanted
    others = np.arange(len(scores))[:, None] != wanted
    limit = np.where(lower_index, below, own)
    values[:, wrong] = np.where(others, np.minimum(scores, limit), scores)
    return values


def lowest_argmax(values: np.ndarray) -> np.ndarray:
    """Return the winning class of scores ``(classes, *space)``, the lowest of equal ones.

    >>> lowest_argmax(np.array([[1, 2], [1, 3]], np.float16))
    array([0, 1])
    """
    found: np.ndarray = decide(as_tensor(values, "values"), axis=0).numpy()  # twice as fast as numpy for half types
    return found


def keep_binary_decision(foreground: np.ndarray, winner: np.ndarray, name: str = "values") -> np.ndarray:
    """Put foreground probabilities on the side of 0.5 that `winner` says, in place, and return them.

    Class 1 wins above 0.5; at 0.5 exactly both classes are equal and the lower index wins.

    >>> keep_binary_decision(np.array([0.5, 0.5], np.float32), np.array([0, 1]))
    array([0.5       , 0.50000006], dtype=float32)
    """
    return keep_side(foreground, winner == 1, 0.5, name)


def keep_side(values: np.ndarray, above: np.ndarray, limit: float, name: str = "values") -> np.ndarray:
    """Put values above a limit exactly where `above` says, in place, and return them; at the limit they are not.

    >>> keep_side(np.array([0.0, 0.0, 1.0], np.float16), np.array([False, True, True]), 0.0)
    array([0.e+00, 6.e-08, 1.e+00], dtype=float16)
    """
    edge = values.dtype.type(limit)
    wrong = (values > edge) != above
    if (np.abs(values[wrong].astype(np.float64) - limit) > MAX_UNITS * np.spacing(edge)).any():
        raise InputError(
            f"{name} would name the other class at {int(wrong.sum())} of {above.size} voxels, but the decision is to "
            "be kept. Use a calibrator that preserves the argmax, or write without keeping the decision."
        )
    values[wrong] = np.where(above[wrong], np.nextafter(edge, values.dtype.type(np.inf)), edge)
    return values
