r"""The paper's own procedure (App. B): trials of Adam, chosen among by Optuna on validation NLL.

Each trial trains the calibrator from its starting point, with options that a TPE sampler proposes:

=============  =====================================
learning rate  log-uniform in [1e-4, 3e-2]
patience       10, 20 or 50
lam, mu        exactly 0, or log-uniform in [1e-6, 1e-1]
weight decay   exactly 0, or log-uniform in [1e-6, 1e-2]
=============  =====================================

Weight decay is for calibrators with convolutions and networks, which train in batches
(:mod:`segcal.fitting.gradient_fit`); the others have lam and mu. What the configuration fixes is not searched. The same
seed gives the same result.

The passes of the exact fit already return value f and gradient g. They enter automatic differentiation as

.. math:: f + \langle g,\ \theta - \mathrm{const}(\theta)\rangle,

which has this value and this gradient, however :math:`\theta` depends on what is trained. The voxels are brought into
the calibrator's coordinates once for all trials, so that a comparison with the exact fit compares methods.
"""

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Strengths
from segcal.errors import InputError, load_extra
from segcal.fitting.adam import Training, TrainOptions, train_rounds, trainable
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import FitConfig
from segcal.fitting.convex_problem import make_problem
from segcal.fitting.mixture import MeanNLL, MixtureLikelihood
from segcal.fitting.progress import Report
from segcal.fitting.request import Request
from segcal.fitting.scores import certify
from segcal.fitting.voxels import VoxelSource

LEARNING_RATES = (1e-4, 3e-2)
PATIENCES = (10, 20, 50)
STRENGTHS = (1e-6, 1e-1)
WEIGHT_DECAYS = (1e-6, 1e-2)
# So long nothing may come from other processes before the trials that they have are given up.
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Trial:
    """One proposal of the search."""

    train: TrainOptions
    lam: float
    mu: float


@dataclass(frozen=True)
class Found:
    """The best of the trials; `path` has all of them in short, `steps` counts the rounds of all together."""

    training: Training
    trial: Trial
    model: Calibrator
    path: tuple[dict[str, float], ...]
    steps: int


class Search:
    """Proposes so many `trials`, one if nothing is left to search; a thin cover of Optuna.

    Args:
        config: what is fixed, and the seed.
        strengths: whether the calibrator's penalty depends on (lam, mu).
        decays: whether weight decay is searched.
        name: of what is fitted to what; processes that share a journal share the trials of one name.
    """

    def __init__(
        self, config: FitConfig, strengths: tuple[bool, bool], decays: bool = False, name: str = "segcal"
    ) -> None:
        optuna = _import_optuna()
        self._config = config
        self._used = dict(zip(("lam", "mu", "weight_decay"), (*strengths, decays), strict=True))
        searched = [config.learning_rate, config.patience]
        searched += [getattr(config, name) for name, used in self._used.items() if used]
        self.trials = config.trials if None in searched else 1
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            sampler = optuna.samplers.TPESampler(seed=config.seed)
            where = None if config.journal is None else _journal(config.journal)
            title = None if where is None else f"{name}, {json.dumps(config.to_dict())}"
            self._study = optuna.create_study(sampler=sampler, storage=where, study_name=title, load_if_exists=True)
        finally:
            optuna.logging.set_verbosity(level)

    def best(self, train: Callable[[Trial, int], tuple[Training, Calibrator]], report: Report) -> Found:
        """Return the best of the trials, after all are done; `train` trains a model as the trial of a number says."""
        optuna = _import_optuna()
        best: tuple[Training, Trial, Calibrator] | None = None
        own = -1
        while (proposed := self._study.ask()).number < self.trials:
            if self._config.journal is not None:
                # Two processes must not draw the same numbers: each trial has its own, whoever does it.
                self._study.sampler = optuna.samplers.TPESampler(seed=self._config.seed + proposed.number)
            trial = self._trial(proposed)
            training, model = train(trial, proposed.number)
            proposed.set_user_attr("steps", training.steps)
            self._study.tell(proposed, training.best)
            report(f"trial {proposed.number + 1} of {self.trials}: validation NLL {training.best:.5f}")
            if best is None or training.best < best[0].best:
                best, own = (training, trial, model), proposed.number
        self._study.tell(proposed, state=optuna.trial.TrialState.FAIL)  # all are done, or with another process
        done = self._finished()
        trials = [self._trial(optuna.trial.FixedTrial(each.params, each.number)) for each in done]
        winner = min(range(len(done)), key=lambda place: (done[place].value, done[place].number))
        if done[winner].number != own:  # another process has found it; what it did is done again, with the same result
            training, model = train(trials[winner], done[winner].number)
            best = training, trials[winner], model
        assert best is not None
        pairs = zip(trials, done, strict=True)
        path = tuple({**self._searched(trial), "validation_nll": each.value} for trial, each in pairs)
        return Found(*best, path, sum(int(each.user_attrs["steps"]) for each in done))

    def _finished(self) -> list[Any]:
        """Return all trials in their order, when all are done; wait for those that others do."""
        changed, before = time.monotonic(), -1
        while True:
            trials = [each for each in self._study.get_trials(deepcopy=False) if each.number < self.trials]
            done = [each for each in trials if each.state.name == "COMPLETE"]
            if len(done) == self.trials or time.monotonic() - changed > PATIENCE_SECONDS:
                return sorted(done, key=lambda each: each.number)
            changed, before = (time.monotonic(), len(done)) if len(done) != before else (changed, before)
            time.sleep(0.1)

    def _trial(self, proposed: Any) -> Trial:
        """Return what a trial of Optuna proposes, beside what is fixed."""
        config = self._config

        def strength(name: str, between: tuple[float, float]) -> float:
            fixed = getattr(config, name) if self._used[name] else 0.0
            if fixed is not None:
                return float(fixed)
            if proposed.suggest_categorical(f"{name} is zero", (True, False)):
                return 0.0
            return float(proposed.suggest_float(name, *between, log=True))

        rate, patience = config.learning_rate, config.patience
        if rate is None:
            rate = proposed.suggest_float("learning_rate", *LEARNING_RATES, log=True)
        if patience is None:
            patience = proposed.suggest_categorical("patience", PATIENCES)
        lam, mu, decay = strength("lam", STRENGTHS), strength("mu", STRENGTHS), strength("weight_decay", WEIGHT_DECAYS)
        return Trial(TrainOptions(rate, patience, config.max_steps, decay), lam, mu)

    def _searched(self, trial: Trial) -> dict[str, float]:
        """Return the strengths of a trial that mean something for this calibrator."""
        if self._used["weight_decay"]:
            return {"learning_rate": trial.train.learning_rate, "weight_decay": trial.train.weight_decay}
        return {"lam": trial.lam, "mu": trial.mu}


