"""The candidates of a comparison, held out one after the other on the voxels of each pooling.

All candidates of a pooling share its folds. One that the first folds show to be worse than temperature scaling is left
early; one that would be taken is measured once more, with parts of the cases held out that differ
(:mod:`segcal.fitting.sites`).
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from segcal.calibrators import make_calibrator
from segcal.calibrators.convex import ConvexCalibrator
from segcal.fitting.candidate import Candidate, Decision, Tried
from segcal.fitting.choice import decide
from segcal.fitting.config import FitConfig
from segcal.fitting.division import Fold, count_folds, divide, folds_of, group_names
from segcal.fitting.exact import Fixed, Walk, at, given, measured, walk
from segcal.fitting.fit import fit_declared
from segcal.fitting.progress import Report
from segcal.fitting.request import FitData, Request
from segcal.fitting.scores import Worth, measure, noise, paired
from segcal.fitting.sites import Sites, find_sites

# Fewer voxels to a parameter promise nothing, and take long to say so.
VOXELS_PER_PARAMETER = 20
# Share of what a fold learns from that stops a fit by gradient, and how many steps that may take at most.
STOPPING_SHARE = 0.2
FOLD_STEPS = 150


class Rivals:
    """Candidates on the voxels of each pooling, held out one after the other."""

    def __init__(self, config: FitConfig, device: torch.device, report: Report) -> None:
        self.config, self._device, self._report = config, device, report
        self.tried: list[Tried] = []
        self._left: list[Candidate] = []
        self._folds: dict[str | None, list[Fold]] = {}
        self._requests: dict[str, Request] = {}
        self._walks: dict[str, Walk] = {}
        self._away: dict[str | None, list[Fold]] = {}
        self.sites: dict[str, int] = {}
        self.declared = False

    def add(self, name: str, data: FitData) -> None:
        """Hold a candidate out, unless it is too large for the voxels."""
        calibrator = make_calibrator(name, data.cases.num_classes)
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
        groups = dict(zip(data.cases.ids, group_names(data.cases, data.cases.ids), strict=True))
        if data.validation_cases is not None:
            held = data.validation_cases
            groups |= dict(zip(held.ids, group_names(held, held.ids), strict=True))
        sites = find_sites(data, self.config.seed)
        how: dict[str, Any] = {}
        if sites is not None:
            how = {"travel": partial(self._travel, sites), "parts": sites.parts, "errors": sites.errors}
        found = decide(self.tried, groups, folds, **how)
        self.sites = {} if sites is None else sites.groups(data.cases)
        self.declared = sites is not None and sites.declared
        return replace(found, candidates=(*found.candidates, *self._left))

    def path(self, candidate: Candidate) -> tuple[dict[str, float], ...] | None:
        """Return the strengths of a candidate that were tried; None if it has none."""
        if candidate.title not in self._walks:
            return None
        means = self._walks[candidate.title].means()
        return tuple({"strength": strength, "held_out_nll": mean} for strength, mean in means.items())

    def _travel(self, sites: Sites, row: Tried) -> Iterator[Tried]:
        """Yield a candidate measured with every part held out: as it is, or at its strength and at stronger ones.

        Where that is no use, the same without biases: class frequencies are not learned unless held-out parts agree.
        """
        request, found = self._requests[row.candidate.title], self._walks.get(row.candidate.title)
        request = replace(request, validation=None, validation_cases=None)
        pooling = request.cases.pooling
        if pooling not in self._away:
            self._away[pooling] = sites.folds(request, self.config.seed)
        if found is None:
            yield replace(row, away=self._held_out(request, self._away[pooling]))
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
        self,
        candidate: Candidate,
        request: Request,
        fixed: Fixed,
        path: Sequence[float],
        home: Mapping[float, Mapping[str, Worth]],
    ) -> Iterator[Tried]:
        """Yield a candidate at the strengths of a path, weakest first."""
        away = measured(request, fixed, self._away[request.cases.pooling], path)
        for strength in sorted(path):
            yield Tried(replace(candidate, strengths=at(strength, fixed)), home[strength], away[strength])

    def _folds_of(self, data: FitData) -> list[Fold]:
        """Return the folds of a pooling, which all candidates share."""
        pooling = data.cases.pooling
        if pooling not in self._folds:
            self._folds[pooling] = list(folds_of(data, self.config))
        return self._folds[pooling]

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
