"""The facts behind the verdict, against plain loops over the test cases."""

import numpy as np
import pytest
import torch

from segcal.benchmark.pipelines import Pipeline
from segcal.studies.facts import find_facts

TS = Pipeline("mean_logits", "ts")


@pytest.fixture(scope="module")
def facts(setting):
    return find_facts(setting.results, setting.summary, "toy", TS)


def cases_of_tests(setting):
    """Every test case of every repeat, with the number of its repeat."""
    task = setting.tasks[0]
    for repeat in range(2):
        for case in setting.split(task, "mean_logits", repeat).test:
            yield repeat, case


def test_confidence_and_accuracy_are_those_of_all_voxels_before_and_after(setting, facts):
    confidence, right, after = [], [], []
    for repeat, case in cases_of_tests(setting):
        counts = (case.labels >= 0).numpy()
        probs = torch.softmax(case.logits.double(), 0).numpy()
        confidence.append(probs.max(0)[counts])
        right.append((probs.argmax(0) == case.labels.numpy())[counts])
        with torch.no_grad():
            calibrated = setting.calibrator(setting.tasks[0], TS, repeat)(case.logits[None])[0].exp().numpy()
        after.append(calibrated.max(0)[counts])
    assert facts.everywhere.confidence == pytest.approx(np.concatenate(confidence).mean(), rel=1e-6)
    assert facts.everywhere.accuracy == pytest.approx(np.concatenate(right).mean(), rel=1e-12)
    assert facts.everywhere_after.confidence == pytest.approx(np.concatenate(after).mean(), rel=1e-5)
    assert facts.everywhere_after.accuracy == facts.everywhere.accuracy
    assert facts.boundary.accuracy != facts.everywhere.accuracy
    assert facts.boundary_after.confidence != facts.boundary.confidence


def test_changes_are_paired_over_cases(setting, facts):
    before, after = (
        [number for unit in setting.results.repeats("toy", title) for number in unit.numbers("nll")]
        for title in ("identity(mean_logits)", "ts(mean_logits)")
    )
    change = facts.change["nll"]
    assert change.before == pytest.approx(np.mean(before))
    assert change.after == pytest.approx(np.mean(after))
    assert change.difference.value == pytest.approx(np.mean(after) - np.mean(before))


def test_flips_are_counted_voxel_by_voxel(setting, facts):
    counted = np.zeros(3, int)
    for repeat, case in cases_of_tests(setting):
        with torch.no_grad():
            matrix = setting.calibrator(setting.tasks[0], Pipeline("mean_logits", "ms"), repeat)
            after = matrix.scores(case.logits[None])[0].argmax(0)
        before, labels = case.logits.argmax(0), case.labels
        flipped = (after != before) & (labels >= 0)
        kinds = (before == labels, after == labels, (before != labels) & (after != labels))
        counted += [int((flipped & kind).sum()) for kind in kinds]
    assert facts.matrix_flips.flips == tuple(counted)
    assert counted.sum() > 0
    assert 0 < facts.matrix_flips.near <= 1
    assert (facts.flips.total, facts.flips.near) == (0, None)
    assert facts.flips.voxels == 8 * 12 * 13


def test_facts_of_a_corrupted_copy_are_named_after_it(setting, facts):
    shifted = find_facts(setting.results, setting.summary, "toy", TS, "toy_strong")
    assert shifted.task == "toy_strong"
    assert shifted.change["nll"].before != facts.change["nll"].before
