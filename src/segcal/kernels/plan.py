r"""What a fused kernel must know of a calibrator: which of five forms its map has, and the tables of that form.

With :math:`x = z - m`, where the *centre* m of a voxel is nothing, its largest logit, its free energy or its last
logit, the scores are, by form,

- ``affine``: :math:`s = W_e x + b_e`, e the winner if there are several maps; tables W, ``(C,)`` for a diagonal or
  ``(E, C, C)``, and b, ``(E, C)``;
- ``drops``: with the logits in descending order and :math:`x_k = z_{(k)} - z_{(k+1)}`,
  :math:`s_{(k)} = -\sum_{l < k} (A_e x + b_e)_l`; tables A, ``(C, C - 1, C - 1)``, and b, ``(C, C - 1)``;
- ``mixture``: :math:`s = \log(w_1 S(\beta z) + w_2 S(z) + w_3 / C)`; table :math:`(\beta, w)`, ``(4,)``;
- ``table``: :math:`s = \log \max(f(S(z)) + \text{slope} \cdot S(z), \text{floor})`, f linear between points; tables
  points, values, and (slope, floor);
- ``curves``: :math:`s_k = -\sum_j (\beta_j(u) + \gamma_{ikj})\, r_j(z_i - z_k)`, the map of
  :mod:`segcal.calibrators.conic`; tables knots, base, hats, knots of hats, and of pairs, ``(1 or C, C, groups)``.

``drops`` are computed in descending order of the logits and cut by a running minimum, since rounding need not be
monotone; ``mixture`` and ``table`` by steps of which each is monotone in float32. The log-probabilities are
:math:`s - \log \sum e^s`, with the winner's lead of :mod:`segcal.calibrators.tie_break`. Tables are float64, and are
used in the type that is computed in.
"""

from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

Form: TypeAlias = Literal["affine", "drops", "mixture", "table", "curves"]
Centre: TypeAlias = Literal["nothing", "top", "energy", "last"]
CENTRES: tuple[Centre, ...] = ("nothing", "top", "energy", "last")

# The winner's lead, in units of the rounding of the result: see segcal.calibrators.tie_break.
LEAD_UNITS = 8


class FusedPlan(NamedTuple):
    """A calibrator's map, as data.

    Attributes:
        form: one of the five.
        tables: of that form, float64, where the calibrator is.
        centre: what is taken from the logits of a voxel; for ``affine``.
        keeps: whether the decision must survive the rounding of the result.
        spans: how many knots each context has; for ``curves``.
        group: ramps that share a coefficient of a pair; for ``curves``.
        bounded: a uniform part keeps all probabilities within what float32 can say; for ``mixture``.
    """

    form: Form
    tables: tuple[Tensor, ...]
    centre: Centre = "top"
    keeps: bool = False
    spans: tuple[int, ...] = ()
    group: int = 1
    bounded: bool = True
