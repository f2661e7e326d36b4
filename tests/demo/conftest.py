"""A demonstration as small as can be: one task, a corrupted copy of it, two networks."""

from functools import partial

import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Bootstrap, Protocol
from segcal.benchmark.results import read_results
from segcal.studies import Setting
from segcal.benchmark.study_choice import Options
from segcal.benchmark.summaries import summarise
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.demo.embedded import open_embedded
from segcal.demo.plan import QUICK_STUDIES, Plan
from segcal.demo.story import tell_story
from segcal.fitting import FitConfig


def small_plan(workers=1):
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
        study_options=Options(cases=1, sizes=(1,)),
        workers=workers,
    )
    return Plan(protocol, ("one task instead of three",))


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    """The small demonstration: its folder, its story and the steps it reported."""
    folder, steps = tmp_path_factory.mktemp("demo"), []
    story = tell_story(small_plan(), folder, steps.append)
    return folder, story, steps


@pytest.fixture(scope="session")
def demo_setting(told, tmp_path_factory):
    results = read_results(told[0])
    opener = partial(open_embedded, cache=tmp_path_factory.mktemp("kept"))
    return Setting(small_plan().protocol, results, summarise(results), opener)
