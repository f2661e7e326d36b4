"""The one entry to fitting."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from segcal.calibrators import make_calibrator
from segcal.calibrators.base import Calibrator
from segcal.cases.base import CaseError, Cases
from segcal.cases.offset import require_offset
from segcal.errors import InputError
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.exact import fit_convex
from segcal.fitting.mixture import fit_mixture
from segcal.fitting.progress import Progress
from segcal.fitting.request import Request
from segcal.fitting.search import fit_as_in_paper
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels, VoxelSource


def fit_nothing(request: Request) -> Certificate:
    """Leave a calibrator without parameters as it is."""
    total = weight = 0.0
    for voxels in request.source:
        log_probs = request.calibrator(voxels.logits.T.double())
        own = log_probs.gather(1, voxels.labels.long()[:, None])[:, 0]
        total -= float((voxels.weight.double() * own).sum())
        weight += float(voxels.weight.double().sum())
    return Certificate(
        method="nothing",
        objective=total / weight,
        nll=total / weight,
        kkt_residual=0.0,
        converged=True,
        passes=1,
        voxels=request.source.used,
        voxels_available=request.source.available,
    )


# How a calibrator is fitted, by what it declares in `fitted_by`.
METHODS: dict[str, Callable[[Request], Certificate]] = {
    "nothing": fit_nothing,
    "convex": fit_convex,
    "mixture": fit_mixture,
}


def fit(
    name_or_calibrator: str | Calibrator,
    cases: Cases,
    validation: Cases | None = None,
    config: FitConfig | None = None,
    device: str | torch.device | None = None,
) -> Fitted:
    """Fit a calibrator to labelled cases.

    Args:
        name_or_calibrator: a name of :data:`segcal.CALIBRATORS`, or a calibrator object, whose parameters are where
            the fit starts; the object itself is not changed.
        cases: the calibration cases.
        validation: cases on which the strengths of the penalty are chosen (and on which gradient methods stop).
        config: how; the default goes to the certified optimum.
        device: where to compute; the CPU if not given.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(3, 500)).astype("float32")
    >>> labels = (3 * logits + rng.gumbel(size=logits.shape)).argmax(0)
    >>> from segcal import ArrayCases
    >>> fitted = fit("ts", ArrayCases(logits=[logits], labels=[labels]))
    >>> round(1 / float(fitted.calibrator.inverse_temperature.detach()), 1)
    0.3
    """
    config = FitConfig() if config is None else config
    # What can be refused at once is, before anything is read.
    _check_cases(cases, validation)
    calibrator = _fresh(name_or_calibrator, cases)
    require_offset(cases, _name(name_or_calibrator), calibrator.translation_invariant)
    _device(device)
    with Progress("fitting") as progress:
        data = read_data(cases, validation, config, progress)
        return fit_to(name_or_calibrator, data, config, device, progress)


@dataclass(frozen=True)
class FitData:
    """The voxels of a fit, read once; several calibrators can be fitted to them."""

    cases: Cases
    validation_cases: Cases | None
    source: VoxelSource
    validation: VoxelSource | None


def read_data(
    cases: Cases,
    validation: Cases | None,
    config: FitConfig,
    report: Callable[[str], None] = lambda message: None,
    workers: int = 1,
    failed: Callable[[CaseError], None] | None = None,
) -> FitData:
    """Draw the voxels of a fit from its cases, or arrange to stream them.

    Args:
        cases: the calibration cases.
        validation: the validation cases.
        config: how many voxels, and the seed.
        report: takes messages of progress.
        workers: how many processes read cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
    """
    _check_cases(cases, validation)
    source = _voxels(cases, config, report, workers, failed)
    own = None if validation is None else _voxels(validation, config, report, workers, failed)
    return FitData(
        cases=cases.subset(source.ids),
        validation_cases=None if validation is None or own is None else validation.subset(own.ids),
        source=source,
        validation=own,
    )


def fit_to(
    name_or_calibrator: str | Calibrator,
    data: FitData,
    config: FitConfig,
    device: str | torch.device | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Fitted:
    """Fit a calibrator to voxels that have been read; see :func:`fit`."""
    cases, validation = data.cases, data.validation_cases
    calibrator = _fresh(name_or_calibrator, cases)
    name = _name(name_or_calibrator)
    require_offset(cases, name, calibrator.translation_invariant)
    method = METHODS[calibrator.fitted_by]
    if config.method == "paper" and calibrator.fitted_by != "nothing":
        method = fit_as_in_paper
    certificate = method(
        Request(
            calibrator=calibrator,
            source=data.source,
            validation=data.validation,
            config=config,
            device=_device(device),
            report=lambda message: report(f"{name}: {message}"),
            cases=cases,
            validation_cases=validation,
        )
    )
    return Fitted(
        calibrator=calibrator.eval(),
        certificate=certificate,
        config=config,
        class_names=cases.class_names,
        pooling=cases.pooling,
        kind=cases.kind,
        fingerprint=cases.fingerprint(),
        calibration_ids=cases.ids,
        validation_ids=() if validation is None else validation.ids,
    )


def _name(name_or_calibrator: str | Calibrator) -> str:
    return name_or_calibrator if isinstance(name_or_calibrator, str) else type(name_or_calibrator).__name__


def _fresh(name_or_calibrator: str | Calibrator, cases: Cases) -> Calibrator:
    if isinstance(name_or_calibrator, str):
        return make_calibrator(name_or_calibrator, cases.num_classes)
    if not isinstance(name_or_calibrator, Calibrator):
        raise InputError(
            f"name_or_calibrator is {type(name_or_calibrator).__name__}, but a name or a Calibrator is needed. "
            "Names are listed in segcal.CALIBRATORS."
        )
    if name_or_calibrator.num_classes != cases.num_classes:
        raise InputError(
            f"the calibrator has {name_or_calibrator.num_classes} classes, but the cases have {cases.num_classes}. "
            "Make it with the number of classes of the cases."
        )
    return copy.deepcopy(name_or_calibrator)


def _check_cases(cases: Cases, validation: Cases | None) -> None:
    if len(cases) == 0:
        raise InputError("cases is empty, but at least one case is needed. Check the split.")
    if validation is None:
        return
    if len(validation) == 0:
        raise InputError("validation is empty, but at least one case is needed. Pass None to fit without validation.")
    if validation.num_classes != cases.num_classes:
        raise InputError(
            f"validation has {validation.num_classes} classes, but the calibration cases have {cases.num_classes}. "
            "Both must come from one model."
        )


def _voxels(
    cases: Cases,
    config: FitConfig,
    report: Callable[[str], None],
    workers: int,
    failed: Callable[[CaseError], None] | None,
) -> VoxelSource:
    read = 0

    def tick() -> None:
        nonlocal read
        read += 1
        report(f"read {read} of {len(cases)} cases")

    if config.voxels == "all":
        return StreamedVoxels(cases, tick, workers, failed)
    # Voxels that fit into the memory allowed: 4 bytes for each class, and label and weight.
    room = config.memory // (4 * (cases.num_classes + 2))
    quota = max(1, min(config.voxels, room // len(cases)))
    return SampledVoxels(cases, quota, config.seed, tick, workers, failed)


def _device(device: str | torch.device | None) -> torch.device:
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise InputError(f"device is {device!r}, but a device of torch is needed. Use 'cpu' or 'cuda'.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {str(chosen)!r}, but no CUDA device is available. Use device='cpu'.")
    return chosen
