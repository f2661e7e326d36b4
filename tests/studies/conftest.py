"""Two tiny finished benchmarks, all made of arrays: one with everything that studies need, one with hostile names."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import convert, structs

from segcal.benchmark.protocol import Pipeline, Protocol, StudyOptions
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.benchmark.tasks import Division, EmbeddedTask, OpenTask
from segcal.cases import ArrayCases
from segcal.fitting import FitConfig
from segcal.studies import STUDIES
from segcal.studies.page import write_report
from segcal.studies.run import run_studies
from segcal.studies.study import Setting
from segcal.summary import Bootstrap

MEMBERS = 3
SPACE, VOLUME = (12, 17), (14, 17, 5)
HOSTILE = (
    "</script><script>window.harm = 1</script>",
    "<img src=x onerror='window.harm = 2'>",
    "a \"quoted\" & 'other' $\\frac{1}{2}$ %%data%% `${window.harm = 3}`",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "x" * 300,
)
CLASSES = ("<b>back</b>", "</script>&amp;", "\u05e9\u05dc\u05d5\u05dd \u202e" + "long " * 60)


def draw(rng, blocks, space, count, noise):
    """Blocks of three classes with sure and often wrong members, whose offset varies."""
    size = [-(-length // block) for length, block in zip(space, blocks, strict=True)]
    truth = np.kron(rng.integers(3, size=blocks), np.ones(size, int))[tuple(map(slice, space))]
    one_hot = np.moveaxis(np.eye(3)[truth], -1, 0)
    offset = rng.normal(size=space)
    members = [2 * (2 * one_hot + noise * rng.normal(size=(3, *space))) + offset for _ in range(count)]
    return truth, [member.astype("float32") for member in members]


def open_toy(task, pooling, once=False):
    """Pictures, with a mask but for "plain"; a copy has more noise, a place has other ids."""
    place = {"toy": 0, "plain": 1, "toy_strong": 0, "elsewhere": 7}[task.name]
    drawn, images = [], []
    for number in range(task.cases):
        rng = np.random.default_rng([place, number])
        drawn.append(draw(rng, (3, 4), SPACE, MEMBERS, 3.0 if task.corruption else 1.5))
        images.append(rng.random((3, *SPACE)).astype("float32"))
    labels, members = zip(*drawn, strict=True)
    logits = [each[: 1 if pooling == "single" else task.members] for each in members]
    mask = np.ones(SPACE, bool)
    mask[:, 13:] = False
    masks = None if task.name == "plain" else [mask] * task.cases
    names = [f"{'far' if place == 7 else 'case'}{number:02d}" for number in range(task.cases)]
    cases = ArrayCases(logits, labels, ids=names, masks=masks, images=images, pooling=pooling)
    return OpenTask(cases, background=True, model=lambda image: 4 * image.flip(0))


def open_hostile(task, pooling, once=False):
    """Volumes whose cases and classes have hostile names; a copy has more noise."""
    rngs = [np.random.default_rng(number) for number in range(task.cases)]
    members = 1 if pooling == "single" else 2
    drawn = [draw(rng, (2, 3, 1), VOLUME, members, 3.0 if task.corruption else 1.5) for rng in rngs]
    labels, logits = zip(*drawn, strict=True)
    images = [rng.normal(size=(1, *VOLUME)).astype("float32") for rng in rngs]
    names = [f"{number} {HOSTILE[number % len(HOSTILE)]}" for number in range(task.cases)]
    cases = ArrayCases(logits, labels, ids=names, images=images, pooling=pooling, class_names=CLASSES)
    return OpenTask(cases, background=True)


def finished(folder, embedded, tasks, **options):
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
        study_options=StudyOptions(cases=2, **options),
        embedded=embedded,
    )
    results = run_benchmark(protocol, folder)
    return Setting(protocol, results, write_summary(results))


@pytest.fixture(scope="session")
def setting(tmp_path_factory):
    tasks = (
        EmbeddedTask("toy", "toy", cases=9, members=MEMBERS, test_on=("toy_strong", "elsewhere")),
        EmbeddedTask("plain", "plain", cases=9, members=MEMBERS),
        EmbeddedTask("toy_strong", "toy", cases=9, members=MEMBERS, corruption="strong", test_only=True),
        EmbeddedTask("elsewhere", "toy", cases=4, members=MEMBERS, test_only=True),
    )
    sizes = {"sizes": (1, 9), "size_tasks": ("toy",), "model_sizes": {"plain": 400, "toy": 100}}
    return finished(tmp_path_factory.mktemp("results"), open_toy, tasks, **sizes)


@pytest.fixture(scope="session")
def studied(setting):
    """The data of every study of the benchmark, by name."""
    found, left_out = run_studies(setting, list(STUDIES))
    assert left_out == {}
    return found


@pytest.fixture
def changed(setting):
    """Return the setting with another protocol, options of its studies, units or rows of its summary."""

    def change(options=None, units=lambda unit: True, rows=lambda row: True, **protocol):
        if options is not None:
            protocol["study_options"] = StudyOptions(**options)
        results = structs.replace(setting.results, units=tuple(filter(units, setting.results.units)))
        summary = structs.replace(setting.summary, results=tuple(filter(rows, setting.summary.results)))
        return replace(
            setting, protocol=structs.replace(setting.protocol, **protocol), results=results, summary=summary
        )

    return change


@pytest.fixture
def tables():
    """Return the tables of a study in Markdown, one text."""
    return lambda name, data: "\n".join(each.to_markdown() for each in STUDIES[name].tables(data).values())


@pytest.fixture
def figures():
    """Return the figures of a task, by name, of data as its file has it."""
    section = SimpleNamespace(
        task="heart",
        classes=["a", "b", "c"],
        background=True,
        baseline="identity(mean_logits)",
        chosen="ts(mean_logits)",
    )

    def draw(name, plain):
        data = convert(plain, STUDIES[name].data)
        return {each.name: each for each in STUDIES[name].figures(data, section)}

    return draw


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


@pytest.fixture(scope="session")
def page_setting(tmp_path_factory):
    """A finished benchmark whose names are hostile, with some of its studies."""
    tasks = (
        EmbeddedTask("heart", "roads", cases=12, members=2, test_on=("heart_strong",)),
        EmbeddedTask("heart_strong", "roads", cases=12, members=2, corruption="strong", test_only=True),
    )
    found = finished(tmp_path_factory.mktemp("results"), open_hostile, tasks)
    run_studies(found, ["worst_cases", "flips", "offsets", "binning", "reliability"])
    return found


@pytest.fixture(scope="session")
def page_folder(page_setting):
    return page_setting.results.folder


@pytest.fixture(scope="session")
def page_file(page_folder, tmp_path_factory):
    """The page of the benchmark, and its figures beside it."""
    place = tmp_path_factory.mktemp("page")
    return write_report(page_folder, place / "report.html", place / "figures")
