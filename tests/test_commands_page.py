import argparse
import re
import runpy
from pathlib import Path

import pytest

from segcal.cli import COMMANDS, make_parser

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "cli.md"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return runpy.run_path(str(DOCS / "commands.py"))["help_page"]()


def test_the_page_in_the_documentation_is_what_the_commands_say(page):
    assert PAGE.read_text("utf-8") == page, "run: make listings"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_has_help_and_every_command_an_example(name, page):
    part = page.split(f"## segcal {name}\n")[1].split("\n## ")[0]
    assert re.search(rf"^examples?:\n?\s+segcal {name} \S", part, flags=re.MULTILINE)
    commands = next(action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    command = commands.choices[name]
    command.declare()
    assert command.description
    for action in command._actions:
        assert action.help, action
        assert action.dest == "help" or action.option_strings == [] or action.option_strings[-1] in page, action


def test_no_line_of_help_is_wider_than_the_page(page):
    assert max(len(line) for line in page.splitlines()) <= 120
