"""The page of commands, docs/cli.md: the help of every command. ``make listings`` writes it.

A test compares the page with what the commands say, so that it cannot fall behind.
"""

import argparse
import os
from pathlib import Path

from segcal.cli import make_parser
from segcal.cli.commands import WIDTH

INTRODUCTION = """\
# Commands

The help of every command, as `segcal COMMAND --help` prints it. Written by `make listings`.

- Results go to stdout, everything else to stderr. With `--json`, stdout is one JSON document.
- Exit codes: 0 done; 2 a mistake that you can repair, in one sentence; 3 done, but some cases failed and are listed;
  4 done, and it is an alarm (`audit`, `monitor`); 130 interrupted.
- Interrupted at any point, a command leaves complete files or none. `apply`, `decide`, `convert` and `benchmark` go on
  where they were when they are run again; `fit`, `evaluate`, `audit` and `check` start again and give the same result.
- No command overwrites an input, or removes a file that it did not write. A target that holds something else is refused
  before the work begins; `--overwrite` says where that is meant. One process at a time writes to a target.
- A case that cannot be read fails alone. `--strict` stops at the first one.
- What is possible but seldom meant (labels that fit better mirrored, cases that are there twice, ...) is one line that
  begins with `warning:`, and the work goes on; [data-format.md](data-format.md) lists what is looked for.
"""


def help_page() -> str:
    """Return the page as Markdown."""
    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = [INTRODUCTION, f"```\n{parser.format_help().rstrip()}\n```\n"]
    for name, command in commands.choices.items():
        command.declare()
        parts.append(f"## segcal {name}\n\n```\n{command.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def write_page() -> None:
    """Write docs/cli.md."""
    os.environ["COLUMNS"] = str(WIDTH)
    Path(__file__).with_name("cli.md").write_text(help_page(), "utf-8")


if __name__ == "__main__":
    write_page()
