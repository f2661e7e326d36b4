"""The comparison of calibrators: each is fitted to folds of the cases and measured on what is held out.

Every candidate is fitted to the calibration cases without one fold of whole groups, in turn. With validation cases it
is fitted once to all of them (:mod:`segcal.fitting.division`). :mod:`segcal.fitting.choice` has the rule, and the one
that is chosen is fitted once more, to all. Poolings are compared by what is fitted in no time; the others are then
compared in the pooling that did best, all on its folds. A candidate that the first folds show to be worse than
temperature scaling by two standard errors is left early. One that is trained by gradient is left also when the 3 % that
it must gain are out of their reach. The one that would be taken is measured once more, with parts of the cases held out
that differ (:class:`segcal.fitting.division.Sites`).
"""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from segcal.arguments import typed
from segcal.calibrators import make_calibrator
from segcal.calibrators.convex import ConvexCalibrator
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Engine, Workers, kept_processes
from segcal.cases.region_view import region_view
from segcal.errors import InputError
from segcal.fitting.by_region import best_pooling, check_validation, competing, fit_by_region
from segcal.fitting.certificate import Fitted
from segcal.fitting.choice import (
    ENOUGH_GROUPS,
    NOTICED,
    ONE_GROUP,
    Candidate,
    ChoiceRule,
    Decision,
    Preserve,
    Tried,
    candidates,
    is_quick,
    undecided,
)
from segcal.fitting.config import FitConfig, check_config
from segcal.fitting.division import Fold, Sites, count_folds, divide, find_sites, folds_of, groups_of
from segcal.fitting.fit import check_device, fit_declared, fit_to
from segcal.fitting.outliers import weigh
from segcal.fitting.progress import Report, reporting, silent
from segcal.fitting.request import FitData, Request, read_each, take_parts
from segcal.fitting.scores import Worth, difference, measure
from segcal.fitting.strengths import Fixed, FoldWalk, Measured, Walk, at, given, measured, walk
from segcal.kernels.loops import one_thread

# Fewer voxels to a parameter promise nothing, and take long to say so.
VOXELS_PER_PARAMETER = 20
# Share of what a fold learns from that stops a fit by gradient, and how many steps that may take at most.
STOPPING_SHARE = 0.2
FOLD_STEPS = 150


