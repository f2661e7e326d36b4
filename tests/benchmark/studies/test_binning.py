"""Binning: ECE and ACE of every number of bins against plain loops, and changed places by hand."""

import numpy as np
import pytest
import torch

from segcal.benchmark.studies.binning import binning_study, run_binning
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.statistics.reliability import Curve


def make_cases(seed):
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(3, 11, 13)).astype("float32") for _ in range(3)]
    labels = [(z + 2 * rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    return ArrayCases(logits, labels), logits, labels


def plain_gaps(confidence, right, bins):
    gaps, sizes = [], []
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            gaps.append(abs(right[inside].mean() - confidence[inside].mean()))
            sizes.append(inside.sum())
    return np.array(gaps), np.array(sizes)


def outcome(logits, labels):
    probs = np.exp(logits.astype(float))
    probs /= probs.sum(0)
    return probs.max(0).ravel(), (probs.argmax(0) == labels).ravel()


@pytest.fixture(scope="module")
def study():
    hot = make_calibrator("ts", 3)
    with torch.no_grad():
        hot.inverse_temperature.fill_(0.4)
    repeats = [make_cases(seed)[0] for seed in (0, 1)]
    return run_binning(
        {"toy": {"none": [(cases, None) for cases in repeats], "ts": [(cases, hot) for cases in repeats]}}
    )


@pytest.mark.parametrize(("name", "scale"), [("none", 1.0), ("ts", 0.4)])
def test_numbers_agree_with_a_plain_loop(study, name, scale):
    found = study.data["tasks"]["toy"]["pipelines"][name]
    for bins in (20, 30, 40, 50):
        means = []
        for seed in (0, 1):
            _, logits, labels = make_cases(seed)
            values = []
            for z, truth in zip(logits, labels, strict=True):
                gaps, sizes = plain_gaps(*outcome(scale * z, truth), bins)
                values.append((gaps * sizes).sum() / sizes.sum())
            means.append(np.mean(values))
        one = found["ece"][str(bins)]
        assert one["value"] == pytest.approx(np.mean(means), abs=1e-6)
        assert one["low"] < one["value"] < one["high"]
    for bins in (15, 20, 30, 40):
        repeats = []
        for seed in (0, 1):
            _, logits, labels = make_cases(seed)
            pairs = [outcome(scale * z, truth) for z, truth in zip(logits, labels, strict=True)]
            confidence, right = (np.concatenate(column) for column in zip(*pairs, strict=True))
            repeats.append(plain_gaps(confidence, right, bins)[0].mean())
        one = found["ace"][str(bins)]
        assert (one["value"], one["low"], one["high"]) == pytest.approx(
            (np.mean(repeats), min(repeats), max(repeats)), abs=1e-6
        )


def test_the_table_has_a_column_for_every_number_of_bins(study):
    heading = study.tables["figure6_binning"].to_markdown().splitlines()[2]
    assert heading.count("ECE") == heading.count("ACE") == 4
    assert "ACE 15 bins" in heading
    assert "of 1 pairs of pipelines" in study.tables["figure6_binning"].notes[0]


def curves(gaps):
    """One voxel in the last bin, with the given gap for each number of bins."""
    made = {}
    for bins, gap in gaps.items():
        count = np.zeros(bins, int)
        count[-1] = 1
        made[bins] = Curve(count, count.copy(), np.where(count, 1 - gap, 0.0))
    return made


def test_pairs_that_change_places_are_counted_against_the_reference():
    steady = dict.fromkeys((15, 20, 30, 40, 50), 0.2)
    restless = {15: 0.1, 20: 0.3, 30: 0.3, 40: 0.1, 50: 0.3}
    study = binning_study(
        {"toy": {"a": [{"x": curves(steady)}], "b": [{"x": curves(restless)}]}}, seed=0, replicates=10
    )
    changed = study.data["tasks"]["toy"]["changed_pairs"]
    assert changed["ece"] == {"20": 0, "30": 0, "40": 1, "50": 0}
    assert changed["ace"] == {"15": 0, "20": 1, "30": 1, "40": 0}
    assert study.tables["figure6_binning"].notes == (
        "toy: of 1 pairs of pipelines, at most 1 change places in ECE (against 50 bins) and 1 in ACE (against 15).",
    )
