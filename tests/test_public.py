"""The public names: a function for every command of the line, and the types that a user holds."""

import subprocess
import sys

import pytest

import segcal
from segcal.cli import COMMANDS

# Folders of the package have these names; what the commands do is `segcal.studies.run` and `segcal.demo.story`.
FOLDERS = {"benchmark", "demo", "report"}
INTEGRATIONS = {"nnunet"}  # functions of segcal.integrations.nnunet


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - FOLDERS - INTEGRATIONS))
def test_every_command_is_a_public_function(name):
    function = getattr(segcal, name)
    assert callable(function)
    assert name in segcal.__all__
    assert function.__doc__


@pytest.mark.parametrize("name", segcal.__all__)
def test_every_public_name_is_there(name):
    assert getattr(segcal, name) is not None


def test_metrics_are_there_without_an_import_of_their_own():
    code = "import segcal, torch; print(segcal.metrics.accuracy(torch.eye(3)[None], torch.tensor([[0, 1, 2]])))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1.0\n"