def _journal(path: str) -> Any:
    """Return the storage in a file that processes, also of other machines, share."""
    journal = importlib.import_module("optuna.storages.journal")
    return importlib.import_module("optuna.storages").JournalStorage(journal.JournalFileBackend(path))


def _import_optuna() -> Any:
    return load_extra("optuna", "search", "the paper's procedure searches with")


class _ConvexLikelihood(MeanNLL):
    """The likelihood of a convex calibrator, by the passes of its exact fit, without a penalty."""

    def __init__(self, request: Request, source: VoxelSource) -> None:
        assert isinstance(request.calibrator, ConvexCalibrator)
        self._problem = problem = make_problem(request.calibrator, source, request)
        problem.set_strengths(Strengths(0.0, 0.0))
        self.untouched = tuple(e for e in range(problem.num_blocks) if e not in problem.blocks)

    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL."""
        assert isinstance(calibrator, ConvexCalibrator)
        theta, own = calibrator.theta(), self._problem.blocks
        constant = theta.detach()
        values, gradients = self._problem.evaluate(constant, own)
        return values[own].sum() + ((theta - constant)[own] * gradients[own]).sum()


# By what a calibrator declares in `fitted_by`.
LIKELIHOODS: dict[str, Callable[[Request, VoxelSource], MeanNLL]] = {
    "convex": _ConvexLikelihood,
    "mixture": MixtureLikelihood,
}


def fit_as_in_paper(request: Request) -> Certificate:
    """Fit by Adam with a search; see the module docstring."""
    if request.validation is None:
        raise InputError(
            "validation is None, but the paper's procedure stops and chooses on validation data. "
            "Pass validation cases, or use the default config."
        )
    calibrator, make = request.calibrator, LIKELIHOODS[request.calibrator.fitted_by]
    likelihood, validation = make(request, request.source), make(request, request.validation)
    name = f"{calibrator.name}, {request.cases.fingerprint()}"
    proposals = Search(request.config, calibrator.has_penalty, name=name)

    def run(trial: Trial, number: int) -> tuple[Training, Calibrator]:
        model = trainable(calibrator)

        @torch.no_grad()
        def validate() -> float:
            return float(validation(model))

        def loss() -> Tensor:
            return likelihood(model) + _penalty(model, trial)

        return train_rounds(list(model.parameters()), lambda number: [loss()], validate, trial.train), model

    found = proposals.best(run, request.report)
    training, trial = found.training, found.trial
    _write(found.model, calibrator, likelihood.untouched)
    with torch.no_grad():
        nll, penalty = float(likelihood(calibrator)), float(_penalty(calibrator, trial))
        validation_nll = float(validation(calibrator))
    return certify(
        request,
        "gradient",
        nll,
        objective=nll + penalty,
        converged=training.ran_out_of_patience,
        passes=found.steps + 1,
        lam=trial.lam,
        mu=trial.mu,
        validation_nll=validation_nll,
        path=found.path,
        untouched=likelihood.untouched,
        curve=training.curve,
        details={
            "learning_rate": trial.train.learning_rate,
            "patience": trial.train.patience,
            "trials": proposals.trials,
            "steps": training.steps,
        },
    )


def _penalty(calibrator: Calibrator, trial: Trial) -> Tensor:
    if trial.lam == 0 and trial.mu == 0:
        return torch.zeros((), dtype=torch.float64)
    return calibrator.penalty(trial.lam, trial.mu)


@torch.no_grad()
def _write(model: Calibrator, calibrator: Calibrator, untouched: tuple[int, ...]) -> None:
    """Set the calibrator to the model; experts without voxels keep what they have."""
    for name, parameter in calibrator.named_parameters():
        value = getattr(model, name).detach().clone()
        for expert in untouched:
            value[expert] = parameter[expert]
        parameter.copy_(value)
