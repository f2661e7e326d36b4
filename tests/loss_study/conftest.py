import numpy as np
import pytest

from paper.loss_study import draws, run, trial
from paper.loss_study.plan import MAIN, POST_HOC, plan_units

METRICS = ("dice", "hd95", "nll", "ece", "ece_foreground", "cece_foreground", "ece_union", "cece_union")


def made_up_row(unit, cases=5, level=None):
    """A row with values that depend on the loss alone, plus noise that all losses share case by case."""
    noise = 0.01 * np.random.default_rng(unit.seed).random(cases)
    place = MAIN.index(unit.variant) if unit.variant in MAIN else 9
    level = place if level is None else level

    def values(shift):
        own = {metric: (0.1 + 0.02 * level + shift + noise).tolist() for metric in METRICS}
        return own | {"dice": (0.9 - 0.02 * level + noise).tolist()}

    pipelines = {"none": values(0.1)} | ({name: values(0.0) for name in POST_HOC} if unit.main else {})
    stages = {"clean": pipelines} | ({"corrupted": pipelines} if unit.main and unit.task != "tumour" else {})
    return {
        "schema": 1,
        "unit": {name: getattr(unit, name) for name in ("task", "variant", "seed", "backbone", "share")},
        "cases": [str(i) for i in range(cases)],
        "values": stages,
        "curve": {"count": [10.0] * 15, "right": [5.0] * 15, "confidence": [7.0] * 15},
        "shown_curve": {"count": [2.0] * 15, "right": [1.0] * 15, "confidence": [1.5] * 15},
        "logit_profile": [[3.0, 1.0], [1.0, 2.0]],
        "logit_histograms": {"1": [1] * 60, "2": [2] * 60} if unit.main else {},
        "fits": {},
    }


@pytest.fixture(autouse=True)
def no_parent(monkeypatch):
    """Tests call what runs in processes of their own; the one they run in keeps its signals."""
    for module in (run, trial):
        monkeypatch.setattr(module, "follow_parent", lambda: None)


@pytest.fixture
def few_draws(monkeypatch):
    """What is made up needs no fine intervals."""
    monkeypatch.setattr(draws, "REPLICATES", 500)
    draws._drawn.cache_clear()
    yield
    draws._drawn.cache_clear()


@pytest.fixture
def made_up(few_draws):
    return made_up_row


@pytest.fixture
def rows(few_draws):
    return [made_up_row(unit) for unit in plan_units(2)]
