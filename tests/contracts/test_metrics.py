"""What every metric promises; a new one is tested by being listed."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS, find_metrics
from segcal.metrics.base import Needs
from segcal.statistics import count_logits

NAMES = list(METRICS)
SPATIAL = {name for name, metric in METRICS.items() if {"bands", "surface"} & set(metric.needs)}
FLAT = Needs.of(metric for name, metric in METRICS.items() if name not in SPATIAL)
ROOT = Path(__file__).parents[2]


def make_case():
    labels = torch.zeros(9, 20, dtype=torch.int64)
    labels[2:6, 3:15] = 1
    labels[5:8, 10:18] = 2
    logits = torch.nn.functional.one_hot(labels, 3).movedim(-1, 0).double() * 2
    logits += torch.randn(3, 9, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels[0] = -1
    return logits, labels, np.random.default_rng(0).integers(3, size=labels.shape).astype(np.int16)


@cache
def tables_of(kind):
    """Every table that there is, of a usual case or of one that is changed in some way."""
    logits, labels, reference = make_case()
    if kind in ("perfect", "nearly perfect"):
        logits = torch.nn.functional.one_hot(labels.clamp(min=0), 3).movedim(-1, 0).double() * 60
        reference = labels.clamp(min=0).numpy().copy()
        if kind == "nearly perfect":
            logits[:, 4, 4], reference[7, 12] = torch.tensor([9.0, 0.0, 0.0]), 0
    elif kind == "other where ignored":
        logits[:, 0] = torch.tensor([0.0, 9.0, 0.0])[:, None]
    elif kind == "nothing counts":
        labels = torch.full_like(labels, -1)
    elif kind == "shuffled":
        order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(1))
        flat = logits.reshape(3, -1)[:, order], labels.reshape(-1)[order]
        return FLAT.count(*flat, reference=reference.reshape(-1)[order.numpy()]).tables
    elif kind == "two halves":
        halves = [
            FLAT.count(logits[:, part], labels[part], reference=reference[part]).tables
            for part in (slice(0, 4), slice(4, 9))
        ]
        return halves[0] + halves[1]
    needs = Needs.of(METRICS.values())
    return needs.count(logits, labels, needs.bands(labels), reference).tables


@pytest.mark.parametrize("name", NAMES)
def test_its_facts_are_stated(name):
    metric = METRICS[name]
    assert f"### `{name}`" in (ROOT / "docs" / "metrics.md").read_text()
    assert metric.title
    assert metric.unit in ("nat", "fraction", "distance", "")
    assert metric.better in ("lower", "higher", None)
    assert isinstance(metric.pooled, bool)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_number_of_a_usual_case(name):
    value = METRICS[name](tables_of("usual"))
    assert isinstance(value, float)
    if METRICS[name].better:
        assert value > 0
    if METRICS[name].unit == "fraction":
        assert value <= 1
    assert METRICS[name](tables_of("other where ignored")) == value
    assert METRICS[name](tables_of("nothing counts")) is None


@pytest.mark.parametrize("name", [name for name in NAMES if METRICS[name].better])
def test_a_perfect_prediction_is_the_best_value(name):
    value = METRICS[name](tables_of("perfect"))
    if value is None:  # nothing is wrong, nothing flipped: it is a number as soon as something is
        assert METRICS[name](tables_of("nearly perfect")) is not None
    else:
        assert value == pytest.approx(1 if METRICS[name].better == "higher" else 0, abs=1e-12)


@pytest.mark.parametrize("kind", ["shuffled", "two halves"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - SPATIAL))
def test_neither_the_order_of_voxels_nor_a_cut_matters(name, kind):
    assert METRICS[name](tables_of(kind)) == pytest.approx(METRICS[name](tables_of("usual")), rel=1e-12)


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(InputError, match=r"no metric is named 'eec'. Choose one of: nll, dice, ece, ba_ece"):
        find_metrics(("nll", "eec"))


def test_bins_that_were_not_counted_are_refused():
    tables = count_logits(*make_case()[:2], bins=(20,)).tables
    with pytest.raises(InputError, match=r"bins is 50, but the tables have \[20\] bins. Count the cases with bins=50"):
        METRICS["ece"](tables)
