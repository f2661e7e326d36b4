"""Help and mistakes in the name of a command need none of the libraries that the commands work with."""

import subprocess
import sys

import numpy as np
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


# Each takes a tenth of a second or more, and an evaluation without a page or a fit needs none of them.
NOT_EVALUATED = ("scipy.optimize", "scipy.stats", "scipy.ndimage", "matplotlib", "optuna", "pandas", "distributed")
OTHER_COMMANDS = ("segcal.benchmark.run", "segcal.report.evaluated", "segcal.studies")
EVALUATE = f"""
import sys
from segcal_command import main
try:
    main()
finally:
    print([name for name in {NOT_EVALUATED + OTHER_COMMANDS!r} if name in sys.modules], file=sys.stderr)
"""


def test_an_evaluation_imports_neither_what_other_commands_need_nor_parts_of_scipy_that_it_does_not_use(tmp_path):
    rng = np.random.default_rng(0)
    for name, values in {"p": rng.normal(size=(3, 5, 7)), "l": rng.integers(3, size=(5, 7)).astype("uint8")}.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", values)
    words = ["evaluate", "p", "l", "--kind", "logits", "--num-parts", "1", "--part-id", "0", "-o", "part"]
    done = subprocess.run(
        [sys.executable, "-c", EVALUATE, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_help_of_all_commands_has_a_line_for_each():
    words = " ".join(make_parser().format_help().split())
    for name, about in COMMANDS.items():
        assert f" {name} {about}" in words
