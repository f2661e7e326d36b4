"""Make the tables of docs/benchmarks.md, docs/howto/README.md and the board again, each stamped with what made it.

    python -m benchmarks.tables [--only NAME ...] [--data ROOT] [--list]

A table stands between ``<!-- made: NAME -->`` and ``<!-- end -->``; its first line is the stamp: version, digest of the
package's sources, date, cores and the command. A large one is rows of the board instead (:mod:`paper.board`). One whose
libraries, data or device are not here keeps what it has, and its old stamp. ROOT holds ``predictions/TASK/member_M``
and ``TASK/labels``. Sizes are such that everything together
takes about ten minutes on two quiet cores. Exit codes: 0 done; 2 a mistake; 3 a script failed, and its table was left.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from paper.board import FOLDER, rows_of_markdown, write_code, write_rows
from paper.stamp import code_digest
from segcal.atomic import write_text
from segcal.version import __version__

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
# Where --data is put into a command.
DATA = "ROOT"
MARK = "(<!-- made: {name} -->\\n)(.*?)(<!-- end -->)"


@dataclass(frozen=True)
class Section:
    """What makes one table.

    Attributes:
        command: the module and its arguments.
        needs: libraries that must be installed.
        cuda: whether it needs a CUDA device.
        fenced: whether its output is text and not Markdown.
        writes: whether the script writes its table itself, on a page of its own.
        board: whether its tables are rows of the board, and not a part of the page.
    """

    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    cuda: bool = False
    fenced: bool = False
    writes: bool = False
    board: bool = False

    def missing(self, root: Path | None) -> str | None:
        """Return what is not here, or None."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if absent:
            return f"{', '.join(absent)} not installed"
        if root is None and any(DATA in word for word in self.command):
            return "no --data"
        return "no CUDA device" if self.cuda and not _has_cuda() else None


_PEERS = ("fiducio", "monai", "netcal", "torchmetrics")
_FIT = ("benchmarks.fit", f"{DATA}/predictions", DATA)
SECTIONS = {
    "metrics": Section(("benchmarks.metrics", "--rounds", "3"), _PEERS, board=True),
    "fitting": Section(
        (*_FIT, "--parts", "fit", "--trials", "1", "--limit", "12", "--voxels", "200000", "100000",
         "--calibrators", "ts,dc,cdc,cms_ap,cms_op"),
        ("fiducio", "netcal", "sklearn"),
        board=True,
    ),
    "around": Section((*_FIT, "--parts", "images", "--images", "10"), board=True),
    "memory": Section(
        (*_FIT, "--parts", "memory", "--seconds", "10", "--millions", "1", "4", "8"), ("fiducio",), board=True
    ),
    "ensembles": Section(("paper.real_ensembles", DATA, "--cases", "40")),
    "startup": Section(("benchmarks.startup",)),
    "pipeline": Section(("benchmarks.pipeline", DATA), ("fiducio", "netcal")),
    "apply": Section(("benchmarks.apply",), board=True),
    "gpu": Section(("benchmarks.gpu",), cuda=True, board=True),
    "frameworks": Section(
        ("benchmarks.frameworks", "--write"), ("monai", "onnx", "torchmetrics", "transformers"), writes=True
    ),
}  # fmt: skip


def run_script(section: Section, root: Path | None, seconds: float = 600.0) -> str:
    """Run a script and return what it prints."""
    words = [word.replace(DATA, str(root)) for word in section.command]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=seconds,
    )
    return done.stdout.strip()


def made(section: Section, text: str) -> str:
    """Return what stands on a page of what a script printed: with its stamp."""
    body = f"```text\n{text}\n```" if section.fenced else text
    return f"*{stamp(section)}*\n\n{body}\n\n"


def code(today: str | None = None) -> str:
    """Return which code runs, when and on how many cores."""
    day = today or datetime.now(UTC).strftime("%Y-%m-%d")
    return f"segcal {__version__} (sources {code_digest()}), {day}, {os.cpu_count()} cores"


def stamp(section: Section, today: str | None = None) -> str:
    """Return what made a table, and when; paths of this machine are no part of it."""
    return f"{code(today)}: `{' '.join(('python -m', *section.command))}`"


def put(page: str, name: str, table: str) -> str:
    """Return the page with a table in its place."""
    pattern = re.compile(MARK.format(name=re.escape(name)), re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page has no place for {name}, but one is needed. Write <!-- made: {name} --> there.")
    return pattern.sub(lambda found: found[1] + table + found[3], page)


def make_tables(
    names: Sequence[str],
    root: Path | None,
    page: Path = PAGE,
    say: Callable[[str], None] = print,
    board: Path = FOLDER,
) -> list[str]:
    """Make tables, each written as soon as it is there, and return the names of scripts that failed."""
    failed = []
    for name in names:
        reason = SECTIONS[name].missing(root)
        if reason is not None:
            say(f"{name}: left as it is ({reason})")
            continue
        try:
            text = run_script(SECTIONS[name], root)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            say(f"{name}: left as it is ({error})")
            failed.append(name)
            continue
        if SECTIONS[name].board:
            write_rows(name, rows_of_markdown(text, heading=True), board)
            write_code(name, code(), board)
        elif not SECTIONS[name].writes:
            write_text(page, put(page.read_text("utf-8"), name, made(SECTIONS[name], text)))
        say(f"{name}: made")
    return failed


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tables that were asked for and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="the folder of the real ensembles")
    parser.add_argument("--list", action="store_true", help="say what would be made, and what is missing")
    given = parser.parse_args(arguments)
    root = None if given.data is None else given.data.resolve()
    if given.list:
        for name in given.only:
            print(f"{name}: {SECTIONS[name].missing(root) or 'can be made'}")
        return 0
    return 3 if make_tables(given.only, root) else 0


if __name__ == "__main__":
    sys.exit(main())
