"""The contest of calibrators: each is fitted to folds of the cases and measured on what is held out.

Every candidate is fitted to the calibration cases without one fold of whole groups, in turn, or once to all of them
where there are validation cases (:mod:`segcal.fitting.division`); :mod:`segcal.fitting.choice` has the rule, and the
winner is fitted once more, to all. Poolings are compared by what is fitted in no time; the others then compete in the
pooling that did best. A candidate that the first folds show to be worse than temperature scaling is left early. The one
that would be taken is measured once more, with parts of the cases held out that differ (:mod:`segcal.fitting.sites`).
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
from segcal.fitting.candidate import Decision
from segcal.fitting.certificate import Fitted
from segcal.fitting.choice import ENOUGH_GROUPS, ONE_GROUP, Preserve, candidates, is_quick, undecided
from segcal.fitting.config import FitConfig, check_config
from segcal.fitting.division import count_folds, group_names
from segcal.fitting.fit import check_device, fit_to
from segcal.fitting.outliers import weigh
from segcal.fitting.progress import Progress, Report, silent
from segcal.fitting.request import FitData, read_data, take_parts
from segcal.fitting.rivals import Rivals
from segcal.kernels.loops import one_thread


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
    if config.outliers:
        data = {pooling: weigh(own, config.seed) for pooling, own in data.items()}
    first = next(iter(data.values()))
    folds = count_folds(first.cases, first.validation, config.folds)
    contest = Rivals(config, check_device(device), report)
    with one_thread():  # many small steps: more threads wait for each other, and the choice would depend on them
        if folds:
            decision = _hold(contest, names, data, folds)
        elif "ts" in names and len(first.cases) >= ENOUGH_GROUPS:
            decision = _hold_apart(contest, data)
        else:
            decision = undecided(next(iter(data)))
    chosen = decision.chosen
    lam, mu, nu = chosen.strengths or (config.lam, config.mu, config.nu)
    fitted = fit_to(chosen.name, data[chosen.pooling], replace(config, lam=lam, mu=mu, nu=nu), device, report)
    certificate = fitted.certificate
    details = certificate.details | asdict(decision) | {"chosen": chosen.name}
    path, rests = contest.path(chosen) or certificate.path, certificate.evidence
    assert rests is not None
    rests = replace(rests, sites=contest.sites, declared=contest.declared)
    full = replace(certificate, details=details, path=path, evidence=rests)
    return Choice(replace(fitted, certificate=full), decision)


def _hold_apart(contest: "Rivals", data: Mapping[str | None, FitData]) -> Decision:
    """Decide on a temperature alone, with the cases of one group held out as if they were groups."""
    apart = {}
    for pooling, own in data.items():
        cases = copy.copy(own.cases)
        cases.groups = {}
        apart[pooling] = replace(own, cases=cases)
    folds = count_folds(next(iter(apart.values())).cases, None, contest.config.folds)
    decision = _hold(contest, ["identity", "ts"], apart, folds)
    contest.sites = {}  # clusters of cases, which are no groups
    return replace(decision, groups=1, reason=f"{ONE_GROUP} {decision.reason}")


def _hold(contest: "Rivals", names: Sequence[str], data: Mapping[str | None, FitData], folds: int) -> Decision:
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
    return contest.decide(first, folds)
