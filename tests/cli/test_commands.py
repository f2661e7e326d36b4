"""Help and mistakes in the name of a command need none of the libraries that the commands work with."""

import subprocess
import sys

import pytest

from segcal.cli.commands import COMMANDS, make_parser

HEAVY = ("torch", "numba", "scipy", "matplotlib", "rich", "numpy", "segcal.cases", "segcal.cli.fit")
CODE = f"""
import sys
from segcal_command import main
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--version", 0), ("ft", 2)])
def test_what_runs_nothing_imports_nothing(argument, code):
    done = subprocess.run([sys.executable, "-c", CODE, argument], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_command_that_is_called_is_imported():
    done = subprocess.run([sys.executable, "-c", CODE, "fit", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "segcal.cli.fit" in done.stderr
    assert done.stdout.startswith("usage: segcal fit PREDICTIONS... LABELS -o CAL [options]")


def test_the_help_of_all_commands_has_a_line_for_each():
    words = " ".join(make_parser().format_help().split())
    for name, about in COMMANDS.items():
        assert f" {name} {about}" in words
