"""A tiny finished benchmark: two tasks, a corrupted copy of the first, and another place, all made of arrays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol, StudyOptions
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.summaries import summarise, write_summary
from segcal.benchmark.tasks import Division, EmbeddedTask, OpenTask
from segcal.cases import ArrayCases
from segcal.fitting import FitConfig
from segcal.studies import run_studies
from segcal.studies.page import write_report
from segcal.studies.study import Setting
from segcal.summary import Bootstrap

MEMBERS = 3
SPACE = (12, 17)


def open_toy(task, pooling, once=False):
    """Blocks of three classes with sure and often wrong members; a copy has more noise, a place has other ids."""
    place = {"toy": 0, "plain": 1, "toy_strong": 0, "elsewhere": 7}[task.name]
    noise = 3.0 if task.corruption else 1.5
    logits, labels, images = [], [], []
    for number in range(task.cases):
        rng = np.random.default_rng([place, number])
        truth = np.kron(rng.integers(3, size=(3, 4)), np.ones((4, 5), int))[: SPACE[0], : SPACE[1]]
        offset = rng.normal(size=SPACE)
        members = [
            (2 * np.eye(3)[truth].transpose(2, 0, 1) + noise * rng.normal(size=(3, *SPACE))) * 2 + offset
            for _ in range(MEMBERS)
        ]
        logits.append([member.astype("float32") for member in members[: 1 if pooling == "single" else task.members]])
        labels.append(truth)
        images.append(rng.random((3, *SPACE)).astype("float32"))
    masks = None
    if task.name != "plain":
        mask = np.ones(SPACE, bool)
        mask[:, 13:] = False
        masks = [mask] * task.cases
    names = [f"{'far' if place == 7 else 'case'}{number:02d}" for number in range(task.cases)]
    cases = ArrayCases(logits, labels, ids=names, masks=masks, images=images, pooling=pooling)
    return OpenTask(cases, background=True, model=lambda image: 4 * image.flip(0))


@pytest.fixture(scope="session")
def setting(tmp_path_factory):
    tasks = (
        EmbeddedTask("toy", "toy", cases=9, members=MEMBERS, test_on=("toy_strong", "elsewhere")),
        EmbeddedTask("plain", "plain", cases=9, members=MEMBERS),
        EmbeddedTask("toy_strong", "toy", cases=9, members=MEMBERS, corruption="strong", test_only=True),
        EmbeddedTask("elsewhere", "toy", cases=4, members=MEMBERS, test_only=True),
    )
    protocol = Protocol(
        tasks=tasks,
        pipelines=(
            Pipeline("single", "identity"),
            *(Pipeline("mean_logits", name) for name in ("identity", "ts", "ms", "cms_ap")),
        ),
        split=Division(3, 2),
        repeats=2,
        fit=FitConfig(voxels=100, lam=1e-3, mu=1e-3),
        bootstrap=Bootstrap(replicates=50),
        study_options=StudyOptions(cases=2, sizes=(1, 9), size_tasks=("toy",), model_sizes={"plain": 400, "toy": 100}),
        embedded=open_toy,
    )
    results = run_benchmark(protocol, tmp_path_factory.mktemp("results"))
    return Setting(protocol, results, summarise(results))


@pytest.fixture
def with_options(setting):
    """Return the setting with other options of its studies."""
    return lambda **options: replace(
        setting, protocol=structs.replace(setting.protocol, study_options=StudyOptions(**options))
    )


@pytest.fixture(scope="session")
def masked_cases():
    """Make cases of five classes in a box, of which the field of view is a corner; also returns the mask."""

    def make(count=6):
        rng = np.random.default_rng(2)
        labels = [rng.choice(5, p=[0.8, 0.05, 0.05, 0.05, 0.05], size=(8, 9, 4)) for _ in range(count)]
        logits = [
            (rng.normal(size=(5, 8, 9, 4)) * 2 + 5 * np.eye(5)[truth].transpose(3, 0, 1, 2) + 6).astype("float32")
            for truth in labels
        ]
        mask = np.zeros((8, 9, 4), bool)
        mask[:5, 2:8] = True
        return ArrayCases(logits, labels, masks=[mask] * count), mask

    return make


@pytest.fixture
def section():
    """A task as the page knows it."""
    return SimpleNamespace(
        task="heart",
        classes=["a", "b", "c"],
        background=True,
        baseline="identity(mean_logits)",
        chosen="ts(mean_logits)",
    )


# A finished benchmark whose names are hostile, with its studies and its page.
VOLUME = (14, 17, 5)
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
        truth = np.kron(rng.integers(3, size=(2, 3, 1)), np.ones((7, 6, 5), int))[: VOLUME[0], : VOLUME[1]]
        members = [
            2 * (2 * np.eye(3)[truth].transpose(3, 0, 1, 2) + noise * rng.normal(size=(3, *VOLUME)))
            + rng.normal(size=VOLUME)
            for _ in range(1 if pooling == "single" else 2)
        ]
        logits.append([member.astype("float32") for member in members])
        labels.append(truth)
        images.append(rng.normal(size=(1, *VOLUME)).astype("float32"))
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
