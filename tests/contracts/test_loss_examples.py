"""The example of a training in MONAI and Lightning, run as it stands.

Needs pytorch-lightning and monai, which the extra `dev` brings.
"""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "monai_lightning.py"


def test_a_monai_network_trains_with_a_loss_in_lightning():
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    pytest.importorskip("monai", reason="monai is not installed")
    spec = importlib.util.spec_from_file_location("monai_lightning", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    result = example.main("nacl", epochs=20)
    assert result.after["dice"].value > 0.5
    assert result.after["nll"].value <= result.before["nll"].value + 1e-3
