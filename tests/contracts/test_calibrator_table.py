from pathlib import Path

from segcal import CALIBRATORS, make_calibrator

DOCS = Path(__file__).parents[2] / "docs"
# Class counts of the paper's three tasks.
CLASS_COUNTS = (2, 5, 20)


def calibrator_table():
    """Return the table of docs/calibrators.md (Table 2 of the paper for this package): run this file to print it."""
    counts = " | ".join(f"C = {count}" for count in CLASS_COUNTS)
    lines = [
        f"| name | offset-free | keeps | voxel by voxel | fitted by | {counts} |",
        "|---|---|---|---|---|" + "---|" * len(CLASS_COUNTS),
    ]
    for name in CALIBRATORS:
        sizes = [make_calibrator(name, count).as_fitted() for count in CLASS_COUNTS]
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


def test_the_table_in_the_docs_is_the_generated_one():
    assert calibrator_table() in (DOCS / "calibrators.md").read_text("utf-8")


def test_every_calibrator_has_a_row_and_a_formula():
    text = (DOCS / "calibrators.md").read_text("utf-8")
    formulas = text.split("## What each one computes")[1]
    for name in CALIBRATORS:
        assert f"| `{name}` |" in text
        assert f"`{name}`" in formulas


if __name__ == "__main__":
    print(calibrator_table())
