"""Write the study of losses into docs/losses.md again, from its archive.

    python benchmarks/loss_figures.py benchmarks/results/losses.zip --docs docs

writes pictures to docs/images/losses and replaces what stands between the marks. Needs matplotlib.
"""

import argparse
from pathlib import Path

from segcal.demo.loss_study.figures import write_figures
from segcal.demo.loss_study.page import sections
from segcal.demo.loss_study.results import Results
from segcal.demo.loss_study.rows import read_rows

BEGIN, END = "<!-- begin study -->", "<!-- end study -->"
IMAGES = Path("images") / "losses"


def replaced(page: str, text: str) -> str:
    """Return the page with what stands between the marks replaced."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    results = Results(read_rows(options.archives))
    drawn = write_figures(results, options.archives, options.docs / IMAGES)
    page = options.docs / "losses.md"
    text = sections(results, drawn, IMAGES.as_posix())
    page.write_text(replaced(page.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
