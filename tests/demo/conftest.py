"""A demonstration as small as can be: one task, a corrupted copy of it, two networks."""

import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol, StudyOptions
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.demo.plan import QUICK_STUDIES, Plan
from segcal.demo.story import tell_story
from segcal.fitting import FitConfig
from segcal.summary import Bootstrap


def small_plan():
    facts = {"cases": 7, "members": 2}
    tasks = (
        EmbeddedTask("roads", "roads", split=Division(3, 2, 2), test_on=("roads_mild",), **facts),
        EmbeddedTask("roads_mild", "roads", corruption="mild", test_only=True, **facts),
    )
    pipelines = (
        Pipeline("single", "identity"),
        *(Pipeline("mean_logits", name) for name in ("identity", "ts", "ms", "cms_ap")),
    )
    protocol = Protocol(
        tasks=tasks,
        pipelines=pipelines,
        repeats=1,
        fit=FitConfig(voxels=400, lam=1e-3, mu=1e-3),
        bootstrap=Bootstrap(replicates=60),
        studies=QUICK_STUDIES,
        study_options=StudyOptions(cases=1, sizes=(1,)),
    )
    return Plan(protocol, ("one task instead of three",))


@pytest.fixture(scope="session")
def plan():
    return small_plan()


@pytest.fixture(scope="session")
def told(plan, tmp_path_factory):
    """The small demonstration: its folder, its story and the steps it reported."""
    folder, steps = tmp_path_factory.mktemp("demo"), []
    story = tell_story(plan, folder, steps.append)
    return folder, story, steps
