"""The shipped networks, and the cases that they are asked about."""

import hashlib
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from paper.loss_study.ensembles import save_ensemble
from segcal.benchmark.tasks import EmbeddedTask
from segcal.demo.embedded import EmbeddedCases, open_embedded
from segcal.demo.tasks import TASKS
from segcal.demo.unet import MEMBERS, WEIGHTS, UNet, load_ensemble, load_member, make_level, predict
from segcal.errors import ArtifactError, InputError
from segcal.types import IGNORED

TASK = EmbeddedTask("r", "roads", cases=2, first=3, members=2)


@pytest.mark.parametrize(("dims", "space"), [(2, (16, 24)), (2, (13, 19)), (3, (8, 12, 16)), (3, (7, 9, 11))])
def test_logits_have_the_size_of_the_image_whatever_it_is(dims, space):
    network = UNet(channels=3, num_classes=5, dims=dims, widths=(4, 6, 8)).eval()
    assert network(torch.rand(2, 3, *space)).shape == (2, 5, *space)


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="dims is 4, but 2 or 3 is needed"):
        UNet(1, 2, dims=4)
    with pytest.raises(InputError, match=r"widths is \(4, 0\), but positive numbers are needed"):
        UNet(1, 2, widths=(4, 0))
    with pytest.raises(InputError, match="num_classes is 1"):
        UNet(1, 1)
    with pytest.raises(InputError, match=r"image has shape \(1, 8, 8\).*2 axes of space.*image\[None\]"):
        UNet(1, 2)(torch.rand(1, 8, 8))


def test_weights_are_drawn_in_the_order_encoder_own_head():
    torch.manual_seed(0)
    network = UNet(1, 2, widths=(3, 4))
    torch.manual_seed(0)
    parts = [make_level(2, 1, 3), make_level(2, 3, 4), make_level(2, 3 + 4, 3), nn.Conv2d(3, 2, 1)]
    wanted = [value for part in parts for value in part.state_dict().values()]
    for found, value in zip(network.state_dict().values(), wanted, strict=True):
        assert torch.equal(found, value)


def test_all_weights_together_are_under_eight_megabytes_and_have_a_record():
    files = sorted(file.name for file in WEIGHTS.iterdir())
    assert files == sorted(f"{name}.{end}" for name in TASKS for end in ("json", "safetensors"))
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 8e6
    for name in TASKS:
        record = json.loads((WEIGHTS / f"{name}.json").read_text())
        assert record["task"] == name
        assert list(record["mean"]) == [*(f"member_{k}" for k in range(MEMBERS)), "mean_logits", "mean_probs"]


@pytest.mark.parametrize("name", TASKS)
def test_members_are_different_networks_whose_predictions_have_the_size_of_the_case(name):
    networks, task = load_ensemble(name), TASKS[name]
    digests = {hashlib.sha256(network.head.weight.detach().numpy().tobytes()).hexdigest() for network in networks}
    assert len(digests) == len(networks) == MEMBERS
    assert not any(network.training for network in networks)
    image = task.sample(0).image
    logits = predict(networks[1], image)
    assert (logits.dtype, tuple(logits.shape)) == (torch.float32, (task.num_classes, *task.space))
    assert not logits.requires_grad
    assert torch.equal(predict(networks[1], image), logits)


@pytest.mark.parametrize("dims", [2, 3])
def test_weights_come_back_rounded_to_float16_and_predict_as_the_plain_network(tmp_path, dims):
    torch.manual_seed(0)
    facts = {"channels": 2, "num_classes": 3, "dims": dims, "widths": [4, 6]}
    networks = [UNet(**facts) for _ in range(3)]
    save_ensemble(tmp_path / "roads.safetensors", facts, [network.state_dict() for network in networks])
    assert [file.name for file in tmp_path.iterdir()] == ["roads.safetensors"]
    image = np.random.default_rng(0).random((2, *(9, 14, 7)[:dims]), dtype=np.float32)
    for number, plain in enumerate(networks):
        network = load_member("roads", number, tmp_path)
        weights = plain.state_dict()
        rounded = {key: each.half().float() if each.is_floating_point() else each for key, each in weights.items()}
        assert all(torch.equal(value, rounded[key]) for key, value in network.state_dict().items())
        plain.load_state_dict(rounded)
        torch.testing.assert_close(predict(network, image), plain.eval()(torch.from_numpy(image)[None])[0].detach())


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


