"""The public names: a function for every command of the line, and the types that a user holds."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import segcal
from segcal.cli import COMMANDS

# Folders of the package have these names; what the commands do is `segcal.studies.run` and `segcal.demo.story`.
FOLDERS = {"benchmark", "demo", "report"}
INTEGRATIONS = {"nnunet"}  # functions of segcal.integrations.nnunet
SEVERAL = {"margins"}  # fit_margins and apply_margins


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - FOLDERS - INTEGRATIONS - SEVERAL))
def test_every_command_is_a_public_function(name):
    function = getattr(segcal, name)
    assert callable(function)
    assert name in segcal.__all__
    assert function.__doc__


@pytest.mark.parametrize("name", segcal.__all__)
def test_every_public_name_is_there(name):
    assert getattr(segcal, name) is not None


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_no_library():
    code = "import sys, segcal; print([n for n in ('torch', 'numpy', 'numba', 'scipy', 'rich') if n in sys.modules])"
    assert run(code) == "[]\n"


@pytest.mark.parametrize("name", ["report", "trust"])
def test_a_function_with_the_name_of_a_folder_stays_the_function(name):
    """Whatever is imported first: a file of the folder, or the function."""
    before = {"report": "segcal.report.table", "trust": "segcal.trust.sums"}[name]
    for first in (f"from {before} import __name__", "import segcal"):
        assert run(f"{first}\nimport segcal\nprint(callable(segcal.{name}))") == "True\n"


def test_the_names_that_are_found_are_those_that_tools_see():
    """What type checkers read of the file is what the table says."""
    tree = ast.parse(Path(segcal.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert seen.pop("metrics") == "segcal"
    assert seen == segcal._PLACES
    assert sorted({*seen, "metrics"}) == sorted(segcal.__all__)
    assert set(segcal.__all__) <= set(dir(segcal))


def test_folders_of_the_package_are_there_without_an_import_of_their_own():
    code = "import segcal, torch; print(segcal.metrics.accuracy(torch.eye(3)[None], torch.tensor([[0, 1, 2]])))"
    assert run(f"{code}; print(segcal.fitting.config.FitConfig().folds, segcal.numerics.__name__)") == (
        "1.0\n5 segcal.numerics\n"
    )


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="module 'segcal' has no attribute 'calibrate'"):
        segcal.calibrate  # noqa: B018
