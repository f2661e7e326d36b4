"""Crop size and test scales with networks of the user's: the numbers are those of the networks run by hand."""

import json
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from paper import inference_factors as script
from segcal import evaluate
from segcal.cases import ArrayCases
from segcal.errors import InputError

SPACE = (3, 10, 12)
NETWORKS = """
from torch.nn import functional

def load(task, device):
    assert (task, device) == ("toy", "cpu")
    def network(image):
        assert image.ndim == 3
        return functional.avg_pool2d(image, 3, 1, 1, count_include_pad=False) * 4
    return [network, lambda image: network(image) + 1]
"""


@pytest.fixture
def root(tmp_path):
    """Volumes of which the networks see slices; the first channel is high where the label is 0."""
    rng = np.random.default_rng(0)
    for name in ("member_0", "labels", "images"):
        (tmp_path / name).mkdir()
    for number in range(5):
        labels = rng.integers(0, 2, SPACE)
        image = np.eye(2, dtype="float32")[labels].transpose(3, 0, 1, 2) + rng.normal(size=(2, *SPACE)) / 2
        np.save(tmp_path / "images" / f"case{number}.npy", image.astype("float32"))
        np.save(tmp_path / "labels" / f"case{number}.npy", labels)
        np.save(tmp_path / "member_0" / f"case{number}.npy", np.zeros((2, *SPACE), "float16"))
    facts = 'members = ["member_0"]\nlabels = "labels"\nimages = "images"\nkind = "logits"'
    (tmp_path / "protocol.toml").write_text(f'[[tasks]]\nname = "toy"\n{facts}\n')
    (tmp_path / "networks.py").write_text(NETWORKS)
    return tmp_path


def run(monkeypatch, root, *arguments):
    command = ["inference_factors.py", root / "protocol.toml", root / "networks.py", "-o", root / "out", *arguments]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    script.main()


def smooth(image):
    return functional.avg_pool2d(image, 3, 1, 1, count_include_pad=False) * 4


def test_each_way_is_measured_on_cases_that_are_evenly_spread(root, monkeypatch):
    run(monkeypatch, root, "--cases", "3", "--in-plane")
    found = json.loads((root / "out" / "studies" / "crop_size.json").read_text())["tasks"]["toy"]
    assert list(found) == ["8", "10"]
    ids = ["case0", "case2", "case4"]
    images = [torch.from_numpy(np.load(root / "images" / f"{case}.npy")) for case in ids]
    labels = [np.load(root / "labels" / f"{case}.npy") for case in ids]
    # A crop of 10 is the whole height and, twice, most of the width; the second counts where they overlap.
    logits = []
    for image in images:
        whole = smooth(image.transpose(0, 1)).transpose(0, 1)
        whole[..., :2] = smooth(image[..., :10].transpose(0, 1)).transpose(0, 1)[..., :2]
        whole[..., 2:] = smooth(image[..., 2:].transpose(0, 1)).transpose(0, 1)
        logits.append(whole.numpy())
    expected = evaluate(ArrayCases(logits, labels), metrics=["ece", "miou"]).before
    for metric in ("ece", "miou"):
        assert found["10"][metric]["value"] == pytest.approx(expected[metric].value, rel=1e-5)
    assert found["10"]["ece"]["cases"] == 3
    scales = json.loads((root / "out" / "studies" / "test_scales.json").read_text())["tasks"]["toy"]
    assert list(scales) == ["1", "0.75, 1, 1.25", "0.5, 0.75, 1, 1.25, 1.5, 1.75"]
    assert (root / "out" / "tables" / "test_scales.md").is_file()


def test_a_task_that_is_not_in_the_protocol_is_one_sentence(root, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, root, "--tasks", "toys")
    message = "error: tasks has 'toys', but a task of the protocol is needed. Choose from: toy.\n"
    assert capsys.readouterr().err == message


def test_a_file_without_networks_is_refused(root):
    (root / "networks.py").write_text("networks = []")
    with pytest.raises(
        InputError, match=r"networks.py has no function `load`, but one that returns networks is needed"
    ):
        script.load_function(root / "networks.py")
    with pytest.raises(InputError, match=r"gone.py is not a file, but one with a function `load` is needed"):
        script.load_function(root / "gone.py")
