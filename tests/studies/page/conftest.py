"""A tiny finished benchmark whose names are hostile, with its studies and its page."""

import numpy as np
import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol, StudyOptions
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.benchmark.tasks import Division, EmbeddedTask, OpenTask
from segcal.cases import ArrayCases
from segcal.fitting import FitConfig
from segcal.studies import run_studies
from segcal.studies.page import write_report
from segcal.studies.setting import Setting
from segcal.summary import Bootstrap

SPACE = (14, 17, 5)
HOSTILE = (
    "</script><script>window.harm = 1</script>",
    "<img src=x onerror='window.harm = 2'>",
    "a \"quoted\" & 'other' $\\frac{1}{2}$ %%data%% `${window.harm = 3}`",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "x" * 300,
)
CLASSES = ("<b>back</b>", "</script>&amp;", "\u05e9\u05dc\u05d5\u05dd \u202e" + "long " * 60)


def open_hostile(task, pooling, once=False):
    """Volumes of three classes with members that are too sure; a copy has more noise."""
    noise = 3.0 if task.corruption else 1.5
    logits, labels, images = [], [], []
    for number in range(task.cases):
        rng = np.random.default_rng(number)
        truth = np.kron(rng.integers(3, size=(2, 3, 1)), np.ones((7, 6, 5), int))[: SPACE[0], : SPACE[1]]
        members = [
            2 * (2 * np.eye(3)[truth].transpose(3, 0, 1, 2) + noise * rng.normal(size=(3, *SPACE)))
            + rng.normal(size=SPACE)
            for _ in range(1 if pooling == "single" else 2)
        ]
        logits.append([member.astype("float32") for member in members])
        labels.append(truth)
        images.append(rng.normal(size=(1, *SPACE)).astype("float32"))
    names = [f"{number} {HOSTILE[number % len(HOSTILE)]}" for number in range(task.cases)]
    cases = ArrayCases(logits, labels, ids=names, images=images, pooling=pooling, class_names=CLASSES)
    return OpenTask(cases, background=True)


@pytest.fixture(scope="session")
def page_setting(tmp_path_factory):
    """The finished benchmark; its folder is `results.folder`."""
    protocol = Protocol(
        tasks=(
            EmbeddedTask("heart", "roads", cases=12, members=2, test_on=("heart_strong",)),
            EmbeddedTask("heart_strong", "roads", cases=12, members=2, corruption="strong", test_only=True),
        ),
        pipelines=(
            Pipeline("single", "identity"),
            *(Pipeline("mean_logits", name) for name in ("identity", "ts", "ms", "cms_ap")),
        ),
        split=Division(3, 2),
        repeats=2,
        fit=FitConfig(voxels=100, lam=1e-3, mu=1e-3),
        bootstrap=Bootstrap(replicates=50),
        study_options=StudyOptions(cases=2),
        embedded=open_hostile,
    )
    results = run_benchmark(protocol, tmp_path_factory.mktemp("results"))
    setting = Setting(protocol, results, write_summary(results))
    run_studies(setting, ["worst_cases", "flips", "offsets", "binning", "reliability"])
    return setting


@pytest.fixture(scope="session")
def page_folder(page_setting):
    return page_setting.results.folder


@pytest.fixture(scope="session")
def page_file(page_folder, tmp_path_factory):
    """The page of the benchmark, and its figures beside it."""
    place = tmp_path_factory.mktemp("page")
    return write_report(page_folder, place / "report.html", place / "figures")
