import pickle

import pytest
import torch

from paper.loss_study.training import TrainConfig, Training, load_checkpoint, save_checkpoint
from segcal.errors import ArtifactError, InputError


@pytest.mark.parametrize("name", ["epochs", "batch_size", "validate_every"])
def test_counts_are_positive(name):
    with pytest.raises(InputError, match=f"{name} is 0, but at least 1 is needed"):
        TrainConfig(**{name: 0})


@pytest.mark.parametrize("name", ["learning_rate", "gradient_clip"])
def test_rates_are_more_than_zero(name):
    with pytest.raises(InputError, match=f"{name} is nan, but more than 0 is needed"):
        TrainConfig(**{name: float("nan")})


def test_the_optimizer_is_one_of_two():
    with pytest.raises(InputError, match="optimizer is 'lion', but adam or sgd is needed"):
        TrainConfig(optimizer="lion")


def test_mixed_precision_on_a_cpu_is_bfloat16():
    assert TrainConfig().amp_dtype() == torch.bfloat16


def training(loss="CrossEntropy()", cases=7, **options):
    return Training(TrainConfig(**options), loss, cases)


def test_a_state_comes_back_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "state.pt"
    save_checkpoint(path, {"done": 3, "network": {"w": torch.arange(4.0)}}, training(flips=(0, 1)))
    state = load_checkpoint(path, training(flips=(0, 1)))
    assert state["done"] == 3
    assert state["network"]["w"].tolist() == [0, 1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]


def test_other_settings_are_refused_but_another_device_is_not(tmp_path):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {}, training(learning_rate=0.1))
    load_checkpoint(path, training(learning_rate=0.1, device="meta"))
    with pytest.raises(InputError, match=r"written with learning_rate = 0\.1, but the training now has 0\.2"):
        load_checkpoint(path, training(learning_rate=0.2))
    with pytest.raises(InputError, match="written with epochs = 50, but the training now has 60"):
        load_checkpoint(path, training(learning_rate=0.1, epochs=60))
    with pytest.raises(InputError, match=r"written with loss = 'CrossEntropy\(\)', but the training now has 'Focal"):
        load_checkpoint(path, training("Focal()", learning_rate=0.1))
    with pytest.raises(InputError, match="written with cases = 7, but the training now has 8"):
        load_checkpoint(path, training(cases=8, learning_rate=0.1))


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ArtifactError, match=r"state\.pt is not readable as a checkpoint"):
        load_checkpoint(path, training())
    torch.save({"version": 99}, path)
    with pytest.raises(ArtifactError, match=r"state\.pt is not a checkpoint of version 2"):
        load_checkpoint(path, training())


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_checkpoint_cannot_run_code(tmp_path):
    path = tmp_path / "state.pt"
    torch.save({"version": 2, "trap": Trap(tmp_path / "sprung")}, path, pickle_module=pickle)
    with pytest.raises(ArtifactError, match="not readable as a checkpoint"):
        load_checkpoint(path, training())
    assert not (tmp_path / "sprung").exists()
