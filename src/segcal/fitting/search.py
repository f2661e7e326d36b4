r"""Trials of a training, chosen among by Optuna on validation NLL: the search of the paper (App. B).

Each trial trains the calibrator from its starting point, with options that a TPE sampler proposes:

=============  =====================================
learning rate  log-uniform in [1e-4, 3e-2]
patience       10, 20 or 50
lam, mu        exactly 0, or log-uniform in [1e-6, 1e-1]
weight decay   exactly 0, or log-uniform in [1e-6, 1e-2]
=============  =====================================

Weight decay is for calibrators with convolutions and networks, which train in batches
(:mod:`segcal.fitting.gradient_fit`); the others have lam and mu (:mod:`segcal.fitting.paper`). What the configuration
fixes is not searched. The same seed gives the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from segcal.calibrators.base import Calibrator
from segcal.errors import InputError
from segcal.fitting.adam import Training, TrainOptions
from segcal.fitting.config import FitConfig

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


@dataclass(frozen=True)
class Found:
    """The best of the trials.

    Attributes:
        training: how it went.
        trial: its proposal.
        model: what came of it.
        path: each trial in short, with its validation NLL.
        steps: rounds of all trials together.
    """

    training: Training
    trial: Trial
    model: Calibrator
    path: tuple[dict[str, float], ...]
    steps: int


class Search:
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


def search(
    proposals: Search, run: Callable[[Trial, int], tuple[Training, Calibrator]], report: Callable[[str], None]
) -> Found:
    """Run the trials that are proposed and return the best; `run` trains a model as the trial of a number says."""
    best: tuple[Training, Trial, Calibrator] | None = None
    path: list[dict[str, float]] = []
    steps = 0
    for number in range(proposals.trials):
        trial = proposals.ask()
        training, model = run(trial, number)
        proposals.tell(training.best)
        steps += training.steps
        path.append({**proposals.chosen(trial), "validation_nll": training.best})
        report(f"trial {number + 1} of {proposals.trials}: validation NLL {training.best:.5f}")
        if best is None or training.best < best[0].best:
            best = training, trial, model
    assert best is not None
    return Found(*best, tuple(path), steps)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "optuna is not installed, but the paper's procedure searches with it. "
            "Install it with: pip install 'segcal[search]'."
        ) from None
    return optuna
