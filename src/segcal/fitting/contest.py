"""The contest of calibrators: each is fitted to folds of the cases and measured on what is held out.

Every candidate is fitted to the calibration cases without one fold of whole groups, in turn, or once to all of them
where there are validation cases (:mod:`segcal.fitting.division`); :mod:`segcal.fitting.choice` has the rule, and the
winner is fitted once more, to all. Poolings are compared by what is fitted in no time; the others then compete in the
pooling that did best. A candidate that the first folds show to be worse than temperature scaling is left early.
"""

import copy
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch

from segcal.arguments import typed
from segcal.calibrators import make_calibrator
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Engine, Workers, kept_processes
from segcal.cases.region_view import region_view
from segcal.errors import InputError
from segcal.fitting.by_region import best_pooling, check_validation, competing, fit_by_region
from segcal.fitting.certificate import Fitted
from segcal.fitting.choice import (
    ENOUGH_GROUPS,
    Candidate,
    Decision,
    Preserve,
    Tried,
    candidates,
    decide,
    is_quick,
    undecided,
)
from segcal.fitting.config import FitConfig, check_config
from segcal.fitting.division import Fold, count_folds, divide, folds_of, group_names
from segcal.fitting.exact import at, given, walk
from segcal.fitting.fit import check_device, fit_declared, fit_to
from segcal.fitting.progress import Progress, Report, silent
from segcal.fitting.request import FitData, Request, read_data, take_parts
from segcal.fitting.scores import Worth, measure, noise, paired
from segcal.kernels.threads import one_thread

# Fewer voxels to a parameter promise nothing, and take long to say so.
VOXELS_PER_PARAMETER = 20
# Share of what a fold learns from that stops a fit by gradient, and how many steps that may take at most.
STOPPING_SHARE = 0.2
FOLD_STEPS = 150


class Choice(NamedTuple):
    """The chosen calibrator, fitted to all calibration cases, and the comparison it won."""

    fitted: Fitted
    decision: Decision


@typed
def choose(
    cases: Any,
    labels: Any = None,
    preserve: Preserve = "argmax",
    allow_offset_dependent: bool = False,
    config: FitConfig | None = None,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    *,
    validation: Any = None,
    names: str | Sequence[str] | None = None,
    failed: Callable[[CaseError], None] | None = None,
    progress: Report | None = None,
    **declared: Any,
) -> Fitted:
    """Return the calibrator that does best on held-out cases, or the simplest where that is not clear.

    Args:
        cases: labelled cases, or arrays and loaders as :func:`segcal.fit` takes them. With ``pooling="best"`` both
            poolings of an ensemble compete.
        labels: one label map per case, for arrays. Cases that stand here are `validation`.
        preserve: what must be kept: the "order" of all classes, the "argmax" (the mask), or "none".
        allow_offset_dependent: let calibrators compete that depend on the offset of the logits.
        config: how to fit.
        device: where to compute; the CPU if not given.
        workers: how many processes read cases.
        validation: cases to compare on; if not given, groups of `cases` are held out in turn.
        names: the calibrators that compete; all that may, if not given.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: takes short texts on how far it is; without it they are shown on a terminal.
        declared: ``kind``, ``model``, ``inferer`` and the like; see :func:`segcal.fit`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(6, 3, 500)).astype("float32")
    >>> labels = (3 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> choose(logits, labels).certificate.details["chosen"]
    'ts'
    """
    cases, validation = take_parts(cases, labels, validation, declared)
    names = [names] if isinstance(names, str) else names
    if names is not None and len(names) == 0:
        raise InputError("names is empty, but at least one calibrator must compete. Leave it out for all.")
    if cases.regions is not None:
        shared: dict[str, Any] = {
            "preserve": preserve,
            "config": config,
            "device": device,
            "workers": workers,
            "failed": failed,
        }
        shared["progress"] = progress
        return _choose_by_region(cases, validation, competing(names, preserve), shared)
    names = candidates(cases.num_classes, preserve, allow_offset_dependent) if names is None else names
    for name, pooling in itertools.product(names, cases.poolings):
        cases.pooled(pooling).require_offset(name, make_calibrator(name, cases.num_classes).translation_invariant)
    config = check_config(config)
    check_device(device)
    with Progress("choosing") if progress is None else nullcontext(progress) as report, kept_processes(workers) as kept:
        data = read_poolings(cases, validation, config, report, kept, failed, contexts=_wanted(names))
        return compare(names, data, config, device, report).fitted


