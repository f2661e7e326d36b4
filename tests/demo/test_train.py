import json

import pytest
import torch
from safetensors.torch import load_file

from segcal.demo.ensembles import MEMBERS, WEIGHTS, load_ensemble, load_member
from segcal.demo.tasks import TASKS
from segcal.demo.train import RECIPES, main

SMALL = ["--members", "2", "--epochs", "1", "--cases", "3", "--recorded", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    main(["streets", "--out", str(folder), *SMALL])
    return folder


def test_training_writes_weights_and_a_record(trained):
    first, second = load_ensemble("streets", 2, trained)
    assert not torch.equal(first.head.weight, second.head.weight)
    record = json.loads((trained / "streets.json").read_text())
    assert record["held_out_cases"] == 1
    assert list(record["mean"]) == ["member_0", "member_1", "mean_logits", "mean_probs"]
    assert record["first_cases"] == [record["mean"]]


def test_a_second_run_goes_on_from_the_checkpoints(trained):
    before = load_file(trained / "streets.safetensors")
    stamps = [file.stat().st_mtime_ns for file in (trained / "checkpoints").iterdir()]
    main(["streets", "--out", str(trained), *SMALL])
    after = load_file(trained / "streets.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert [file.stat().st_mtime_ns for file in (trained / "checkpoints").iterdir()] == stamps


def test_measuring_alone_trains_nothing_in_worker_processes_too(trained):
    weights = (trained / "streets.safetensors").stat().st_mtime_ns
    main(["streets", "--out", str(trained), "--members", "2", "--recorded", "2", "--measure-only", "--workers", "2"])
    assert json.loads((trained / "streets.json").read_text())["held_out_cases"] == 2
    assert (trained / "streets.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize("name", TASKS)
def test_the_recipe_makes_networks_of_the_shipped_shape(name):
    network = load_member(name, MEMBERS - 1, WEIGHTS)
    assert tuple(level[0].out_channels for level in network.down) == RECIPES[name].widths
    assert RECIPES[name].config.include_background != TASKS[name].background