class Choice(NamedTuple):
    """The chosen calibrator, fitted to all calibration cases, and what the comparison says of all."""

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
        how = {"config": config, "device": device, "workers": workers, "failed": failed, "progress": progress}
        return _choose_by_region(cases, validation, names=competing(names, preserve), preserve=preserve, **how)
    names = candidates(cases.num_classes, preserve, allow_offset_dependent) if names is None else names
    for name, pooling in itertools.product(names, cases.poolings):
        cases.pooled(pooling).require_offset(name, make_calibrator(name, cases.num_classes).translation_invariant)
    config = check_config(config)
    check_device(device)
    with reporting("choosing", progress) as report, kept_processes(workers) as kept:
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
        raise InputError("voxels='all' is given, but a shard keeps voxels that were drawn. Give a number of them.")
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
    """Return the voxels of a comparison, by pooling; further arguments are those of :func:`segcal.fit`."""
    room = replace(config, memory=max(1 << 20, config.memory // len(cases.poolings)))
    own, others = _each_pooling(cases), None if validation is None else _each_pooling(validation)
    return dict(zip(cases.poolings, read_each(own, others, room, *how, suspect=True, contexts=contexts), strict=True))


def _each_pooling(cases: Cases) -> list[Cases]:
    """Return cases in each pooling, of which one that is read is read for all."""
    kept = cases if cases.kept is not None or len(cases.poolings) == 1 else cases.keeping()
    return [kept.pooled(pooling) for pooling in cases.poolings]


def _choose_by_region(cases: Cases, validation: Cases | None, **how: Any) -> Fitted:
    """Choose for each region; where regions would be pooled differently, with the pooling that is best for all."""
    found: dict[str, Fitted] = {}

    def choose_one(number: int, own: Cases, others: Cases | None) -> Fitted:
        found[str(number)] = choose(own, validation=others, **how)
        return found[str(number)]

    fitted = fit_by_region(cases, validation, choose_one)
    if len({one.pooling for one in found.values()}) > 1:
        best = best_pooling(found, cases.poolings)
        return fit_by_region(cases.pooled(best), validation and validation.pooled(best), choose_one)
    return fitted


def compare(
    names: Sequence[str],
    data: Mapping[str | None, FitData],
    config: FitConfig,
    device: str | torch.device | None = None,
    report: Report = silent,
) -> Choice:
    """Compare calibrators of these names on voxels by pooling (:func:`read_poolings`), and fit the chosen one."""
    first = next(iter(data.values()))
    folds = count_folds(first.cases, first.validation, config.folds)
    held = HeldOutFits(config, check_device(device), report)
    with one_thread():  # many small steps: more threads wait for each other, and the choice would depend on them
        if folds:
            decision = _hold(held, names, data, folds)
        elif "ts" in names and len(first.cases) >= ENOUGH_GROUPS:
            decision = _hold_apart(held, data)
        else:
            decision = undecided(next(iter(data)))
    chosen = decision.chosen
    lam, mu, nu = chosen.strengths or (config.lam, config.mu, config.nu)
    fitted = fit_to(chosen.name, data[chosen.pooling], replace(config, lam=lam, mu=mu, nu=nu), device, report)
    certificate = fitted.certificate
    details = certificate.details | asdict(decision) | {"chosen": chosen.name}
    path, rests = held.path(chosen) or certificate.path, certificate.evidence
    assert rests is not None
    rests = replace(rests, sites=held.sites, declared=held.declared)
    full = replace(certificate, details=details, path=path, evidence=rests)
    return Choice(replace(fitted, certificate=full), decision)


def _hold_apart(held: "HeldOutFits", data: Mapping[str | None, FitData]) -> Decision:
    """Decide on a temperature alone, with the cases of one group held out as if they were groups."""
    apart = {}
    for pooling, own in data.items():
        cases = copy.copy(own.cases)
        cases.groups = {}
        apart[pooling] = replace(own, cases=cases)
    folds = count_folds(next(iter(apart.values())).cases, None, held.config.folds)
    decision = _hold(held, ["identity", "ts"], apart, folds)
    held.sites = {}  # clusters of cases, which are no groups
    return replace(decision, groups=1, reason=f"{ONE_GROUP} {decision.reason}")


def _hold(held: "HeldOutFits", names: Sequence[str], data: Mapping[str | None, FitData], folds: int) -> Decision:
    first = next(iter(data.values()))
    quick = [name for name in names if len(names) == 1 or is_quick(name)]
    for own in data.values():
        for name in quick:
            held.add(name, own)
    best = data[held.best_pooling()]
    enough = len(set(groups_of(first.judges).values())) >= ENOUGH_GROUPS  # else nothing costly could be chosen
    for name in names if enough else ():
        if name not in quick:
            held.add(name, best)
    return held.decide(first, folds)


class HeldOutFits:
    """Candidates on the voxels of each pooling, fitted and measured on what is held out, one after the other."""

    def __init__(self, config: FitConfig, device: torch.device, report: Report) -> None:
        self.config, self._device, self._report = config, device, report
        self.tried: list[Tried] = []
        self._left: list[Candidate] = []
        self._folds: dict[tuple[str | None, bool], list[Fold]] = {}
        self._requests: dict[str, Request] = {}
        self._walks: dict[str, Walk] = {}
        self._away: dict[tuple[str | None, bool], list[Fold]] = {}
        self.sites: dict[str, int] = {}
        self.declared = False

    def add(self, name: str, data: FitData) -> None:
        """Hold a candidate out, unless it is too large for the voxels."""
        calibrator = make_calibrator(name, data.cases.num_classes)
        data = weigh(data, calibrator, self.config)
        candidate = Candidate(name, data.cases.pooling, calibrator.as_fitted().num_identifiable())
        if calibrator.fitted_by != "isotonic" and candidate.parameters * VOXELS_PER_PARAMETER > data.source.used:
            self._left.append(replace(candidate, verdict="not tried: too many parameters for the voxels"))
            return
        request = Request.on(
            data, calibrator, self.config, self._device, lambda text: self._report(f"{candidate.title}: {text}")
        )
        self._requests[candidate.title] = request
        fixed = given(request) if calibrator.fitted_by == "convex" else ()
        tried = self._walk(candidate, request) if None in fixed else self._hold_out(candidate, request)
        if tried is None:
            self._left.append(replace(candidate, verdict="left early: not better than ts"))
        else:
            self.tried.append(tried)

    def best_pooling(self) -> str | None:
        """Return the pooling in which a candidate has the lowest mean NLL."""
        return min(self.tried, key=lambda row: row.nll).candidate.pooling

    def decide(self, data: FitData, folds: int) -> Decision:
        """Choose by the rule."""
        less = {case_id for request in self._requests.values() for case_id in request.weights or ()}
        rule = ChoiceRule(groups_of(data.cases) | groups_of(data.judges), folds, less=less)
        sites = find_sites(data, self.config.seed)
        if sites is not None:
            rule = replace(rule, transfer=partial(self._transfer, sites), parts=sites.parts, errors=sites.errors)
            self.sites, self.declared = sites.groups(data.cases), sites.declared
        found = rule.decide(self.tried)
        return replace(found, candidates=(*found.candidates, *self._left))

    def path(self, candidate: Candidate) -> tuple[dict[str, float], ...] | None:
        """Return the strengths of a candidate that were tried; None if it has none."""
        if candidate.title not in self._walks:
            return None
        means = self._walks[candidate.title].means()
        return tuple({"strength": strength, "held_out_nll": mean} for strength, mean in means.items())

    def _transfer(self, sites: Sites, row: Tried) -> Iterator[Tried]:
        """Yield a candidate measured with every site held out: as it is, or at its strength and at stronger ones.

        Where that is no use, the same without biases: class frequencies are not learned unless held-out sites agree.
        """
        request, found = self._requests[row.candidate.title], self._walks.get(row.candidate.title)
        request = replace(request, validation=None, validation_cases=None)
        key = request.cases.pooling, bool(request.weights)
        if key not in self._away:
            self._away[key] = sites.folds(request, self.config.seed)
        if found is None:
            yield replace(row, away=self._held_out(request, self._away[key]))
            return
        fixed = given(request)
        path = [strength for strength in found.worth if found.chosen <= strength < max(found.worth)]
        yield from self._versions(row.candidate, request, fixed, path, found.worth)
        assert isinstance(request.calibrator, ConvexCalibrator)
        if request.calibrator.biased and fixed[1] is None:
            unbiased = (fixed[0], max(found.worth), fixed[2])
            home = measured(self._requests[row.candidate.title], unbiased, self._folds_of(request), path)
            yield from self._versions(row.candidate, request, unbiased, path, home)

    def _versions(
        self, candidate: Candidate, request: Request, fixed: Fixed, path: Sequence[float], home: Measured
    ) -> Iterator[Tried]:
        """Yield a candidate at the strengths of a path, weakest first, each measured away when it is asked for."""
        walks = [FoldWalk(request, fold, fixed) for fold in self._away[request.cases.pooling, bool(request.weights)]]
        for strength in sorted(path):
            away = {case_id: worth for one in walks for case_id, worth in one.measured_at(strength).items()}
            yield Tried(replace(candidate, strengths=at(strength, fixed)), home[strength], away)

    def _folds_of(self, data: FitData) -> list[Fold]:
        """Return the folds of a pooling, which all candidates share whose voxels count alike."""
        key = data.cases.pooling, bool(data.weights)
        if key not in self._folds:
            self._folds[key] = list(folds_of(data, self.config))
        return self._folds[key]

    def _walk(self, candidate: Candidate, request: Request) -> Tried | None:
        """Return the strength that does best on held-out cases; None if that is temperature scaling."""
        fixed = given(request)
        found = walk(request, fixed, self._folds_of(request))
        if found is None or found.chosen == max(found.worth):
            return None
        self._walks[candidate.title] = found
        return Tried(replace(candidate, strengths=at(found.chosen, fixed)), found.worth[found.chosen])

    def _hold_out(self, candidate: Candidate, request: Request) -> Tried | None:
        """Fit to every fold and measure; None if a fold says that it is worse than temperature scaling."""
        worth: dict[str, Worth] = {}
        for fold in self._folds_of(request):
            worth |= self._held_out(request, [fold])
            if self._is_hopeless(candidate, worth, request):
                return None
        return Tried(candidate, worth)

    def _held_out(self, request: Request, folds: Sequence[Fold]) -> dict[str, Worth]:
        worth: dict[str, Worth] = {}
        for fold in folds:
            calibrator = copy.deepcopy(request.calibrator)
            fit_declared(_on_fold(replace(request, calibrator=calibrator), fold))
            worth |= measure(calibrator, fold.held, self._device)
        return worth

    def _is_hopeless(self, candidate: Candidate, worth: dict[str, Worth], request: Request) -> bool:
        simple = [row for row in self.tried if (row.candidate.name, row.candidate.pooling) == ("ts", candidate.pooling)]
        if candidate.name in ("identity", "ts") or not simple:
            return False
        mean, error = difference(worth, simple[0].worth, groups_of(request.judges))
        # What is trained takes long, and must gain more: it is left as soon as that is out of reach.
        missing = NOTICED * simple[0].nll if request.calibrator.fitted_by == "gradient" else 0.0
        return error is not None and mean + missing > 2 * error


def _on_fold(request: Request, fold: Fold) -> Request:
    """Return the request for one fold, in which part of a fold stops what needs stopping."""
    config = replace(request.config, max_steps=min(FOLD_STEPS, request.config.max_steps), checkpoint=None)
    own = replace(request, source=fold.learn, cases=fold.cases, validation=None, validation_cases=None, config=config)
    if request.calibrator.fitted_by != "gradient" or not count_folds(fold.cases, None, 2):
        return own
    cal, stop, _ = divide(fold.cases, STOPPING_SHARE, seed=request.config.seed)
    source, held = fold.learn.subset(cal.ids), fold.learn.subset(stop.ids)
    return replace(own, source=source, cases=cal, validation=held, validation_cases=stop)
