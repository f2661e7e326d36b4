r"""The paper's own procedure (App. B): trials of Adam, chosen among by Optuna on validation NLL.

Each trial trains the calibrator from its starting point on all voxels of the fit at once, with a learning rate,
a patience and strengths that a TPE sampler proposes:

=============  =====================================
learning rate  log-uniform in [1e-4, 3e-2]
patience       10, 20 or 50
lam, mu        exactly 0, or log-uniform in [1e-6, 1e-1]
=============  =====================================

What the configuration fixes is not searched. The likelihood and its gradient come from the same fused passes that
the exact fit uses, and the voxels are brought into the calibrator's coordinates once for all trials, so that a
comparison of the two compares methods. The same seed gives the same result.
"""

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
    study = _Study(request.config, likelihood.strengths)
    best: tuple[Training, Trial, Calibrator] | None = None
    path: list[dict[str, float]] = []
    passes = 0
    for number in range(study.trials):
        trial = study.ask()
        model = trainable(request.calibrator)
        training = _train(model, likelihood, validation, trial)
        study.tell(training.best)
        passes += training.steps
        path.append({"lam": trial.lam, "mu": trial.mu, "validation_nll": training.best})
        request.report(f"trial {number + 1} of {study.trials}: validation NLL {training.best:.5f}")
        if best is None or training.best < best[0].best:
            best = training, trial, model
    assert best is not None
    training, trial, model = best
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
        passes=passes + 1,
        voxels=request.source.used,
        voxels_available=request.source.available,
        lam=trial.lam,
        mu=trial.mu,
        validation_nll=validation_nll,
        path=tuple(path),
        untouched=likelihood.untouched,
        curve=training.curve,
        details={
            "learning_rate": trial.train.learning_rate,
            "patience": trial.train.patience,
            "trials": study.trials,
            "steps": training.steps,
        },
    )


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


class _Study:
    """Proposes trials; a thin cover of Optuna.

    Attributes:
        trials: how many to make: one if nothing is left to search.
    """

    def __init__(self, config: FitConfig, strengths: tuple[bool, bool]) -> None:
        optuna = _import_optuna()
        self._config, self._strengths = config, strengths
        searched = [config.learning_rate, config.patience]
        searched += [value for value, used in zip((config.lam, config.mu), strengths, strict=True) if used]
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
        lam, mu = (self._strength(name, i) for i, name in enumerate(("lam", "mu")))
        return Trial(TrainOptions(rate, patience, config.max_steps), lam, mu)

    def tell(self, validation_nll: float) -> None:
        """Give the result of the last proposal."""
        self._study.tell(self._open, validation_nll)

    def _strength(self, name: str, index: int) -> float:
        if not self._strengths[index]:
            return 0.0
        fixed = getattr(self._config, name)
        if fixed is not None:
            return float(fixed)
        if self._open.suggest_categorical(f"{name} is zero", (True, False)):
            return 0.0
        return float(self._open.suggest_float(name, *STRENGTHS, log=True))


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
