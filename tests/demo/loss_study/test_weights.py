import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from segcal.demo.loss_study.network import make_network
from segcal.demo.loss_study.plan import Unit
from segcal.demo.loss_study.weights import read_weights, write_weights
from segcal.errors import ArtifactError

RECORD = {"best_dice": 0.25, "best_epoch": 3, "history": [[1, 0.5, None]], "logit_histograms": {"1": [0, 2]}}


def made_up(unit, seed):
    """A network with weights that need more than 16 bits, and with statistics larger than float16 can hold."""
    torch.manual_seed(seed)
    network = make_network(unit)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.running_mean.normal_()
            module.running_var.uniform_(1e5, 1e6)
            module.num_batches_tracked.fill_(123456)
    return network


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_a_network_comes_back_with_float16_weights_and_float32_statistics(tmp_path, task):
    unit = Unit(task, "ce", 0)
    network, other = made_up(unit, 0), made_up(unit, 1)
    write_weights(tmp_path / "a.safetensors", network, RECORD)
    read_weights(tmp_path / "a.safetensors", other)
    found = other.state_dict()
    changed = 0
    for name, value in network.state_dict().items():
        own, its = value.detach().numpy(), found[name].numpy()
        assert its.dtype == own.dtype
        if name.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked"):
            np.testing.assert_array_equal(its, own)
        else:
            np.testing.assert_array_equal(its, own.astype(np.float16).astype(np.float32))
            changed += (its != own).sum()
    assert changed > 100


def test_the_file_is_half_as_large_where_it_may_be(tmp_path):
    write_weights(tmp_path / "a.safetensors", made_up(Unit("roads", "ce", 0), 0), {})
    kinds = {name.split(".")[-1]: value.dtype for name, value in load_file(tmp_path / "a.safetensors").items()}
    assert kinds == {
        "weight": torch.float16,
        "bias": torch.float16,
        "running_mean": torch.float32,
        "running_var": torch.float32,
        "num_batches_tracked": torch.int64,
    }


def test_the_record_comes_back(tmp_path):
    unit = Unit("roads", "ce", 0)
    write_weights(tmp_path / "a.safetensors", make_network(unit), RECORD)
    assert read_weights(tmp_path / "a.safetensors", make_network(unit)) == RECORD


def test_a_second_network_takes_the_place_of_the_first_and_nothing_is_left_beside_it(tmp_path):
    unit = Unit("roads", "ce", 0)
    for number in (1, 2):
        write_weights(tmp_path / "a.safetensors", make_network(unit), {"number": number})
    assert read_weights(tmp_path / "a.safetensors", make_network(unit)) == {"number": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_weights_of_another_backbone_are_refused(tmp_path):
    write_weights(tmp_path / "a.safetensors", make_network(Unit("streets", "ce_dice", 0)), {})
    with pytest.raises(RuntimeError, match="Missing key"):
        read_weights(tmp_path / "a.safetensors", make_network(Unit("streets", "ce_dice", 0, "unet_plus_plus")))


def test_a_damaged_file_is_removed_so_that_it_is_made_again(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"was not readable as weights .* and is removed\. Run the study again"):
        read_weights(path, nn.Linear(2, 2))
    assert not path.exists()