def read_part(
    cases: Cases,
    workers: Engine,
    config: FitConfig,
    validation: Cases | None = None,
    names: Sequence[str] | None = None,
    preserve: Preserve = "argmax",
    allow_offset_dependent: bool = False,
    failed: Callable[[CaseError], None] | None = None,
    **unused: Any,
) -> None:
    """Draw the voxels that an engine keeps for :func:`choose` or :func:`segcal.fit`; the arguments are theirs."""
    if config.voxels == "all":
        raise InputError("voxels='all' is given, but a part keeps voxels that were drawn. Give a number of them.")
    if cases.regions is not None:
        check_validation(cases, validation)
        for number in range(len(cases.regions)):
            others = None if validation is None else region_view(validation, number)
            own = competing(names, preserve)
            read_part(region_view(cases, number), workers, config, others, own, failed=failed)
        return
    names = candidates(cases.num_classes, preserve, allow_offset_dependent) if names is None else names
    read_poolings(cases, validation, check_config(config), silent, workers, failed, contexts=_wanted(names))


def _wanted(names: Sequence[str]) -> set[str]:
    return {context for name in names for context in make_calibrator(name, 2).wants}


def read_poolings(
    cases: Cases, validation: Cases | None, config: FitConfig, *how: Any, contexts: Collection[str] = ()
) -> dict[str | None, FitData]:
    """Return the voxels of a comparison, by pooling; further arguments are those of :func:`read_data`."""
    room = replace(config, memory=max(1 << 20, config.memory // len(cases.poolings)))
    data: dict[str | None, FitData] = {}
    for pooling in cases.poolings:
        own = None if validation is None else validation.pooled(pooling)
        data[pooling] = read_data(cases.pooled(pooling), own, room, *how, suspect=not data, contexts=contexts)
    return data


def _choose_by_region(cases: Cases, validation: Cases | None, names: Sequence[str], shared: dict[str, Any]) -> Fitted:
    """Choose for each region; where regions would be pooled differently, with the pooling that is best for all."""
    found: dict[str, Fitted] = {}

    def choose_one(number: int, own: Cases, others: Cases | None) -> Fitted:
        found[str(number)] = choose(own, validation=others, names=names, **shared)
        return found[str(number)]

    fitted = fit_by_region(cases, validation, choose_one)
    if len({one.pooling for one in found.values()}) > 1:
        how = best_pooling(found, cases.poolings)
        return fit_by_region(cases.pooled(how), validation and validation.pooled(how), choose_one)
    return fitted


def compare(
    names: Sequence[str],
    data: Mapping[str | None, FitData],
    config: FitConfig,
    device: str | torch.device | None = None,
    report: Report = silent,
) -> Choice:
    """Compare calibrators of these names on voxels by pooling (:func:`read_poolings`), and fit the winner."""
    first = next(iter(data.values()))
    folds = count_folds(first.cases, first.validation, config.folds)
    contest = _Contest(config, check_device(device), report)
    if folds:
        with one_thread():  # many small steps: more threads wait for each other, and the choice would depend on them
            decision = _hold(contest, names, data, folds)
    else:
        decision = undecided(next(iter(data)))
    chosen = decision.chosen
    lam, mu, nu = chosen.strengths or (config.lam, config.mu, config.nu)
    fitted = fit_to(chosen.name, data[chosen.pooling], replace(config, lam=lam, mu=mu, nu=nu), device, report)
    certificate = fitted.certificate
    details = certificate.details | asdict(decision) | {"chosen": chosen.name}
    path = contest.paths.get(chosen.title, certificate.path)
    return Choice(replace(fitted, certificate=replace(certificate, details=details, path=path)), decision)


def _hold(contest: "_Contest", names: Sequence[str], data: Mapping[str | None, FitData], folds: int) -> Decision:
    first = next(iter(data.values()))
    quick = [name for name in names if len(names) == 1 or is_quick(name)]
    for own in data.values():
        for name in quick:
            contest.add(name, own)
    best = data[contest.best_pooling()]
    held = first.cases if first.validation_cases is None else first.validation_cases
    enough = len(set(group_names(held, held.ids))) >= ENOUGH_GROUPS  # else nothing costly could win
    for name in names if enough else ():
        if name not in quick:
            contest.add(name, best)
    return contest.decide(held, folds)


class _Contest:
    """Candidates on the voxels of each pooling, held out one after the other."""

    def __init__(self, config: FitConfig, device: torch.device, report: Report) -> None:
        self._config, self._device, self._report = config, device, report
        self.tried: list[Tried] = []
        self._left: list[Candidate] = []
        self._folds: dict[str | None, list[Fold]] = {}
        self.paths: dict[str, tuple[dict[str, float], ...]] = {}

    def add(self, name: str, data: FitData) -> None:
        """Hold a candidate out, unless it is too large for the voxels."""
        calibrator = make_calibrator(name, data.cases.num_classes)
        candidate = Candidate(name, data.cases.pooling, calibrator.as_fitted().num_identifiable())
        if calibrator.fitted_by != "isotonic" and candidate.parameters * VOXELS_PER_PARAMETER > data.source.used:
            self._left.append(replace(candidate, verdict="not tried: too many parameters for the voxels"))
            return
        request = Request.on(
            data, calibrator, self._config, self._device, lambda text: self._report(f"{candidate.title}: {text}")
        )
        fixed = given(request) if calibrator.fitted_by == "convex" else ()
        tried = self._walk(candidate, request) if None in fixed else self._hold_out(candidate, request)
        if tried is None:
            self._left.append(replace(candidate, verdict="left early: not better than ts"))
        else:
            self.tried.append(tried)

    def best_pooling(self) -> str | None:
        """Return the pooling in which a candidate has the lowest mean NLL."""
        return min(self.tried, key=lambda row: row.nll).candidate.pooling

    def decide(self, held: Cases, folds: int) -> Decision:
        """Choose by the rule."""
        ids = list(self.tried[0].worth)
        found = decide(self.tried, dict(zip(ids, group_names(held, ids), strict=True)), folds)
        return replace(found, candidates=(*found.candidates, *self._left))

    def _folds_of(self, data: FitData) -> list[Fold]:
        """Return the folds of a pooling, which all candidates share."""
        pooling = data.cases.pooling
        if pooling not in self._folds:
            self._folds[pooling] = list(folds_of(data, self._config))
        return self._folds[pooling]

    def _walk(self, candidate: Candidate, request: Request) -> Tried | None:
        """Return the strength that does best on held-out cases; None if that is temperature scaling."""
        fixed = given(request)
        found = walk(request, fixed, self._folds_of(request))
        if found is None or found.chosen == max(found.worth):
            return None
        path = tuple({"strength": strength, "held_out_nll": mean} for strength, mean in found.means().items())
        self.paths[candidate.title] = path
        return Tried(replace(candidate, strengths=at(found.chosen, fixed)), found.worth[found.chosen])

    def _hold_out(self, candidate: Candidate, request: Request) -> Tried | None:
        """Fit to every fold and measure; None if a fold says that it is worse than temperature scaling."""
        worth: dict[str, Worth] = {}
        for fold in self._folds_of(request):
            calibrator = copy.deepcopy(request.calibrator)
            fit_declared(_on_fold(replace(request, calibrator=calibrator), fold))
            worth |= measure(calibrator, fold.held, self._device)
            if self._is_hopeless(candidate, worth, request):
                return None
        return Tried(candidate, worth)

    def _is_hopeless(self, candidate: Candidate, worth: dict[str, Worth], request: Request) -> bool:
        simple = [row for row in self.tried if (row.candidate.name, row.candidate.pooling) == ("ts", candidate.pooling)]
        if candidate.name in ("identity", "ts") or not simple:
            return False
        ids, differences = paired(worth, simple[0].worth)
        cases = request.cases if request.validation_cases is None else request.validation_cases
        mean, error = noise(differences, group_names(cases, ids), folds=1)
        return error is not None and mean > 2 * error


def _on_fold(request: Request, fold: Fold) -> Request:
    """Return the request for one fold, in which part of a fold stops what needs stopping."""
    config = replace(request.config, max_steps=min(FOLD_STEPS, request.config.max_steps), checkpoint=None)
    own = replace(request, source=fold.learn, cases=fold.cases, validation=None, validation_cases=None, config=config)
    if request.calibrator.fitted_by != "gradient" or not count_folds(fold.cases, None, 2):
        return own
    cal, stop, _ = divide(fold.cases, STOPPING_SHARE, seed=request.config.seed)
    source, held = fold.learn.subset(cal.ids), fold.learn.subset(stop.ids)
    return replace(own, source=source, cases=cal, validation=held, validation_cases=stop)
