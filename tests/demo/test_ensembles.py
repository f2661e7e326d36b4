import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from benchmarks.loss_study.ensembles import save_ensemble
from segcal.demo.ensembles import MEMBERS, WEIGHTS, load_ensemble, load_member, predict
from segcal.demo.tasks import TASKS
from segcal.demo.unet import UNet
from segcal.errors import ArtifactError, InputError


def test_all_weights_together_are_under_eight_megabytes():
    files = sorted(file.name for file in WEIGHTS.iterdir())
    assert files == sorted(f"{name}.{end}" for name in TASKS for end in ("json", "safetensors"))
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 8e6


@pytest.mark.parametrize("name", TASKS)
def test_members_are_different_networks_of_one_shape(name):
    networks = load_ensemble(name)
    assert len(networks) == MEMBERS
    digests = {hashlib.sha256(network.head.weight.detach().numpy().tobytes()).hexdigest() for network in networks}
    assert len(digests) == MEMBERS
    assert not any(network.training for network in networks)


@pytest.mark.parametrize("name", TASKS)
def test_a_prediction_has_the_size_of_the_case_and_is_repeatable(name):
    task = TASKS[name]
    network, image = load_member(name, 1), task.sample(0).image
    logits = predict(network, image)
    assert (logits.dtype, tuple(logits.shape)) == (torch.float32, (task.num_classes, *task.space))
    assert not logits.requires_grad
    assert torch.equal(predict(network, image), logits)


@pytest.mark.parametrize("dims", [2, 3])
def test_weights_come_back_rounded_to_float16_and_nothing_else(tmp_path, dims):
    torch.manual_seed(0)
    facts = {"channels": 2, "num_classes": 3, "dims": dims, "widths": [4, 6]}
    networks = [UNet(**facts) for _ in range(3)]
    save_ensemble(tmp_path / "roads.safetensors", facts, [network.state_dict() for network in networks])
    assert [file.name for file in tmp_path.iterdir()] == ["roads.safetensors"]
    for number, network in enumerate(networks):
        loaded = load_member("roads", number, tmp_path).state_dict()
        for key, value in network.state_dict().items():
            assert torch.equal(loaded[key], value.half().float() if value.is_floating_point() else value), key


def test_predicting_is_the_plain_network(tmp_path):
    torch.manual_seed(0)
    facts = {"channels": 2, "num_classes": 3, "dims": 2, "widths": [4, 6]}
    save_ensemble(tmp_path / "roads.safetensors", facts, [UNet(**facts).state_dict()])
    network = load_member("roads", 0, tmp_path)
    plain = UNet(**facts).eval()
    plain.load_state_dict(network.state_dict())
    image = np.random.default_rng(0).random((2, 9, 14), dtype=np.float32)
    torch.testing.assert_close(predict(network, image), plain(torch.from_numpy(image)[None])[0].detach())


def test_wrong_members_and_damaged_files_are_named(tmp_path):
    with pytest.raises(InputError, match="member is 5, but the ensemble of 'roads' has members 0 to 4"):
        load_member("roads", 5)
    with pytest.raises(InputError, match="no embedded task is named 'cells'"):
        load_member("cells", 0)
    with pytest.raises(ArtifactError, match=r"roads\.safetensors is not readable as weights"):
        load_member("roads", 0, tmp_path)
    (tmp_path / "roads.safetensors").write_bytes(b"\x08" + bytes(7) + b"{}      ")
    with pytest.raises(ArtifactError, match=r"roads\.safetensors is not readable as weights"):
        load_member("roads", 0, tmp_path)
    shutil.copy(WEIGHTS / "roads.safetensors", tmp_path / "tumour.safetensors")
    assert load_member("tumour", 0, tmp_path).dims == 2  # a file describes itself


def test_the_record_is_plain_json_with_all_members():
    for name in TASKS:
        record = json.loads((WEIGHTS / f"{name}.json").read_text())
        assert record["task"] == name
        assert list(record["mean"]) == [*(f"member_{k}" for k in range(MEMBERS)), "mean_logits", "mean_probs"]
