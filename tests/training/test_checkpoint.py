import pickle
from dataclasses import replace

import pytest
import torch

from segcal.errors import ArtifactError, InputError
from segcal.training import TrainConfig
from segcal.training.checkpoint import load_checkpoint, save_checkpoint


def test_a_state_comes_back_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "state.pt"
    save_checkpoint(path, {"done": 3, "network": {"w": torch.arange(4.0)}}, TrainConfig(flips=(0, 1)))
    state = load_checkpoint(path, TrainConfig(flips=(0, 1)))
    assert state["done"] == 3
    assert state["network"]["w"].tolist() == [0, 1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]


def test_other_settings_are_refused_but_another_device_is_not(tmp_path):
    path = tmp_path / "state.pt"
    config = TrainConfig(learning_rate=0.1)
    save_checkpoint(path, {}, config)
    load_checkpoint(path, replace(config, device="meta"))
    with pytest.raises(InputError, match=r"written with learning_rate = 0\.1, but the training now has 0\.2"):
        load_checkpoint(path, replace(config, learning_rate=0.2))
    with pytest.raises(InputError, match="written with epochs = 50, but the training now has 60"):
        load_checkpoint(path, replace(config, epochs=60))


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ArtifactError, match=r"state\.pt is not readable as a checkpoint"):
        load_checkpoint(path, TrainConfig())
    torch.save({"version": 99}, path)
    with pytest.raises(ArtifactError, match=r"state\.pt is not a checkpoint of version 1"):
        load_checkpoint(path, TrainConfig())


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_checkpoint_cannot_run_code(tmp_path):
    path = tmp_path / "state.pt"
    torch.save({"version": 1, "trap": Trap(tmp_path / "sprung")}, path, pickle_module=pickle)
    with pytest.raises(ArtifactError, match="not readable as a checkpoint"):
        load_checkpoint(path, TrainConfig())
    assert not (tmp_path / "sprung").exists()
