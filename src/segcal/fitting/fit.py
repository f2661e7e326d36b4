"""The one entry to fitting."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from segcal.arguments import fits, in_words, shown, typed
from segcal.calibrators import make_calibrator
from segcal.calibrators.base import Calibrator
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Workers, kept_processes
from segcal.errors import InputError
from segcal.fitting.by_region import fit_by_region, inner_of
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig, check_config
from segcal.fitting.entropy_threshold import fit_entropy_threshold
from segcal.fitting.evidence import collect
from segcal.fitting.exact import fit_convex
from segcal.fitting.gradient_fit import fit_by_gradient
from segcal.fitting.mixture import fit_mixture
from segcal.fitting.outliers import weigh
from segcal.fitting.paper import fit_as_in_paper
from segcal.fitting.progress import Report, reporting, silent
from segcal.fitting.request import FitData, Request, check_cases, read_data, take_parts
from segcal.fitting.scores import certify
from segcal.fitting.selective import fit_selective
from segcal.fitting.table_fit import fit_histogram, fit_isotonic
from segcal.types import Preserves


def _fit_nothing(request: Request) -> Certificate:
    """Leave a calibrator without parameters as it is."""
    total = weight = 0.0
    for voxels in request.source:
        log_probs = torch.log_softmax(request.calibrator.scores(voxels.logits.T.double()), dim=1)
        own = log_probs.gather(1, voxels.labels.long()[:, None])[:, 0]
        total -= float((voxels.weight.double() * own).sum())
        weight += float(voxels.weight.double().sum())
    return certify(request, "nothing", total / weight, kkt_residual=0.0)


def _fit_selector(request: Request) -> Certificate:
    """Fit selective scaling, and what it holds by that one's own method."""
    return fit_selective(request, fit_declared)


# How a calibrator is fitted, by what it declares in `fitted_by`.
METHODS: dict[str, Callable[[Request], Certificate]] = {
    "nothing": _fit_nothing,
    "convex": fit_convex,
    "mixture": fit_mixture,
    "gradient": fit_by_gradient,
    "selector": _fit_selector,
    "entropy_threshold": fit_entropy_threshold,
    "isotonic": fit_isotonic,
    "histogram": fit_histogram,
}
# How it is fitted by `FitConfig.paper()`, where the paper's procedure is another; the rest is fitted as above.
PAPER_METHODS: dict[str, Callable[[Request], Certificate]] = {
    "convex": fit_as_in_paper,
    "mixture": fit_as_in_paper,
}


def fit_declared(request: Request) -> Certificate:
    """Fit a calibrator by the method that it declares."""
    as_in_paper = request.config.method == "paper" and request.calibrator.in_paper
    return (METHODS | PAPER_METHODS if as_in_paper else METHODS)[request.calibrator.fitted_by](request)


@typed
def fit(
    name_or_calibrator: str | Calibrator,
    cases: Any,
    labels: Any = None,
    config: FitConfig | None = None,
    device: str | torch.device | None = None,
    *,
    validation: Any = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Report | None = None,
    **declared: Any,
) -> Fitted:
    """Fit a calibrator to labelled cases.

    Args:
        name_or_calibrator: a name of :data:`segcal.CALIBRATORS`, or a calibrator object, whose parameters are where
            the fit starts; the object itself is not changed.
        cases: the calibration cases; or an array ``(batch, classes, *space)`` with `labels`, a list of arrays, a loader
            or a generator of (logits, labels), or with ``model=net`` a loader of (images, labels).
        labels: one label map per case, for arrays. Cases that stand here are `validation`.
        config: how; the default goes to the certified optimum.
        device: where to compute; the CPU if not given.
        validation: cases on which the strengths of the penalty are chosen (and on which gradient methods stop); or a
            pair (logits, labels), or a loader.
        workers: how many processes read cases, and, with ``voxels="all"``, go through them on every pass.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: takes short texts on how far it is; without it they are shown on a terminal.
        declared: what cannot be read from arrays and loaders, as :func:`segcal.cases.as_cases` takes it: ``kind``
            ("logits" by default), ``model``, ``inferer``, ``pooling``, ``ignore``, ``groups``, ...

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1, 3, 500)).astype("float32")
    >>> labels = (3 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> round(fit("ts", logits, labels).calibrator.temperature, 1)
    0.3
    """
    config = check_config(config)
    # What can be refused at once is, before anything is read.
    cases, validation = take_parts(cases, labels, validation, declared)
    check_cases(cases, validation)
    if cases.regions is not None:

        def fit_one(number: int, own: Cases, others: Cases | None) -> Fitted:
            inner = inner_of(name_or_calibrator, cases, number)
            return fit(
                inner, own, None, config, device, validation=others, workers=workers, failed=failed, progress=progress
            )

        return fit_by_region(cases, validation, fit_one)
    calibrator = _fresh(name_or_calibrator, cases)
    cases.require_offset(calibrator.name, calibrator.translation_invariant)
    check_device(device)
    with reporting("fitting", progress) as report, kept_processes(workers) as kept:
        data = read_data(cases, validation, config, report, kept, failed, suspect=True, contexts=calibrator.wants)
        return fit_to(name_or_calibrator, data, config, device, report)


