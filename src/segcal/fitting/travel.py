r"""Whether a candidate does harm where it has not been: in parts that differ (:mod:`segcal.fitting.sites`).

Fitted without one part, in turn, a candidate is measured on it beside the reference, fitted without it too. It
*travels* if

- in no part its NLL is higher than the reference's by more than noise over the groups of that part and by more than a
  quarter percent, which would not be seen,
- the mean of the worst 5 % of the differences of single cases is at most :data:`WORST_RISE` nats, or a tenth of the
  reference's NLL where that is more, and
- over all parts neither its ECE nor its BA-ECE is higher by more than noise.

Noise is one standard error where the parts are declared sites. Clusters are made of whatever cases there are, and a
calibrator is seldom used without what one of them holds: there it is two, which is harm and not only less of a gain.

Of a candidate with a penalty, strengths are tried from the one that random folds chose upwards: the first at which it
travels is taken.
"""

from collections.abc import Collection, Mapping
from statistics import fmean

from segcal.fitting.scores import Noise, Worth, noise, paired

# Nats, and the share of the cases whose mean must not rise by more.
WORST_RISE = 0.02
WORST_RISE_SHARE = 0.1
WORST_SHARE = 0.05
# A share of the reference's NLL that is too small to matter.
UNSEEN = 0.0025


def harm(
    own: Mapping[str, Worth],
    reference: Mapping[str, Worth],
    groups: Mapping[str, str],
    parts: Mapping[str, Collection[str]],
    errors: float = 1.0,
) -> str:
    """Return what speaks against a candidate that was measured away, in a few words; nothing if it travels.

    `errors` is how many standard errors are noise.
    """
    ids, differences = paired(own, reference)
    by_case = dict(zip(ids, differences, strict=True))
    losses = {}
    for name, part in parts.items():
        inside = {case_id: by_case[case_id] for case_id in part if case_id in by_case}
        scale = fmean(reference[case_id].nll for case_id in inside) if inside else 0.0
        mean, error = _noise(inside, groups)
        if mean > max(errors * (error or 0.0), UNSEEN * scale):
            losses[name] = mean
    if losses:
        worst = max(losses, key=lambda name: losses[name])
        return f"worse in {worst}, when held out: {losses[worst]:+.4f}"
    tail = worst_mean(differences)
    if tail > max(WORST_RISE, WORST_RISE_SHARE * fmean(reference[case_id].nll for case_id in ids)):
        return f"worst cases elsewhere: {tail:+.3f} nats"
    for what, title in (("ece", "ECE"), ("ba_ece", "BA-ECE")):
        near = dict(zip(*paired(own, reference, what), strict=True))
        one = _noise(near, groups)
        if near and one.error is not None and one.mean > errors * one.error:
            return f"worse in {title} elsewhere"
    return ""


def worst_mean(differences: Collection[float]) -> float:
    """Return the mean of the worst 5 % of differences, of one at least.

    >>> worst_mean([0.0, 0.5, -1.0])
    0.5
    """
    ranked = sorted(differences, reverse=True)
    return fmean(ranked[: max(1, round(WORST_SHARE * len(ranked)))])


def _noise(differences: Mapping[str, float], groups: Mapping[str, str]) -> Noise:
    """Return the mean over cases and its standard error; zero of none."""
    if not differences:
        return Noise(0.0, 0.0)
    return noise(list(differences.values()), [groups[case_id] for case_id in differences], folds=1)
