"""The plans: every task is there, splits fit the cases, and what is reduced is said."""

import pytest

from segcal.benchmark.pipelines import paper_pipelines
from segcal.benchmark.protocol import StudyOptions as Options
from segcal.demo.plan import full_plan, quick_plan
from segcal.demo.tasks import TASKS
from segcal.studies import STUDIES as STUDY_FACTS


@pytest.mark.parametrize("make", [quick_plan, full_plan])
def test_all_embedded_tasks_are_fitted_and_the_splits_use_all_their_cases(make):
    protocol = make().protocol
    fitted = {task.name: task for task in protocol.tasks if not task.test_only}
    assert set(fitted) == set(TASKS)
    for task in fitted.values():
        division = protocol.division(task)
        assert division.cal + division.val + division.test == task.cases


@pytest.mark.parametrize("make", [quick_plan, full_plan])
def test_corrupted_copies_have_the_cases_of_their_task(make):
    tasks = {task.name: task for task in make().protocol.tasks}
    targets = [(task, tasks[target]) for task in tasks.values() for target in task.test_on]
    assert targets
    for task, copy in targets:
        assert copy.test_only
        assert copy.corruption in ("mild", "strong")
        assert (copy.embedded, copy.cases, copy.first) == (task.embedded, task.cases, task.first)
    assert not tasks["tumour"].test_on


def test_the_quick_plan_says_what_it_reduced_and_the_full_one_reduces_nothing():
    quick, full = quick_plan(2), full_plan(2)
    text = " ".join(quick.reduced)
    assert quick.protocol.repeats == 1
    assert "one division" in text
    assert f"{quick.protocol.fit.voxels:,} voxels" in text
    assert full.reduced == ()
    assert full.protocol.study_options == Options()
    assert full.protocol.studies == tuple(STUDY_FACTS)
    assert all(name in text for name in STUDY_FACTS if name not in quick.protocol.studies)
    assert (full.protocol.repeats, full.protocol.pipelines) == (3, paper_pipelines())
    assert quick.protocol.workers == full.protocol.workers == 2
