r"""Fitting by gradient: for calibrators whose likelihood is not convex, those with convolutions or networks.

Adam lowers the mean NLL of batches. After every round through the data the NLL of validation data is read. The learning
rate is halved when it stops falling, and training stops when that does not help either. The best parameters are kept
(:func:`segcal.fitting.adam.train_rounds`). Calibrators that see neighbours train on tiles of the cases
(:mod:`segcal.fitting.crops`), the others on the voxels of the fit. The default options work without a search;
``FitConfig.paper()`` searches learning rate, patience and weight decay (:mod:`segcal.fitting.paper`).

A new calibrator starts as temperature scaling with the best temperature: it has only to learn what goes beyond. A
training that ends no better than that on the validation data has learned nothing, and the start is returned; the
certificate says so. Not so in the paper's procedure, whose trials start at the identity.

The same seed and the same number of threads give the same result, after an interruption too, if there is a checkpoint.
What cannot be had is a residual: there may be other minima, and training stops before it reaches this one.
"""

import copy
from dataclasses import replace
from pathlib import Path

import torch

from segcal.calibrators import registry_entry
from segcal.calibrators.base import Calibrator
from segcal.fitting.adam import FileKeeper, Training, TrainOptions, train_rounds
from segcal.fitting.batches import LearningData, read_tiles, read_voxels
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import FitConfig
from segcal.fitting.convex_problem import solve_temperature
from segcal.fitting.paper import Found, Search, Trial
from segcal.fitting.request import Request
from segcal.fitting.scores import certify

# Without a search: learning rates on tiles and on voxels, rounds without improvement, and weight decay.
TILE_RATE, VOXEL_RATE = 1e-3, 1e-2
PATIENCE = 20
# The running average of the parameters looks back some fifty steps: batches are noisy, and so would be the choice of
# the best round.
AVERAGE = 0.98
WEIGHT_DECAY = 0.0


def fit_by_gradient(request: Request) -> Certificate:
    """Fit a calibrator by gradient; see the module docstring."""
    calibrator, published = request.calibrator, request.config.method == "paper"
    new = is_new(calibrator)
    data = read_voxels(request) if calibrator.pointwise else read_tiles(request)
    simple, start = copy.deepcopy(calibrator), {}
    if not published:
        temperature = 1 / float(solve_temperature(request.source, request.device, request.config.tol).theta)
        simple.become_temperature(temperature)
        start = {"start": "ts" if new else "given", "temperature": temperature}
        if new:
            calibrator.load_state_dict(simple.state_dict())
    found = _search(request, calibrator, data)
    model, validation_nll = found.model, found.training.best
    if not published:
        simple_nll = data.validation.mean(simple.to(request.device))
        start |= {"ts_validation_nll": simple_nll, "returned": "trained"}
        if not validation_nll < simple_nll:
            model, validation_nll = simple, simple_nll
            start["returned"] = "ts"
    calibrator.load_state_dict(model.state_dict())
    nll = data.train.mean(model)
    options = found.trial.train
    squares = sum(float(p.detach().square().sum()) for p in calibrator.parameters() if p.ndim > 1)
    return certify(
        request,
        "gradient",
        nll,
        objective=nll + options.weight_decay / 2 * squares,
        converged=found.training.ran_out_of_patience,
        passes=found.steps,
        voxels=data.train.used,
        voxels_available=data.available,
        validation_nll=validation_nll,
        path=found.path,
        curve=found.training.curve,
        details={
            "learning_rate": options.learning_rate,
            "patience": options.patience,
            "weight_decay": options.weight_decay,
            "rounds": found.training.steps,
            "steps": found.training.steps * data.train.count,
            **start,
            **data.details,
        },
    )


def _search(request: Request, calibrator: Calibrator, data: LearningData) -> Found:
    """Train as the configuration says: once, or as often as the search proposes."""
    config = request.config
    rounds = max(1, -(-config.max_steps // data.train.count))

    def run(trial: Trial, number: int) -> tuple[Training, Calibrator]:
        model = copy.deepcopy(calibrator).to(request.device)

        def report(done: int, value: float) -> None:
            request.report(f"round {done} of at most {rounds}: validation NLL {value:.5f}")

        deterministic = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
        with deterministic:
            training = train_rounds(
                list(model.parameters()),
                lambda done: data.train.losses(model, done),
                lambda: data.validation.mean(model),
                replace(trial.train, max_steps=rounds, average=AVERAGE),
                _keeper(request, calibrator, trial.train, number),
                report,
            )
        return training, model

    if config.method == "paper":
        name = f"{calibrator.name}, {request.cases.fingerprint()}"
        return Search(config, (False, False), decays=True, name=name).best(run, request.report)
    trial = Trial(_defaults(config, tiles=not calibrator.pointwise), 0.0, 0.0)
    training, model = run(trial, 0)
    return Found(training, trial, model, (), training.steps)


def _defaults(config: FitConfig, tiles: bool) -> TrainOptions:
    rate = TILE_RATE if tiles else VOXEL_RATE
    return TrainOptions(
        learning_rate=rate if config.learning_rate is None else config.learning_rate,
        patience=PATIENCE if config.patience is None else config.patience,
        max_steps=config.max_steps,
        weight_decay=WEIGHT_DECAY if config.weight_decay is None else config.weight_decay,
    )


def _keeper(request: Request, calibrator: Calibrator, options: TrainOptions, number: int) -> FileKeeper | None:
    if request.config.checkpoint is None:
        return None
    validation = request.validation_cases
    identity = {
        "calibrator": [str(registry_entry(calibrator)), calibrator.num_classes],
        "set of calibration cases": request.cases.fingerprint(),
        "set of validation cases": None if validation is None else validation.fingerprint(),
        "config": request.config.to_dict(),
        "proposal": options,
        "start": {name: value.tolist() for name, value in calibrator.state_dict().items()},
    }
    return FileKeeper(Path(request.config.checkpoint) / f"trial_{number}.pt", identity)


def is_new(calibrator: Calibrator) -> bool:
    """Return whether a calibrator is as it was made; another one is where its owner wants the fit to start."""
    made = type(calibrator)(calibrator.num_classes, **calibrator.options).state_dict()
    return all(torch.equal(value.cpu(), made[name]) for name, value in calibrator.state_dict().items())
