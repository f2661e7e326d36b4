"""What every metric promises; a new one is tested by being listed."""

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


def make_case(seed=0, num_classes=3, space=(9, 20)):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(space, dtype=torch.int64)
    labels[2:6, 3:15] = 1
    labels[5:8, 10:18] = 2
    logits = torch.nn.functional.one_hot(labels, num_classes).movedim(-1, 0).double() * 2
    logits += torch.randn(num_classes, *space, generator=generator, dtype=torch.float64)
    labels[0] = -1
    return logits, labels


def count(logits, labels, reference=None):
    """Make every table that there is."""
    needs = Needs.of(METRICS.values())
    return needs.count(logits, labels, needs.bands(labels), reference).tables


def reference_for(labels):
    return np.random.default_rng(0).integers(3, size=labels.shape).astype(np.int16)


@pytest.mark.parametrize("name", NAMES)
def test_its_facts_are_stated(name):
    metric = METRICS[name]
    assert metric.title
    assert metric.unit in ("nat", "fraction", "distance", "")
    assert metric.better in ("lower", "higher", None)
    assert isinstance(metric.pooled, bool)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_documented(name):
    assert f"### `{name}`" in (ROOT / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_number_of_a_usual_case(name):
    logits, labels = make_case()
    value = METRICS[name](count(logits, labels, reference_for(labels)))
    assert isinstance(value, float)
    if METRICS[name].better:
        assert value > 0
    if METRICS[name].unit == "fraction":
        assert value <= 1


@pytest.mark.parametrize("name", [name for name in NAMES if METRICS[name].better])
def test_a_perfect_prediction_is_the_best_value(name):
    _, labels = make_case()
    logits = torch.nn.functional.one_hot(labels.clamp(min=0), 3).movedim(-1, 0).double() * 60
    value = METRICS[name](count(logits, labels, labels.clamp(min=0).numpy()))
    if value is None:  # nothing wrong, nothing flipped
        assert name in ("ece_wrong", "harmful_flips", "beneficial_flips", "error_auroc")
    else:
        assert value == pytest.approx(1 if METRICS[name].better == "higher" else 0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_ignored_voxels_do_not_count(name):
    logits, labels = make_case()
    other = logits.clone()
    other[:, 0] = torch.tensor([0.0, 9.0, 0.0])[:, None]
    values = [METRICS[name](count(z, labels, reference_for(labels))) for z in (logits, other)]
    assert values[0] == values[1]


@pytest.mark.parametrize("name", sorted(set(NAMES) - SPATIAL))
def test_the_order_of_voxels_does_not_matter(name):
    logits, labels = make_case()
    reference = reference_for(labels)
    order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(1))
    shuffled = FLAT.count(
        logits.reshape(3, -1)[:, order], labels.reshape(-1)[order], reference=reference.reshape(-1)[order.numpy()]
    ).tables
    assert METRICS[name](shuffled) == pytest.approx(METRICS[name](count(logits, labels, reference)), rel=1e-12)


@pytest.mark.parametrize("name", sorted(set(NAMES) - SPATIAL))
def test_two_halves_of_a_case_add_up_to_the_whole(name):
    logits, labels = make_case()
    reference = reference_for(labels)
    halves = [
        FLAT.count(logits[:, part], labels[part], reference=reference[part]).tables
        for part in (slice(0, 4), slice(4, 9))
    ]
    whole = METRICS[name](count(logits, labels, reference))
    assert METRICS[name](halves[0] + halves[1]) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_in_which_nothing_counts_is_undefined(name):
    logits, labels = make_case()
    assert METRICS[name](count(logits, torch.full_like(labels, -1), reference_for(labels))) is None


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(InputError, match=r"no metric is named 'eec'. Choose one of: nll, dice, ece, ba_ece"):
        find_metrics(("nll", "eec"))


def test_bins_that_were_not_counted_are_refused():
    tables = count_logits(*make_case(), bins=(20,)).tables
    with pytest.raises(InputError, match=r"bins is 50, but the tables have \[20\] bins. Count the cases with bins=50"):
        METRICS["ece"](tables)
