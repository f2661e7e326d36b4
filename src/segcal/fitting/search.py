r"""The paper's own procedure (App. B): trials of Adam, chosen among by Optuna on validation NLL.

Each trial trains the calibrator from its starting point on all voxels of the fit at once, with a learning rate,
a patience and strengths that a TPE sampler proposes:

=============  =====================================
learning rate  log-uniform in [1e-4, 3e-2]
patience       10, 20 or 50
lam, mu        exactly 0, or log-uniform in [1e-6, 1e-1]
weight decay   exactly 0, or log-uniform in [1e-6, 1e-2]
=============  =====================================

Weight decay is for calibrators with convolutions and networks, which train in batches
(:mod:`segcal.fitting.by_gradient`); the others have lam and mu. What the configuration fixes is not searched. The
likelihood and its gradient come from the same fused passes that the exact fit uses, and the voxels are brought into the
calibrator's coordinates once for all trials, so that a comparison of the two compares methods. The same seed gives the
same result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.base import Calibrator
from segcal.calibrators.vector import VectorScaling
from segcal.errors import InputError
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import FitConfig
from segcal.fitting.gradient import Training, TrainOptions, train, trainable
from segcal.fitting.likelihood import Likelihood, make_likelihood
from segcal.fitting.request import Request

LEARNING_RATES = (1e-4, 3e-2)
PATIENCES = (10, 20, 50)
STRENGTHS = (1e-6, 1e-1)
WEIGHT_DECAYS = (1e-6, 1e-2)


@dataclass(frozen=True)
class Trial:
    """One proposal of the search."""

    train: TrainOptions
    lam: float
    mu: float


def fit_as_in_paper(request: Request) -> Certificate:
    """Fit by Adam with a search; see the module docstring."""
    if request.validation is None:
        raise InputError(
            "validation is None, but the paper's procedure stops and chooses on validation data. "
            "Pass validation cases, or use the default config."
        )
    likelihood = make_likelihood(request.calibrator, request.source, request)
    validation = make_likelihood(request.calibrator, request.validation, request)
    study = Study(request.config, request.calibrator.has_penalty)

    def run(trial: Trial, number: int) -> tuple[Training, Calibrator]:
        model = trainable(request.calibrator)
        return _train(model, likelihood, validation, trial), model

    found = search(study, run, request.report)
    training, trial, model = found.training, found.trial, found.model
    _write(model, request.calibrator, likelihood.untouched)
    with torch.no_grad():
        nll = float(likelihood(request.calibrator))
        penalty = float(_penalty(request.calibrator, trial))
        validation_nll = float(validation(request.calibrator))
    return Certificate(
        method="gradient",
        objective=nll + penalty,
        nll=nll,
        kkt_residual=None,
        converged=training.ran_out_of_patience,
        passes=found.steps + 1,
        voxels=request.source.used,
        voxels_available=request.source.available,
        lam=trial.lam,
        mu=trial.mu,
        validation_nll=validation_nll,
        path=found.path,
        untouched=likelihood.untouched,
        curve=training.curve,
        details={
            "learning_rate": trial.train.learning_rate,
            "patience": trial.train.patience,
            "trials": study.trials,
            "steps": training.steps,
        },
    )


@dataclass(frozen=True)
class Found:
    """The best of the trials.

    Attributes:
        training: how it went.
        trial: what it was given.
        model: what came of it.
        path: each trial in short, with its validation NLL.
        steps: rounds of all trials together.
    """

    training: Training
    trial: Trial
    model: Calibrator
    path: tuple[dict[str, float], ...]
    steps: int


def search(
    study: "Study", run: Callable[[Trial, int], tuple[Training, Calibrator]], report: Callable[[str], None]
) -> Found:
    """Run the trials that a study proposes and return the best.

    Args:
        study: what proposes them, and hears of their validation NLL.
        run: trains a model as a trial says; given the number of the trial, too.
        report: takes messages of progress.
    """
    best: tuple[Training, Trial, Calibrator] | None = None
    path: list[dict[str, float]] = []
    steps = 0
    for number in range(study.trials):
        trial = study.ask()
        training, model = run(trial, number)
        study.tell(training.best)
        steps += training.steps
        path.append({**study.chosen(trial), "validation_nll": training.best})
        report(f"trial {number + 1} of {study.trials}: validation NLL {training.best:.5f}")
        if best is None or training.best < best[0].best:
            best = training, trial, model
    assert best is not None
    return Found(*best, tuple(path), steps)


def _train(model: Calibrator, likelihood: Likelihood, validation: Likelihood, trial: Trial) -> Training:
    def loss() -> Tensor:
        return likelihood(model) + _penalty(model, trial)

    @torch.no_grad()
    def validate() -> float:
        return float(validation(model))

    return train(list(model.parameters()), loss, validate, trial.train)


def _penalty(calibrator: Calibrator, trial: Trial) -> Tensor:
    if trial.lam == 0 and trial.mu == 0:
        return torch.zeros((), dtype=torch.float64)
    assert isinstance(calibrator, AffineCalibrator | VectorScaling)
    return calibrator.penalty(trial.lam, trial.mu)


class Study:
    """Proposes trials; a thin cover of Optuna.

    Args:
        config: what is fixed, and the seed.
        strengths: whether the calibrator's penalty depends on (lam, mu).
        decays: whether weight decay is searched.

    Attributes:
        trials: how many to make: one if nothing is left to search.
    """

    def __init__(self, config: FitConfig, strengths: tuple[bool, bool], decays: bool = False) -> None:
        optuna = _import_optuna()
        self._config = config
        self._used = dict(zip(("lam", "mu", "weight_decay"), (*strengths, decays), strict=True))
        searched = [config.learning_rate, config.patience]
        searched += [getattr(config, name) for name, used in self._used.items() if used]
        self.trials = config.trials if None in searched else 1
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=config.seed))
        finally:
            optuna.logging.set_verbosity(level)

    def ask(self) -> Trial:
        """Return the next proposal."""
        config, self._open = self._config, self._study.ask()
        rate, patience = config.learning_rate, config.patience
        if rate is None:
            rate = self._open.suggest_float("learning_rate", *LEARNING_RATES, log=True)
        if patience is None:
            patience = self._open.suggest_categorical("patience", PATIENCES)
        lam, mu = self._strength("lam", STRENGTHS), self._strength("mu", STRENGTHS)
        decay = self._strength("weight_decay", WEIGHT_DECAYS)
        return Trial(TrainOptions(rate, patience, config.max_steps, decay), lam, mu)

    def tell(self, validation_nll: float) -> None:
        """Give the result of the last proposal."""
        self._study.tell(self._open, validation_nll)

    def chosen(self, trial: Trial) -> dict[str, float]:
        """Return the strengths of a trial that mean something for this calibrator."""
        if self._used["weight_decay"]:
            return {"learning_rate": trial.train.learning_rate, "weight_decay": trial.train.weight_decay}
        return {"lam": trial.lam, "mu": trial.mu}

    def _strength(self, name: str, between: tuple[float, float]) -> float:
        if not self._used[name]:
            return 0.0
        fixed = getattr(self._config, name)
        if fixed is not None:
            return float(fixed)
        if self._open.suggest_categorical(f"{name} is zero", (True, False)):
            return 0.0
        return float(self._open.suggest_float(name, *between, log=True))


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "optuna is not installed, but the paper's procedure searches with it. "
            "Install it with: pip install 'segcal[search]'."
        ) from None
    return optuna


@torch.no_grad()
def _write(model: Calibrator, calibrator: Calibrator, untouched: tuple[int, ...]) -> None:
    """Set the calibrator to the model; experts without voxels keep what they have."""
    for name, parameter in calibrator.named_parameters():
        value = getattr(model, name).detach().clone()
        for expert in untouched:
            value[expert] = parameter[expert]
        parameter.copy_(value)
