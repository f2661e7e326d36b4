"""The page of commands, docs/cli.md: the help of every command. ``make listings`` writes it.

A test compares the page with what the commands say, so that it cannot fall behind.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from textwrap import fill

from segcal.cli import make_parser
from segcal.cli.commands import WIDTH

# Headings that every command has, for arguments of its own.
OWN = ("positional arguments", "options")
MANY = 4  # commands that say the same of an option: it is listed once
WIDEST = 26  # column of the help, as in the commands

INTRODUCTION = """\
# Commands

The help of every command, as `segcal COMMAND --help` prints it. `make listings` writes this page. Options that several
commands have in common are at [the end](#shared-options), once.

- Results go to stdout, everything else to stderr. With `--json`, stdout is one JSON document.
- An interrupted command leaves complete files or none. `apply`, `decide`, `convert` and `benchmark` resume when you
  run them again; `fit`, `evaluate`, `audit` and `check` start again.
- No command overwrites an input, or deletes a file that it did not write. What `--overwrite` allows is in its help.
- A case that cannot be read fails alone. `--strict` stops at the first failure.
- A suspicious input, such as mirrored labels, gives one line that begins with `warning:`
  ([what is checked](data-format.md#suspicious-inputs)).
"""


def help_page() -> str:
    """Return the page as Markdown."""
    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    for command in commands.values():
        command.declare()
    shared = _shared(list(commands.values()))
    listed = {_said(action) for actions in shared.values() for action in actions}
    parts = [INTRODUCTION, f"```\n{parser.format_help().rstrip()}\n```\n"]
    for name, command in commands.items():
        common = _without(command, shared, listed)
        parts.append(f"## segcal {name}\n\n```\n{command.format_help().rstrip()}\n```\n")
        if common:
            parts.append(fill(f"Shared options: {', '.join(common)}.", 118, break_on_hyphens=False) + "\n")
    parts.append(f"## Shared options\n\n```\n{_listed(shared)}\n```\n")
    return "\n".join(parts)


def _shared(commands: list[argparse.ArgumentParser]) -> dict[str, list[argparse.Action]]:
    """Return the groups of options that several commands have, and one of single options that many have."""
    titles = Counter(group.title for command in commands for group in command._action_groups)
    shared: dict[str, list[argparse.Action]] = {}
    for group in (group for command in commands for group in command._action_groups):
        if group.title not in OWN and titles[group.title] > 1:
            shared.setdefault(str(group.title), [copy(action) for action in group._group_actions])
    uses = Counter(_said(action) for command in commands for action in command._actions if action.option_strings)
    known = {_said(action) for actions in shared.values() for action in actions}
    single = {_said(action): copy(action) for command in commands for action in command._actions}
    more = [one for said, one in single.items() if uses[said] >= MANY and said not in known and one.dest != "help"]
    return shared | {"calibrators and results": more}


def _without(
    command: argparse.ArgumentParser, shared: Mapping[str, list[argparse.Action]], listed: set[tuple[str, ...]]
) -> list[str]:
    """Take the shared options out of the help of a command, and return what they are called."""
    common = [str(group.title).split(" (")[0] for group in command._action_groups if group.title in shared]
    command._action_groups = [group for group in command._action_groups if group.title not in shared]
    for action in (one for group in command._action_groups for one in group._group_actions):
        if _said(action) in listed:
            common.append(f"`{action.option_strings[-1]}`")
        if _said(action) in listed or action.dest == "help":
            action.help = argparse.SUPPRESS
    return common


def _said(action: argparse.Action) -> tuple[str, ...]:
    """Return what the help says of an argument."""
    return (*action.option_strings, str(action.help))


def _listed(groups: Mapping[str, Iterable[argparse.Action]]) -> str:
    """Return groups of options as the help shows them."""
    formatter = argparse.HelpFormatter("", max_help_position=WIDEST)
    for title, actions in groups.items():
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    return formatter.format_help().rstrip()


def write_page() -> None:
    """Write docs/cli.md."""
    os.environ["COLUMNS"] = str(WIDTH)
    Path(__file__).with_name("cli.md").write_text(help_page(), "utf-8")


if __name__ == "__main__":
    write_page()
