"""Write the rows of the board on conic scaling: ``python -m paper.conic_rows [RESULTS]``.

RESULTS is what ``segcal benchmark paper/protocols/conic.toml`` wrote; without it, the study `conic` keeps its rows.
What `conic_shift.py` and `learned_context.py` found is read from results/: no data are needed for the other studies.
Into docs/images goes one picture per task: what one of its calibrators has learned.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import segcal
from paper.board import FOLDER, Row, measured, number, write_code, write_rows
from paper.learned_rows import METRICS, compared, learned
from paper.paper_words import comparisons
from paper.results_rows import results
from paper.stamp import code_digest
from segcal.calibrators.conic import Conic
from segcal.report.figures import confidence_figure, to_svg
from segcal.summary import Summary, read_summary
from segcal.version import __version__

FOUND = Path(__file__).parent / "results"
PAIRS = (("conic", "ts"), ("conic", "cms_ap"), ("conic_class", "conic"))


def conic(folder: Path, pictures: Path) -> Iterator[Row]:
    """Yield paired differences, all rows, and the certificates; write the pictures."""
    summary = read_summary(folder)
    yield from (row for row in comparisons(summary, {}) if "conic" in row.method)
    yield from results({folder.name: summary})
    yield from certificates(folder, summary, pictures)


def certificates(folder: Path, summary: Summary, pictures: Path) -> Iterator[Row]:
    """Yield what the certificates say, and draw of each task the repeat with the weakest penalty."""
    for task in summary.tasks:
        paths = sorted((folder / "calibrators" / task.name).glob("repeat_*/conic-mean_logits"))
        fits = [segcal.load(path) for path in paths]
        fitted = min(fits, key=lambda each: each.certificate.nu or 0.0)
        assert isinstance(fitted.calibrator, Conic)
        picture = to_svg(confidence_figure(fitted.calibrator))
        (pictures / f"conic_{task.name}.svg").write_text(picture, encoding="utf-8")
        certificate = fitted.certificate
        facts = {
            "parameters": number(fitted.calibrator.num_parameters(), "d"),
            "KKT residual": number(certificate.kkt_residual, ".0e"),
            "voxels of the fit": number(certificate.voxels, "d"),
        }
        facts |= {f"strength, repeat {n}": number(each.certificate.nu, "g") for n, each in enumerate(fits, 1)}
        yield from (Row(task.name, "conic(mean_logits)", name, value) for name, value in facts.items())


def few(path: Path) -> Iterator[Row]:
    """Yield differences for several numbers of calibration cases."""
    rows = [row for row in json.loads(path.read_text("utf-8"))["rows"] if row.get("size")]
    for task, size in dict.fromkeys(sorted((row["task"], row["size"]) for row in rows)):
        own = [row for row in rows if (row["task"], row["size"]) == (task, size)]
        title = f"{task}, {'–'.join(map(str, sorted({row['cal'] for row in own})))} calibration cases"
        repeats = len({row["repeat"] for row in own})
        pairs = _pairs(title, sorted(own, key=lambda row: row["repeat"]))
        yield from (replace(row, repeats=repeats) for row in pairs)


def corrupted(path: Path) -> Iterator[Row]:
    """Yield differences on corrupted pictures, and the means of each corruption, which are of too few for intervals."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        count = sum(len(row["corruption"]) for row in own if row["row"] == PAIRS[0][0])
        yield from (replace(row, cases=count) for row in _pairs(task, own))
        for kind in sorted({kind for row in own for kind in row["corruption"]}):
            for name in dict.fromkeys(row["row"] for row in own):
                found = [row for row in own if row["row"] == name]
                masks = [np.array([each == kind for each in row["corruption"]]) for row in found]
                for metric in ("nll", "ece"):
                    values = np.concatenate(
                        [np.array(row["cases"][metric])[mask] for row, mask in zip(found, masks, strict=True)]
                    )
                    title = METRICS[metric]
                    yield Row(f"{task}, {kind}", name, title, number(float(values.mean()), ".3f"), cases=len(values))


def _pairs(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    for second, first in PAIRS:
        found = [[row for row in rows if row["row"] == name] for name in (first, second)]
        for metric, words in METRICS.items():
            yield from measured(title, f"{second} against {first}", words, compared(*found, metric).difference)


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", metavar="RESULTS")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="the folder of the board")
    args = parser.parse_args()
    if args.results is not None:
        pictures = args.output.parent / "images"
        pictures.mkdir(exist_ok=True)
        write_rows("conic", conic(args.results, pictures), args.output)
    stored = {
        "conic_corrupted": corrupted(FOUND / "conic_shift.json"),
        "conic_few": few(FOUND / "learned.json"),
        "learned": learned(FOUND / "learned.json"),
    }
    for name, rows in stored.items():
        write_rows(name, rows, args.output)
        code = f"results: segcal 0.1.0, digest not recorded; rows: segcal {__version__}, code {code_digest()}"
        write_code(name, code, args.output)


if __name__ == "__main__":
    main()
