"""The command line that all datasets share: check the folder, train, predict, write the protocol, run it.

Run it again after an interruption, and it goes on from there: members that are trained and cases that are predicted are
not done again, and ``segcal benchmark`` skips what is finished. OUT remembers how an ensemble was trained and refuses
other settings. One OUT may hold several datasets; ``python -m paper.results_rows OUT/results`` makes rows.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.datasets.ensemble import Settings, predict_member, train_member
from paper.datasets.layout import Dataset, Record
from segcal.benchmark.protocol import LISTS
from segcal.benchmark.results import write_text
from segcal.cli import main as segcal
from segcal.errors import InputError, SegcalError


def main(dataset: Dataset, description: str, arguments: Sequence[str] | None = None) -> None:
    """Do everything for a dataset, and exit with the code of ``segcal benchmark``."""
    try:
        code = run(dataset, parse(description, dataset, arguments))
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def parse(description: str, dataset: Dataset, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    usual = Settings()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DATA", help="the dataset in its published layout")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    parser.add_argument("--members", type=int, default=usual.members)
    parser.add_argument("--epochs", type=int, default=usual.epochs)
    parser.add_argument("--batch-size", type=int, default=usual.batch_size)
    parser.add_argument("--crop", type=int, default=usual.crop, help="rows and columns of a training crop")
    parser.add_argument("--widths", type=int, nargs="+", default=list(usual.widths))
    parser.add_argument("--learning-rate", type=float, default=usual.learning_rate)
    parser.add_argument("--device", default="cpu", help="where to train, predict and fit: cpu (default) or cuda")
    parser.add_argument("--cal", type=int, default=dataset.cal, help="held-out cases for calibration")
    parser.add_argument("--val", type=int, default=dataset.val, help="held-out cases for validation")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--pipelines",
        nargs="+",
        default=["paper"],
        help="a list of the protocol (paper, more, all), or calibrators of mean logits; default: paper",
    )
    parser.add_argument("--studies", nargs="*", default=list(dataset.studies))
    parser.add_argument("--workers", type=int, default=1, help="processes of segcal benchmark")
    return parser.parse_args(arguments)


def run(dataset: Dataset, args: argparse.Namespace) -> int:
    """Train, predict, write the protocol, run it; return the exit code of ``segcal benchmark``."""
    records = dataset.records(args.folder)
    counts = {part: sum(record.part == part for record in records) for part in ("train", "held_out")}
    print(f"{dataset.title}: {counts['train']} cases to train on, {counts['held_out']} held out", flush=True)
    settings = Settings(args.members, args.epochs, args.batch_size, args.crop, tuple(args.widths), args.learning_rate)
    remember(args.output / dataset.name / "settings.json", settings)
    for member in range(settings.members):
        network = train_member(dataset, records, settings, member, args.output, args.device, _say)
        predict_member(dataset, records, network, member, args.output, args.device, _say)
    protocol = write_protocol(dataset, records, settings, args)
    place = args.output / "results" / dataset.name
    options = ["--root", args.output, "-o", place, "--workers", args.workers, "--device", args.device]
    return segcal(["benchmark", str(protocol), *map(str, options)])


def remember(path: Path, settings: Settings) -> None:
    """Keep the settings of an ensemble, and refuse others than those that are there."""
    now = settings.plain()
    then = json.loads(path.read_text("utf-8")) if path.is_file() else now
    for name, value in now.items():
        if then.get(name) != value:
            raise InputError(
                f"{path.parent} was made with {name} = {then.get(name)}, but it is now {value}. "
                "Use the same settings, or another folder."
            )
    write_text(path, json.dumps(now, indent=1) + "\n")


def write_protocol(dataset: Dataset, records: Sequence[Record], settings: Settings, args: argparse.Namespace) -> Path:
    """Write the protocol of a dataset and the groups of its cases; its paths are relative to OUT."""
    folder = args.output / dataset.name
    with (folder / "groups.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "group"])
        rows.writerows([record.id, record.group] for record in records if record.part == "held_out")
    members = [f"predictions/{dataset.name}/member_{number}" for number in range(settings.members)]
    lines = [
        f"# {dataset.title}. Run: segcal benchmark OUT/{dataset.name}/protocol.toml --root OUT -o RESULTS",
        f"repeats = {args.repeats}",
        f"pipelines = {_pipelines(args.pipelines)}",
        f"studies = {json.dumps(args.studies)}",
        "",
        "[[tasks]]",
        f"name = {json.dumps(dataset.name)}",
        f"members = {json.dumps(members)}",
        f"labels = {json.dumps(f'{dataset.name}/labels')}",
        'kind = "logits"',
        *([] if dataset.ignore is None else [f"ignore = {dataset.ignore}"]),
        f"background = {json.dumps(dataset.background)}",
        f"class_names = {json.dumps(dataset.class_names)}",
        f"groups = {json.dumps(f'{dataset.name}/groups.csv')}",
        f"split = {{cal = {args.cal}, val = {args.val}}}",
    ]
    return write_text(folder / "protocol.toml", "\n".join(lines) + "\n")


def _pipelines(names: Sequence[str]) -> str:
    if len(names) == 1 and names[0] in LISTS:
        return json.dumps(names[0])
    tables = [f'{{pooling = "mean_logits", calibrator = {json.dumps(name)}}}' for name in names]
    return f"[{', '.join(tables)}]"


def _say(text: str) -> None:
    print(text, flush=True)
