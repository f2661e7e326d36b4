"""The shipped weights still score what was recorded when they were made."""

import json

import numpy as np
import pytest
import torch

from segcal.demo.ensembles import WEIGHTS, load_ensemble
from segcal.demo.record import mean_scores, measure_case, scores
from segcal.demo.tasks import TASKS
from segcal.types import IGNORED


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