@pytest.mark.parametrize("pooling", ["single", "mean_probs"])
def test_cases_are_those_of_the_task_with_and_without_a_cache(pooling, tmp_path):
    wanted = EmbeddedCases("roads", [3, 4], pooling, members=2).read("roads_0003")
    for cache in (None, tmp_path, tmp_path):  # made, made and kept, read
        found = open_embedded(TASK, pooling, cache=cache).cases.read("roads_0003")
        for name in ("logits", "labels", "image"):
            assert torch.equal(getattr(found, name), getattr(wanted, name))
        assert found.spacing == wanted.spacing


def test_a_case_is_predicted_once_for_all_poolings_unless_it_is_read_once(tmp_path, monkeypatch):
    open_embedded(TASK, "single", cache=tmp_path, once=True).cases.read("roads_0003")
    assert not list(tmp_path.iterdir())
    open_embedded(TASK, "single", cache=tmp_path).cases.read("roads_0003")
    monkeypatch.setattr("segcal.demo.embedded.predict", lambda *_: pytest.fail("it is kept"))
    open_embedded(TASK, "mean_probs", cache=tmp_path).cases.read("roads_0003")


def test_its_model_predicts_what_its_cases_hold_and_it_travels_without_its_networks():
    for pooling in ("single", "mean_logits"):
        opened = open_embedded(TASK, pooling)
        small = len(pickle.dumps(opened.cases))
        case = opened.cases.read("roads_0003")
        assert len(pickle.dumps(opened.cases)) == small
        assert torch.equal(opened.model(case.image), case.logits)
        assert opened.model(case.image[:, :48, :64]).shape == (2, 48, 64)


def test_a_corrupted_copy_has_the_same_labels_and_other_logits():
    clean = open_embedded(TASK, "single").cases.read("roads_0003")
    strong = EmbeddedTask("s", "roads", cases=2, first=3, members=2, corruption="strong")
    found = open_embedded(strong, "single").cases.read("roads_0003")
    assert torch.equal(found.labels, clean.labels)
    assert not torch.equal(found.logits, clean.logits)


def test_what_is_not_there_is_named():
    with pytest.raises(InputError, match="no pooling is named 'median'"):
        EmbeddedCases("roads", [0], "median")
    with pytest.raises(InputError, match="no embedded task is named 'sea'"):
        open_embedded(EmbeddedTask("s", "sea"), "single")
    with pytest.raises(InputError, match="members is 9, but 1 to 5 networks are shipped"):
        open_embedded(EmbeddedTask("s", "roads", members=9), "single")
    with pytest.raises(InputError, match="case_id is 'roads_0009', but there is no such case among 2"):
        open_embedded(TASK, "single").cases.read("roads_0009")


def test_a_case_is_the_sample_with_what_its_members_say_together():
    task, cases = TASKS["tumour"], EmbeddedCases("tumour", [3], "mean_logits", members=2)
    case, sample = cases.read("tumour_0003"), task.sample(3)
    members = [predict(load_member("tumour", member), sample.image) for member in (0, 1)]
    torch.testing.assert_close(case.logits, sum(members) / 2)
    for found, drawn in zip((case.image, case.labels, case.mask), sample, strict=True):
        assert np.array_equal(found, drawn)
    assert (case.labels[~case.mask] == IGNORED).all()
    assert (case.spacing, cases.class_names) == (task.spacing, task.class_names)
    probs = EmbeddedCases("tumour", [3], "mean_probs", members=2).read("tumour_0003").logits.exp()
    torch.testing.assert_close(probs, sum(each.softmax(0) for each in members) / 2)
    single = EmbeddedCases("tumour", [3], "single").read("tumour_0003").logits
    assert torch.equal(single, members[0])
