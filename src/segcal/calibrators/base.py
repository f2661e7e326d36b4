r"""The contract of every calibrator.

A calibrator is a :class:`torch.nn.Module` that maps logits to log-probabilities of the same shape,
``(batch, classes, *space)``. A subclass writes :meth:`Calibrator.scores`: unnormalised log-probabilities,
in which decisions are compared. This class checks the input, normalises, and keeps the decision through the rounding
of it (:func:`segcal.calibrators.tie_break.with_winner`). Its promises are attributes, and one contract test proves them
for every member of the registry.

Parameters are kept in float64, the precision they are fitted in, and are cast to the type of the input when used. Half
types are computed in float32, float32 in float32, float64 in float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from segcal.calibrators.tie_break import with_winner
from segcal.checks import check_forward, check_num_classes
from segcal.errors import InputError
from segcal.kernels.apply import Served, apply_plan, served, writes_into
from segcal.kernels.plan import FusedPlan
from segcal.numerics import compute_dtype
from segcal.regions import Regions
from segcal.types import Context, Logits, LogProbs, Preserves

# The lowest value of a scale, such as an inverse temperature, and where training by gradient starts at the lowest.
SMALLEST_SCALE = 1e-3
KEPT = {"order": "keeps the order of all classes", "argmax": "keeps the argmax", None: "may change the argmax"}


class Evidence(NamedTuple):
    """A property of fitted parameters on which a promise rests, in words, and by how much it does not hold."""

    property: str
    violation: float


class Calibrator(nn.Module, ABC):
    """Maps logits to calibrated log-probabilities.

    Attributes:
        name: its name in the registry; of a class that is not there, the name of the class.
        regions: of a calibrator of regions, what they are; None of one of classes.
        title: what it is called outside of code; "" for a class that has no such name.
        translation_invariant: adding a constant to all logits of a voxel does not change the result.
        preserves: "argmax" if the winning class of a voxel never changes, "order" if no two classes ever change
            places, None if nothing is promised. A change of scores means *strictly* another class above; of the
            result, another class by ``argmax``, which takes the first of equal ones.
        pointwise: a voxel's result depends on that voxel alone.
        wants: names of what its fit looks at around the voxels (:mod:`segcal.calibrators.neighbourhood`).
        sees_members: it must be given how much the members of an ensemble disagree.
        sees_image: of a part of an image it must be given what it sees of the whole.
        fitted_by: the method of :mod:`segcal.fitting` that fits it.
        in_paper: the papers have a procedure that fits it.
        competes: `segcal fit` compares it without being told to.
        one_temperature: all it does is to divide the logits by one number.
        has_penalty: whether its penalty has a term on weights (lam) and one on biases (mu).
        copies: what a fit holds of its size besides the parameters: gradients, steps, the best so far.
        positives: parameters that a fit keeps positive.
        mixtures: parameters that are weights of a mixture.
        rests_on: what the promise about decisions rests on, in words, where it rests on `positives` and `mixtures`.
        smallest_start: where training by gradient starts a positive parameter, at least.
        fitted_tables: buffers that a fit fills as if they were parameters.
        redundant: directions of parameter space that do not change the output (Table 2).
        options: the arguments, besides `num_classes`, that make it again; plain data, written to artefacts.
    """

    name: str
    title: str = ""
    translation_invariant: bool
    preserves: Preserves
    pointwise: bool = True
    wants: tuple[str, ...] = ()
    sees_members: bool = False
    sees_image: bool = False
    fitted_by: str
    in_paper: bool = True
    competes: bool = False
    one_temperature: bool = False
    has_penalty: tuple[bool, bool] = (False, False)
    copies: int = 8
    positives: tuple[str, ...] = ()
    mixtures: tuple[str, ...] = ()
    rests_on: str = ""
    smallest_start: float = SMALLEST_SCALE
    fitted_tables: tuple[str, ...] = ()
    redundant: int = 0
    regions: Regions | None = None

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__()
        self.num_classes = check_num_classes(num_classes)
        self.name = vars(type(self)).get("name", type(self).__name__)
        self.options: dict[str, Any] = options

    @property
    def neighbourhood(self) -> str:
        """Its inputs beside the voxel, in words."""
        return "neighbours"

    @property
    def sentence(self) -> str:
        """One plain sentence on what it does: the first line of its class."""
        return (type(self).__doc__ or "").strip().split("\n")[0]

    @abstractmethod
    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return unnormalised log-probabilities of float32 or float64 logits ``(batch, classes, *space)``."""

    def plan(self) -> FusedPlan | None:
        """Return its map as fused kernels take it; None where only tensor operations say it."""
        return None

    def around(self, logits: Logits, context: Context | None) -> Tensor | None:
        """Return what its plan must be given of a voxel's neighbourhood, ``(batch, contexts, *space)``."""
        return None

    def scores_at(self, logits: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the scores ``(C, n)`` of single voxels, with their neighbourhood ``(K, n)`` if it is seen.

        They are right up to a number per voxel. Where no gradients are wanted, a fused kernel may make them.
        """
        return self.quick_scores(logits[None])[0]

    def reach(self, axes: int) -> tuple[int, ...] | None:
        """Return how far a voxel sees along each of `axes` axes of space; None if it sees the whole image."""
        return (0,) * axes

    def evidence(self) -> dict[str, Evidence]:
        """Return the properties of the parameters that promises rest on, by promise ("offset" or "decision").

        A promise without an entry holds by construction, whatever the parameters. A calibrator that does not make
        the promise may still return an entry: the property that would give it.
        """
        if not self.rests_on:
            return {}
        lowest = min(float(getattr(self, name).detach().min()) for name in (*self.positives, *self.mixtures))
        return {"decision": Evidence(self.rests_on, max(0.0, -lowest))}

    def become_temperature(self, temperature: float) -> None:
        """Set the parameters so that it is temperature scaling, from which a fit by gradient starts."""
        raise NotImplementedError(f"{self.name} is not fitted by gradient")

    def positive(self) -> dict[str, float]:
        """Return the parameters that training by gradient keeps positive, each with the smallest start."""
        return dict.fromkeys(self.positives, self.smallest_start)

    def penalty(self, lam: float, mu: float) -> Tensor:
        """Return the penalty of the parameters, differentiable; zero for a calibrator that has none."""
        return torch.zeros((), dtype=torch.float64)

    def as_fitted(self) -> "Calibrator":
        """Return one that is as large and sees as much as a fit to images leaves it."""
        return self

    def num_parameters(self) -> int:
        """Return how many scalars are fitted (Table 2)."""
        held = (each for each in self.modules() if isinstance(each, Calibrator))
        tables = [getattr(each, name) for each in held for name in each.fitted_tables]
        return sum(values.numel() for values in (*self.parameters(), *tables))

    def num_identifiable(self) -> int:
        """Return how many directions of parameter space change the output (Table 2)."""
        return self.num_parameters() - self.redundant

    @property
    def temperature(self) -> float | None:
        """The temperature that divides the logits of all voxels; None where there is no such thing."""
        inverse = getattr(self, "inverse_temperature", None)
        return None if inverse is None else float(1 / inverse.detach())

    def forward(self, logits: Logits, context: Context | None = None, *, out: Tensor | None = None) -> LogProbs:
        """Return calibrated log-probabilities in the shape of `logits`; half types come back as float32.

        Args:
            logits: ``(batch, classes, *space)``.
            context: what else a voxel may see.
            out: where to write them, of the shape of the logits and any floating type; it may be the logits themselves.
                Only where no gradients are wanted.
        """
        check_forward(logits, self.num_classes, finite=False)
        check_context(context)
        if out is not None:
            check_out(out, logits)
        log_probs = self._fused(logits, context, normalises=True, out=out)
        if log_probs is None:
            check_forward(logits, self.num_classes)
            wide = logits.to(compute_dtype(logits.dtype))
            log_probs = torch.log_softmax(self.scores(wide, context), dim=1)
            log_probs = log_probs if self.preserves is None else with_winner(log_probs, wide)
        if out is None or log_probs is out:
            return log_probs
        rounded = log_probs.to(out.dtype)
        return out.copy_(rounded if self.preserves is None else with_winner(rounded, logits))

    def quick_scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return :meth:`scores`, up to a number per voxel, without gradients, by a fused kernel where there is one."""
        found = self._fused(logits, context, normalises=False)
        return self.scores(logits.to(compute_dtype(logits.dtype)), context) if found is None else found

    def served(self, logits: Logits) -> Served:
        """Return who computes these logits: a fused kernel, or tensor operations and why."""
        return self._served(logits)[0]

    def _served(self, logits: Logits) -> tuple[Served, FusedPlan | None]:
        trained = logits.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        trained, plan = trained and torch.is_grad_enabled(), None
        if not trained and not torch.compiler.is_compiling() and self._plan_is_of_its_scores():
            with torch.no_grad():
                plan = self.plan()
        return served(plan, logits, trained), plan

    def _fused(
        self, logits: Logits, context: Context | None, normalises: bool, out: Tensor | None = None
    ) -> Tensor | None:
        """Return what a fused kernel makes of the logits, in `out` if it can write there; None where there is none."""
        who, plan = self._served(logits)
        if who.by == "torch" or plan is None:
            return None
        around, wide = None, compute_dtype(logits.dtype)
        if plan.form == "curves":
            around = self.around(logits.to(wide), context)
        place = out if out is not None and writes_into(out, logits) else None
        kinds = (torch.float16, torch.bfloat16, torch.float32) if who.by == "triton" else (wide,)
        if place is not None and place.dtype not in kinds:
            place = None
        return apply_plan(who.by, plan, logits, around, normalises, place)

    def _plan_is_of_its_scores(self) -> bool:
        """Return whether no subclass has other scores than those that the plan says."""
        order = type(self).__mro__
        said = ("scores", "frame", "around", "scores_at")  # of which scores are made
        first = {name: next((k for k, one in enumerate(order) if name in vars(one)), len(order)) for name in said}
        return next(k for k, one in enumerate(order) if "plan" in vars(one)) <= min(first.values())

    def __repr__(self) -> str:
        scale = "" if self.temperature is None else f", T = {self.temperature:.4g}"
        offset = "does not see" if self.translation_invariant else "depends on"
        sees = "voxel by voxel" if self.pointwise else f"sees {self.neighbourhood}"
        size = "1 parameter" if self.num_parameters() == 1 else f"{self.num_parameters():,} parameters"
        return (
            f"{self.name} for {self.num_classes} classes{scale}: {KEPT[self.preserves]}, {offset} the offset of the "
            f"logits, {sees}; {size}"
        )


class Holder(Calibrator):
    """A calibrator that is made of others: it sees what these see, and promises no more than all of these do.

    Attributes:
        inner: the other, or a list of others; None for none.
    """

    inner: nn.Module | None

    def __init__(self, num_classes: int, held: Sequence[Calibrator], **options: Any) -> None:
        super().__init__(num_classes, **options)
        self.translation_invariant = all(each.translation_invariant for each in held)
        self.pointwise = all(each.pointwise for each in held)
        self.sees_members = any(each.sees_members for each in held)
        self.sees_image = any(each.sees_image for each in held)

    @property
    def held(self) -> list[Calibrator]:
        """The calibrators that it is made of."""
        found = self.inner if isinstance(self.inner, nn.ModuleList) else [self.inner]
        return [each for each in found if isinstance(each, Calibrator)]

    @property
    def neighbourhood(self) -> str:
        """Their inputs beside the voxel, in words."""
        return "; ".join(dict.fromkeys(each.neighbourhood for each in self.held if not each.pointwise))

    def reach(self, axes: int) -> tuple[int, ...] | None:
        """Return how far the calibrator sees that sees farthest."""
        found = [(0,) * axes, *(each.reach(axes) for each in self.held)]
        known = [each for each in found if each is not None]
        return tuple(map(max, zip(*known, strict=True))) if len(known) == len(found) else None

    def evidence(self) -> dict[str, Evidence]:
        """Return what is weakest of what the promises of the calibrators rest on."""
        found: dict[str, Evidence] = {}
        for each in self.held:
            for promise, own in each.evidence().items():
                if promise not in found or own.violation > found[promise].violation:
                    found[promise] = own
        return found


def check_context(context: Context | None) -> None:
    """Refuse a bare image where a context is needed."""
    if context is not None and not isinstance(context, Context):
        raise InputError(
            f"context is {type(context).__name__}, but a Context is needed. Pass an image as "
            "segcal.Context(image=image)."
        )
    for name, value in zip(Context._fields, () if context is None else context, strict=False):
        if value is not None and not isinstance(value, Tensor):
            raise InputError(
                f"{name} of the context is {type(value).__name__}, but a tensor is needed. Convert it first."
            )


def check_out(out: Tensor, logits: Tensor) -> None:
    """Refuse an output tensor that does not fit the logits."""
    if not isinstance(out, Tensor):
        raise InputError(f"out is {type(out).__name__}, but a tensor is needed. Leave it out for a new one.")
    fits = out.shape == logits.shape and out.device == logits.device and out.is_floating_point()
    if not fits or out.requires_grad or (logits.requires_grad and torch.is_grad_enabled()):
        kind = str(out.dtype).removeprefix("torch.")
        raise InputError(
            f"out has shape {tuple(out.shape)}, type {kind} and device {out.device}, but a floating type, the shape "
            f"{tuple(logits.shape)} and the device {logits.device} of the logits are needed, and no gradients. "
            "Leave it out for a new tensor."
        )
