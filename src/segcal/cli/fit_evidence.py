"""What a fit rests on, as ``segcal fit`` says it: groups per class, sites, what decides, and what hit a bound."""

from segcal.cli.console import Output
from segcal.cli.wording import plural
from segcal.fitting import Fitted

# Of many classes, those in the fewest groups are named.
MOST_NAMED = 12


def print_evidence(output: Output, fitted: Fitted) -> None:
    """Print the evidence per class and the parts that were held out, and warn of what should not be."""
    certificate, found = fitted.certificate, fitted.certificate.evidence
    if found is not None:
        names = fitted.class_names or [f"class {number}" for number in range(len(found.class_groups))]
        fewest = sorted(range(len(names)), key=lambda number: found.class_groups[number])[:MOST_NAMED]
        counts = list(zip(names, found.class_groups, found.class_voxels, strict=True))
        shown = ", ".join("{} {:,} ({:,})".format(*counts[number]) for number in sorted(fewest))
        rest = "" if len(names) <= MOST_NAMED else f"; all other classes in at least {found.class_groups[fewest[-1]]:,}"
        output.say(f"groups with each class, of {found.groups:,} (and voxels, about): {shown}{rest}")
        if found.sites:
            parts = ", ".join(f"{name} ({plural(count, 'group')})" for name, count in found.sites.items())
            what = "declared sites" if found.declared else "groups clustered by what is predicted"
            output.say(f"also held out, {what}: {parts}")
        for name, weight in found.weights.items():
            output.warn(f"{name} failed and counts {weight:.2f} times: look at its labels and predictions")
        for name, change in found.influence.items():
            output.warn(f"without {name} the temperature would be {change:+.0%}: look at its labels and predictions")
    if certificate.active_bounds:
        several = "; ".join(certificate.active_bounds[:3])
        output.warn(
            f"{plural(len(certificate.active_bounds), 'parameter')} ended at a bound ({several}): the cases alone "
            "do not decide: more cases, or a simpler calibrator, would"
        )
