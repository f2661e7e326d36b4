"""The table of the calibrators, generated from the registry: Table 2 of the paper for this package."""

from segcal.calibrators import CALIBRATORS, make_calibrator

# Class counts of the paper's three tasks.
CLASS_COUNTS = (2, 5, 20)


def calibrator_table() -> str:
    """Return a Markdown table: name, promises, and fitted / identifiable parameters for C = 2, 5 and 20.

    >>> print(calibrator_table().splitlines()[3])
    | `ts` | yes | order | yes | convex | 1 / 1 | 1 / 1 | 1 / 1 |
    """
    counts = " | ".join(f"C = {count}" for count in CLASS_COUNTS)
    lines = [
        f"| name | offset-free | keeps | voxel by voxel | fitted by | {counts} |",
        "|---|---|---|---|---|" + "---|" * len(CLASS_COUNTS),
    ]
    for name in CALIBRATORS:
        sizes = [make_calibrator(name, count) for count in CLASS_COUNTS]
        first = sizes[0]
        cells = [
            f"`{name}`",
            "yes" if first.translation_invariant else "no",
            first.preserves or "nothing",
            "yes" if first.pointwise else "no",
            first.fitted_by,
            *(f"{each.num_parameters():,} / {each.num_identifiable():,}" for each in sizes),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