def fit_to(
    name_or_calibrator: str | Calibrator,
    data: FitData,
    config: FitConfig,
    device: str | torch.device | None = None,
    report: Report = silent,
) -> Fitted:
    """Fit a calibrator to voxels that have been read; see :func:`fit`."""
    cases, validation = data.cases, data.validation_cases
    calibrator = _fresh(name_or_calibrator, cases)
    cases.require_offset(calibrator.name, calibrator.translation_invariant)
    name, data = calibrator.name, weigh(data, calibrator, config)
    request = Request.on(data, calibrator, config, check_device(device), lambda message: report(f"{name}: {message}"))
    certificate = fit_declared(request)
    evidence = collect(data.source, cases, certificate.inverse_temperature, data.weights or {})
    return Fitted(
        calibrator=calibrator.eval().requires_grad_(False),  # what it returns can be used as it is
        certificate=replace(certificate, evidence=evidence),
        config=config,
        class_names=cases.class_names,
        pooling=cases.pooling,
        kind=cases.kind,
        fingerprint=cases.fingerprint(),
        calibration_ids=cases.ids,
        validation_ids=() if validation is None else validation.ids,
        origin=cases.origin,
        grouping=cases.grouping,
        raters=cases.raters,
    )


def _fresh(name_or_calibrator: str | Calibrator, cases: Cases) -> Calibrator:
    if isinstance(name_or_calibrator, str):
        return make_calibrator(name_or_calibrator, cases.num_classes)
    if name_or_calibrator.num_classes != cases.num_classes:
        raise InputError(
            f"the calibrator has {name_or_calibrator.num_classes} classes, but the cases have {cases.num_classes}. "
            "Make it with the number of classes of the cases."
        )
    _check_declared(name_or_calibrator)
    return copy.deepcopy(name_or_calibrator).requires_grad_()  # one that was fitted before has none


def _check_declared(calibrator: Calibrator) -> None:
    """Refuse a class of the user's own that does not say what it promises and how it is fitted."""
    for name, need in (("translation_invariant", bool), ("preserves", Preserves), ("fitted_by", Literal[*METHODS])):
        if not fits(found := getattr(calibrator, name, ...), need):
            what = "not there" if found is ... else shown(found)
            raise InputError(
                f"{name} of {type(calibrator).__name__} is {what}, but {in_words(need)} is needed. Declare it."
            )
    if calibrator.fitted_by == "gradient" and type(calibrator).become_temperature is Calibrator.become_temperature:
        raise InputError(
            f"{type(calibrator).__name__} is fitted by gradient, but has no become_temperature to start from. Write it."
        )


def check_device(device: str | torch.device | None) -> torch.device:
    """Return the device of a name; the CPU if none is given."""
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise InputError(f"device is {device!r}, but a device of torch is needed. Use 'cpu' or 'cuda'.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {str(chosen)!r}, but no CUDA device is available. Use device='cpu'.")
    return chosen
