"""What a calibrator learns of labelled cases, so that :func:`segcal.trust` can judge new ones.

Only numbers that the calibrator had no part in making say how far it can be trusted. Cases that it has not seen are
taken as they are: every promise is then exact. Cases that it was compared on keep its parameters honest, not its name,
and nothing is proved. Cases that it was fitted to are measured by fits of the same kind to other groups, fold by fold,
and these fits are kept: a new case is measured by each of them too, which is CV+ (:mod:`segcal.trust.conformal`).
Intervals then hold about as stated, and are proved at twice the share of exceptions or a little more, unless the kind
or the strengths were chosen on the same cases: of that nothing is proved, as of thresholds of masks from folds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from segcal.arguments import typed
from segcal.calibrators import make_calibrator, registry_entry
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Workers, map_ids
from segcal.cases.region_view import region_view
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.division import equal_folds
from segcal.fitting.fit import check_device, fit_to
from segcal.fitting.reference import (
    HELD_OUT,
    ITSELF,
    OUT_OF_FOLD,
    VALIDATION,
    VERSION,
    LossCurves,
    Reference,
    ReferenceCase,
    Source,
    calibrator_digest,
    packed,
    written_numbers,
)
from segcal.fitting.request import FitData, read_data
from segcal.trust.conformal import count_draws, mean_over_draws
from segcal.trust.region_sums import sum_regions
from segcal.trust.sums import THRESHOLDS, CaseSums, Floats, one_unit, reference_case, sum_case

Step = Callable[[str], None]


class Summer:
    """Sums one case after the other; picklable, for several processes."""

    def __init__(self, calibrator: Calibrator, cases: Cases) -> None:
        self._every = FoldSummer([calibrator], cases)

    def __call__(self, case_id: str) -> CaseSums:
        """Read and sum a case."""
        return self._every(case_id)[0]


class FoldSummer:
    """Sums one case after the other by each of some calibrators; the case is read once."""

    def __init__(self, calibrators: Sequence[Calibrator], cases: Cases) -> None:
        self._calibrators, self._cases = calibrators, cases
        self._several = len(cases.member_names) > 1

    def __call__(self, case_id: str) -> list[CaseSums]:
        """Read and sum a case."""
        case = self._cases.checked(case_id)
        if isinstance(self._calibrators[0], PerRegion):
            return [sum_regions(each, case) for each in self._calibrators if isinstance(each, PerRegion)]
        members = self._cases.member_logits(case_id) if self._several else ()
        first = sum_case(self._calibrators[0], case, members)
        return [first, *(replace(sum_case(each, case), agreement=first.agreement) for each in self._calibrators[1:])]


@typed
def learn_trust(
    fitted: Fitted,
    cases: Any,
    labels: Any = None,
    *,
    held_out: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Step | None = None,
    **declared: Any,
) -> Fitted:
    """Return the fitted calibrator with what it needs to say how far new cases can be trusted.

    Args:
        fitted: what :func:`segcal.fit`, :func:`segcal.choose` or :func:`segcal.load` returned.
        cases: labelled cases. Those that had no part in the fit are used alone, if there are any and no other case of
            their group had one; else those it was compared on; else fits to the other groups measure each in turn, of
            which as many are in every fold, and a few may be in none.
        labels: of arrays.
        held_out: no case had a part in the fit, whatever its name; arrays are named by their numbers, and have those of
            others too.
        device: where to compute; the CPU if not given.
        workers: how many processes read cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what else is known of arrays, such as `kind`.

    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> logits = 3 * rng.normal(size=(12, 2, 9, 7))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> fitted = segcal.fit("ts", logits, labels)
    >>> learn_trust(fitted, logits, labels).reference.source
    'out of fold'
    """
    known = as_cases(cases, labels, **declared)
    check_match(fitted, known)
    if not len(known):
        raise InputError("cases is empty, but labelled cases are needed to learn from. Check the folder or the split.")
    chosen, source = (known, HELD_OUT) if held_out else judges_of(fitted, known)
    chosen = chosen.with_disagreement()
    target = check_device(device)
    parts = fold_fits(fitted, chosen, target) if source == OUT_OF_FOLD else [(fitted.calibrator.to(target), chosen)]
    memory = Memory(len(chosen), fitted.calibrator.num_classes)
    for number, (calibrator, part) in enumerate(parts):
        fold = number if source == OUT_OF_FOLD else ITSELF
        for case_id, found in map_ids(part.ids, Summer(calibrator, part), workers, failed):
            memory.add(found, fold)
            if progress is not None:
                progress(case_id)
    reference = memory.reference(fitted.calibrator, source, len(known.member_names))
    if source == OUT_OF_FOLD:
        reference = msgspec.structs.replace(
            reference,
            folds=tuple(packed(calibrator) for calibrator, _ in parts),
            chosen=any(bool(one.path) or "chosen" in one.details for one in _certificates(fitted)),
        )
    return replace(fitted, reference=reference)


class Memory:
    """What is remembered of so many labelled cases, one after the other.

    Losses go into one array that is there from the start: small arrays that are kept, between large ones that are not,
    would keep the memory of the large ones.
    """

    def __init__(self, most: int, classes: int) -> None:
        self._losses = np.full((most, classes, 3, len(THRESHOLDS)), np.nan, np.float32)
        self._cases: list[ReferenceCase] = []
        self._units: set[str] = set()

    def add(self, sums: CaseSums, fold: int = ITSELF) -> None:
        """Remember a case, and the place of the calibrator of a fold that judged it."""
        if sums.truth is None:
            raise InputError(
                f"labels of case {sums.case!r} is missing, but trust is learned from labelled cases. "
                "Open the cases with labels, or leave this one out."
            )
        for number in range(len(sums.mask)):
            self._losses[len(self._cases), number] = losses_of(sums, number)
        self._cases.append(msgspec.structs.replace(reference_case(sums), fold=fold))
        self._units.add(sums.unit)

    def reference(self, calibrator: Calibrator, source: Source, members: int) -> Reference:
        """Return it all."""
        if not self._cases:
            raise InputError("all cases failed, but at least one is needed to learn from. Check their files.")
        return Reference(
            version=VERSION,
            source=source,
            calibrator=calibrator_digest(calibrator),
            members=max(members, 1),
            unit=one_unit(self._units),
            cases=tuple(sorted(self._cases, key=lambda each: each.id)),
            curves=tuple(self._curves(number) for number in range(calibrator.num_classes)),
        )

    def _curves(self, number: int) -> LossCurves:
        losses, groups = self._losses[: len(self._cases), number], [each.group for each in self._cases]
        there = np.flatnonzero(~np.isnan(losses[:, 0, 0]))
        own = [groups[place] for place in there]
        missed, outranked = (written_numbers(mean_over_draws(losses[there, k], own)) if own else "" for k in (0, 1))
        return LossCurves(count_draws(own), missed, outranked, written_numbers(mean_over_draws(losses[:, 2], groups)))


def losses_of(sums: CaseSums, number: int) -> Floats:
    """Return the losses ``(3, thresholds)`` of a case and class, in the order in which :class:`LossCurves` names them.

    The first two are NaN where the structure is not there.
    """
    assert sums.truth is not None
    own, rank, every = (table[number] for table in (sums.truth.by_prob, sums.truth.by_rank, sums.truth.all_by_prob))
    total = own.sum() or np.nan
    missed, outranked = np.cumsum(own)[:-1] / total, 1 - np.cumsum(rank)[:-1] / total
    above, right = (table.sum() - np.cumsum(table)[:-1] for table in (every, own))
    wrong = np.divide(above - right, above, out=np.zeros_like(above), where=above > 0)
    return np.stack([missed, outranked, np.maximum.accumulate(wrong[::-1])[::-1]])


def judges_of(fitted: Fitted, cases: Cases) -> tuple[Cases, Source]:
    """Return the cases that may judge a fit, and how they stand to it."""
    seen = {*fitted.calibration_ids, *fitted.validation_ids}
    touched = {cases.groups[case_id] for case_id in cases.ids if case_id in seen and case_id in cases.groups}
    unseen = [case_id for case_id in cases.ids if case_id not in seen and cases.groups.get(case_id) not in touched]
    if unseen:
        return cases.subset(unseen), HELD_OUT
    compared = [case_id for case_id in cases.ids if case_id in fitted.validation_ids]
    if compared:
        return cases.subset(compared), VALIDATION
    return cases.subset([case_id for case_id in cases.ids if case_id in seen]), OUT_OF_FOLD


def _certificates(fitted: Fitted) -> list[Certificate]:
    """Return the certificate of a fit; of regions, those of each."""
    if not isinstance(fitted.calibrator, PerRegion):
        return [fitted.certificate]
    own = fitted.certificate.details["regions"]
    return [msgspec.convert(own[name], Certificate) for name in fitted.calibrator.regions.names]


def fold_fits(fitted: Fitted, cases: Cases, device: torch.device) -> list[tuple[Calibrator, Cases]]:
    """Return the parts of the cases, each with a calibrator that was fitted to all others; of regions, one for each."""
    if isinstance(fitted.calibrator, PerRegion):
        whole, fits_of = fitted.calibrator, []
        for number, (inner, found) in enumerate(zip(whole.each.values(), _certificates(fitted), strict=True)):
            one = replace(fitted, calibrator=inner, certificate=found)
            fits_of.append(fold_fits(one, region_view(cases, number), device))
        joined = ([each for each, _ in part] for part in zip(*fits_of, strict=True))
        made = [PerRegion(whole.regions, inner).eval().requires_grad_(False) for inner in joined]
        return [(each, cases.subset(part.ids)) for each, (_, part) in zip(made, fits_of[0], strict=True)]
    parts = equal_folds(cases, fitted.config.folds, fitted.config.seed)
    entry = registry_entry(fitted.calibrator)
    if len(parts) < 2 or entry is None:
        what = "are one group" if entry is not None else "were fitted by a calibrator of your own"
        raise InputError(
            f"the {len(cases)} cases had a part in the fit and {what}, but none can then be held out. "
            "Pass labelled cases that the calibrator has not seen."
        )
    found = fitted.certificate
    # The paper's search would take as long again for every part, to come near the optimum that the exact method finds.
    config = replace(fitted.config, method="exact", verify=False, checkpoint=None)
    config = replace(config, lam=found.lam, mu=found.mu, nu=found.nu)
    fits = []
    data = read_data(cases, None, config, contexts=fitted.calibrator.wants)
    for part in parts:
        learned = data.cases.subset([case_id for case_id in data.cases.ids if case_id not in part])
        source = data.source.subset(learned.ids)
        if not source.used:
            raise InputError(
                f"the labels of {len(learned)} of {len(data.cases)} cases are ignored everywhere, but each part of the "
                "cases is judged by a fit to the others. Pass labelled cases that the calibrator has not seen."
            )
        fresh = make_calibrator(entry[0], cases.num_classes, **entry[1])
        one = fit_to(fresh, FitData(learned, None, source, None), config, device)
        fits.append((one.calibrator.to(device), cases.subset([each for each in cases.ids if each in part])))
    return fits
