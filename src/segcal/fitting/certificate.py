"""A fitted calibrator, and the evidence of how far its fit came."""

from dataclasses import asdict, dataclass, field
from typing import Any

from segcal.calibrators.base import Calibrator
from segcal.fitting.config import FitConfig
from segcal.fitting.evidence import FitEvidence
from segcal.fitting.object_reference import ObjectReference
from segcal.fitting.reference import Reference
from segcal.raters import Raters


@dataclass(frozen=True)
class Certificate:
    """The evidence that a fit reached what it was asked for.

    Attributes:
        method: how it was fitted, a name of :data:`segcal.fitting.METHODS`.
        objective: mean NLL plus penalty on the voxels used.
        nll: mean NLL on the voxels used.
        kkt_residual: largest component of the projected gradient of the objective, or None where the method has no
            such thing.
        converged: whether the residual met the tolerance.
        passes: how often the voxels were visited.
        voxels: how many were used.
        voxels_available: of how many labelled ones.
        lam: strength on off-diagonal weights.
        mu: strength on biases.
        nu: strength on the distance of diagonal weights from temperature scaling.
        inverse_temperature: of that temperature scaling, or of this one; None if nu is 0.
        validation_nll: mean NLL on the validation voxels, if there were any.
        path: each strength that was tried, with the mean NLL over held-out cases.
        active_bounds: parameters that ended at an outer bound, by name; without the bounds they might not exist.
        separable: experts whose voxels are (nearly) all explained, so that a bound or the penalty holds them.
        untouched: experts without voxels, which keep the identity, or the temperature that the penalty leads to.
        shrunk: winner, label (-1 for any) and groups that have both, where these are not all: the penalty of parameters
            of this pair weighs more by the ratio, and of fewer groups than `FitConfig.evidence` it has none.
        evidence: what the fit rests on, class by class; None of older fits, and of several regions.
        full_residual: the residual on all voxels, if it was asked for.
        curve: validation NLL after each evaluation of a gradient method.
        details: what is particular to a method.
    """

    method: str
    objective: float
    nll: float
    kkt_residual: float | None
    converged: bool
    passes: int
    voxels: int
    voxels_available: int
    lam: float = 0.0
    mu: float = 0.0
    nu: float = 0.0
    inverse_temperature: float | None = None
    validation_nll: float | None = None
    path: tuple[dict[str, float], ...] = ()
    active_bounds: tuple[str, ...] = ()
    separable: tuple[int, ...] = ()
    untouched: tuple[int, ...] = ()
    shrunk: tuple[tuple[int, int, int], ...] = ()
    evidence: FitEvidence | None = None
    full_residual: float | None = None
    curve: tuple[float, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Fitted:
    """A fitted calibrator with its certificate and where it came from; printed, what a person wants to know of it.

    Attributes:
        calibrator: the calibrator, ready to use.
        certificate: what is known about the fit.
        config: the options of the fit.
        class_names: one name per class, or None.
        pooling: the pooling of the cases it was fitted on, or None if that is not known.
        kind: what the numbers of those cases were.
        fingerprint: digest of those cases.
        calibration_ids: the cases it was fitted on.
        validation_ids: the cases on which strengths were chosen.
        origin: where the predictions came from (:attr:`segcal.cases.Cases.origin`).
        grouping: the declaration of its groups (:attr:`segcal.cases.Cases.grouping`), which later cases take over.
        reference: what it remembers of labelled cases, for :func:`segcal.trust`; None if it was not asked to.
        objects: what it remembers of their objects, for :func:`segcal.objects`; None if it was not asked to.
        raters: several raters who labelled the cases, with their weights; None of one.
    """

    calibrator: Calibrator
    certificate: Certificate
    config: FitConfig
    class_names: tuple[str, ...] | None = None
    pooling: str | None = None
    kind: str = "logits"
    fingerprint: str = ""
    calibration_ids: tuple[str, ...] = ()
    validation_ids: tuple[str, ...] = ()
    origin: str = ""
    grouping: str | None = None
    reference: Reference | None = None
    objects: ObjectReference | None = None
    raters: Raters | None = None

    def __repr__(self) -> str:
        found = self.certificate
        noun = "case" if len(self.calibration_ids) == 1 else "cases"
        pooled = "" if self.pooling is None else f", pooled by {self.pooling}"
        pooled += "" if self.raters is None else f", labels of {self.raters}"
        lines = [
            repr(self.calibrator),
            f"fitted to {found.voxels:,} of {found.voxels_available:,} voxels of {len(self.calibration_ids)} {noun} "
            f"({self.kind}{pooled}), NLL {found.nll:.5f}",
        ]
        if found.kkt_residual is not None:
            lines.append(
                f"residual {found.kkt_residual:.1e}" + ("" if found.converged else ", which is above the tolerance")
            )
        elif not found.converged:
            lines.append("the training ended before it stopped of itself")
        if found.lam or found.mu or found.nu:
            chosen = " (chosen on held-out cases)" if found.path else ""
            lines.append(f"strengths lam = {found.lam:g}, mu = {found.mu:g}, nu = {found.nu:g}{chosen}")
        if found.untouched:
            names = self.class_names or [str(number) for number in range(self.calibrator.num_classes)]
            lines.append(
                f"never predicted, so left untouched: {', '.join(names[expert] for expert in found.untouched)}"
            )
        if "reason" in found.details:
            lines.append(str(found.details["reason"]))
        return "\n".join(lines)
