r"""The paper's own procedure (App. B) for calibrators with a likelihood of few parameters: Adam on all voxels at once.

Options of each trial are proposed by a search on validation NLL (:mod:`segcal.fitting.search`). The passes of the
exact fit already return value f and gradient g. They enter automatic differentiation as

.. math:: f + \langle g,\ \theta - \mathrm{const}(\theta)\rangle,

which has this value and this gradient, however :math:`\theta` depends on what is trained. The voxels are brought into
the calibrator's coordinates once for all trials, so that a comparison with the exact fit compares methods.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Strengths
from segcal.errors import InputError
from segcal.fitting.adam import Training, train, trainable
from segcal.fitting.certificate import Certificate
from segcal.fitting.mixture import Likelihood, MixtureLikelihood
from segcal.fitting.request import Request
from segcal.fitting.search import Search, Trial, search
from segcal.fitting.solver import make_problem
from segcal.fitting.voxels import VoxelSource


class ConvexLikelihood(Likelihood):
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
LIKELIHOODS: dict[str, Callable[[Request, VoxelSource], Likelihood]] = {
    "convex": ConvexLikelihood,
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
    proposals = Search(request.config, calibrator.has_penalty)

    def run(trial: Trial, number: int) -> tuple[Training, Calibrator]:
        model = trainable(calibrator)

        @torch.no_grad()
        def validate() -> float:
            return float(validation(model))

        def loss() -> Tensor:
            return likelihood(model) + _penalty(model, trial)

        return train(list(model.parameters()), loss, validate, trial.train), model

    found = search(proposals, run, request.report)
    training, trial = found.training, found.trial
    _write(found.model, calibrator, likelihood.untouched)
    with torch.no_grad():
        nll, penalty = float(likelihood(calibrator)), float(_penalty(calibrator, trial))
        validation_nll = float(validation(calibrator))
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
