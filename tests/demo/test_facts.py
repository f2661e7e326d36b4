"""The facts behind the verdict, against plain loops over the test cases."""

import numpy as np
import pytest
import torch

from segcal.benchmark.pipelines import Pipeline
from segcal.demo.facts import find_facts

TS = Pipeline("mean_logits", "ts")


@pytest.fixture(scope="module")
def facts(demo_setting):
    return find_facts(demo_setting, "roads", TS)


def test_confidence_and_accuracy_are_those_of_all_voxels(demo_setting, facts):
    confidence, right = [], []
    for case in demo_setting.split(demo_setting.tasks[0], "mean_logits").test:
        probs = torch.softmax(case.logits.double(), 0).numpy()
        confidence.append(probs.max(0).ravel())
        right.append((probs.argmax(0) == case.labels.numpy()).ravel())
    assert facts.everywhere.confidence == pytest.approx(np.concatenate(confidence).mean(), rel=1e-6)
    assert facts.everywhere.accuracy == pytest.approx(np.concatenate(right).mean(), rel=1e-12)
    assert facts.boundary.accuracy < facts.everywhere.accuracy
    assert facts.cases == 2


def test_changes_are_paired_over_cases(demo_setting, facts):
    before, after = (
        demo_setting.results.repeats("roads", title)[0].numbers("nll")
        for title in ("identity(mean_logits)", "ts(mean_logits)")
    )
    change = facts.change["nll"]
    assert change.before == pytest.approx(np.mean(before))
    assert change.after == pytest.approx(np.mean(after))
    assert change.difference.value == pytest.approx(np.mean(after) - np.mean(before))


def test_flips_are_counted_voxel_by_voxel(demo_setting, facts):
    task = demo_setting.tasks[0]
    matrix = demo_setting.calibrator(task, Pipeline("mean_logits", "ms"))
    harmful = beneficial = 0
    for case in demo_setting.split(task, "mean_logits").test:
        with torch.no_grad():
            after = matrix.scores(case.logits[None])[0].argmax(0)
        before = case.logits.argmax(0)
        harmful += int(((before == case.labels) & (after != before)).sum())
        beneficial += int(((after == case.labels) & (after != before)).sum())
    assert facts.matrix_flips.flips == (harmful, beneficial, 0)
    assert harmful + beneficial > 0
    assert 0 < facts.matrix_flips.near <= 1
    assert (facts.chosen_flips.total, facts.chosen_flips.near) == (0, None)
    assert facts.chosen_flips.voxels == 2 * 192 * 224


def test_facts_of_a_corrupted_copy_are_named_after_it(demo_setting):
    shifted = find_facts(demo_setting, "roads", TS, "roads_mild")
    assert shifted.task == "roads_mild"
    assert shifted.change["nll"].before != find_facts(demo_setting, "roads", TS).change["nll"].before
