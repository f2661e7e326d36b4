import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paper.loss_study.ensembles import RECIPES, main, mean_scores, measure_case, scores
from segcal.demo.ensembles import MEMBERS, WEIGHTS, load_ensemble, load_member
from segcal.demo.tasks import TASKS
from segcal.types import IGNORED

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


@pytest.mark.parametrize("name", TASKS)
def test_regenerated_cases_score_what_was_recorded(name):
    record = json.loads((WEIGHTS / f"{name}.json").read_text())
    networks = load_ensemble(name)
    for index, expected in enumerate(record["first_cases"][:2]):
        measured = measure_case(TASKS[name], networks, index)
        assert list(measured) == list(expected)
        for pipeline, values in measured.items():
            # Other processors add in another order: a boundary voxel may change sides, an offset never.
            assert values["dice"] == pytest.approx(expected[pipeline]["dice"], abs=3e-3)
            assert values["nll"] == pytest.approx(expected[pipeline]["nll"], rel=1e-2)
            assert values["ece"] == pytest.approx(expected[pipeline]["ece"], abs=1e-3)


@pytest.mark.parametrize("name", TASKS)
def test_the_recorded_ensembles_are_useful_and_better_than_their_members(name):
    mean = json.loads((WEIGHTS / f"{name}.json").read_text())["mean"]
    members = [values for key, values in mean.items() if key.startswith("member_")]
    assert mean["mean_logits"]["dice"] > 0.55
    assert mean["mean_logits"]["dice"] > np.mean([values["dice"] for values in members])
    assert mean["mean_probs"]["nll"] < mean["mean_logits"]["nll"] < np.mean([values["nll"] for values in members])


@pytest.mark.parametrize("name", TASKS)
def test_the_networks_are_overconfident_and_their_free_energy_varies(name):
    """A temperature above 1 lowers the NLL of each member: what the demo is about is there."""
    task, network = TASKS[name], load_ensemble(name, 1)[0]
    cases = [task.sample(index) for index in range(2)]
    logits, labels = [], []
    with torch.inference_mode():
        for image, truth, _ in cases:
            kept = torch.from_numpy(truth != IGNORED)
            logits.append(network(torch.from_numpy(image)[None])[0][:, kept].T)
            labels.append(torch.from_numpy(truth)[kept])
    z, y = torch.cat(logits).double(), torch.cat(labels)
    cooled = torch.nn.functional.cross_entropy(z / 1.15, y)
    assert cooled < torch.nn.functional.cross_entropy(z, y)
    assert float(torch.logsumexp(z, 1).std()) > 0.4


def test_scores_are_those_worked_by_hand():
    probs = torch.tensor([[0.9, 0.6, 0.2, 0.5], [0.1, 0.4, 0.8, 0.5]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, IGNORED])
    values = scores(probs.log(), labels, include_background=True)
    # Predicted 0, 0, 1. Class 0: 2*1/(2+1); class 1: 2*1/(1+2).
    assert values["dice"] == pytest.approx(2 / 3)
    assert values["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.4) + np.log(0.8)) / 3)
    assert values["ece"] == pytest.approx((0.1 + 0.6 + 0.2) / 3)


def test_means_leave_out_what_is_not_defined():
    rows = [{"a": {"dice": float("nan"), "nll": 1.0}}, {"a": {"dice": 0.5, "nll": 2.0}}]
    assert mean_scores(rows) == {"a": {"dice": 0.5, "nll": 1.5}}
