"""Which strength of the penalty is taken, of those that were measured on cases that had no part in the fit.

Of the strengths that are no more than one standard error worse than the best, over the groups of held-out cases, the
strongest is taken: what the cases cannot tell apart is decided for the simpler map, and the simplest is temperature
scaling. With one held-out group the error is not known, and the best is taken.

Of a calibrator that is *guarded*, strengths at which the mean ECE or BA-ECE of held-out cases is more than 2 % higher
than that of temperature scaling are left out before: a lower NLL is not bought with calibration errors. Of a *region*
they also decide with it: a strength must be no more than one standard error worse than the best in both. Most voxels of
a region are far from it, so its NLL is that of few voxels, and its standard error that of the one case that went wrong;
in the errors all cases have a say.
"""

from collections.abc import Mapping

from segcal.cases.base import Cases
from segcal.cases.region_view import RegionView
from segcal.fitting.division import group_names
from segcal.fitting.request import Request
from segcal.fitting.scores import Worth, noise, paired

ERRORS = ("ece", "ba_ece")
# By what share a calibration error may be higher than that of temperature scaling.
VISIBLE = 0.02


def mean_over_cases(found: Mapping[str, Worth]) -> float:
    """Return the mean NLL over held-out cases."""
    return sum(worth.nll for worth in found.values()) / len(found)


def lowest(worth: Mapping[float, Mapping[str, Worth]]) -> float:
    """Return the strength with the lowest mean NLL; of equal ones, the strongest."""
    return min(worth, key=lambda strength: (mean_over_cases(worth[strength]), -strength))


def without_harm(worth: dict[float, dict[str, Worth]]) -> dict[float, dict[str, Worth]]:
    """Return the strengths at which no calibration error is visibly higher than that of temperature scaling."""
    simple = worth[max(worth)]
    kept = {}
    for strength, found in worth.items():
        pairs = [(_mean_error(found, what), _mean_error(simple, what)) for what in ERRORS]
        if all(own <= (1 + VISIBLE) * other for own, other in pairs):
            kept[strength] = found
    return kept


def _mean_error(found: dict[str, Worth], what: str) -> float:
    """Return the mean over the cases in which it is defined; 0 if there are none."""
    values = [value for worth in found.values() if (value := getattr(worth, what)) is not None]
    return sum(values) / max(1, len(values))


def is_worse(request: Request, found: Mapping[str, Worth], other: Mapping[str, Worth]) -> bool:
    """Return whether the NLL of held-out cases is higher than another's by more than one standard error over groups.

    With one group that is not known, and nothing is said to be worse.
    """
    ids, differences = paired(found, other)
    mean, error = noise(differences, group_names(_judges(request), ids), folds=1)
    return error is not None and mean > error


def _judges(request: Request) -> Cases:
    return request.cases if request.validation_cases is None else request.validation_cases


def strongest_as_good(request: Request, worth: Mapping[float, Mapping[str, Worth]], best: float, folds: int) -> float:
    """Return the strongest that held-out cases cannot tell from the best."""
    cases = _judges(request)
    decisive = ("nll", *(ERRORS if request.calibrator.guarded and isinstance(cases, RegionView) else ()))

    def is_as_good(strength: float, what: str) -> bool:
        ids, differences = paired(worth[strength], worth[best], what)
        mean, error = noise(differences, group_names(cases, ids), folds) if ids else (0.0, 0.0)
        return error is not None and mean <= error

    for strength in sorted(worth, reverse=True):
        if strength == best or all(is_as_good(strength, what) for what in decisive):
            return strength
    raise AssertionError("the best is as good as itself")
