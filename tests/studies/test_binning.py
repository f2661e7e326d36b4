"""Binning: the numbers of the benchmark against plain loops, and changed places by hand."""

import numpy as np
import pytest
from msgspec import structs

from segcal.studies.binning import binning_figure, binning_outcome, summary_binning
from segcal.studies.study import NothingToStudyError
from segcal.summary import Estimate


def plain_gaps(confidence, right, bins):
    gaps, sizes = [], []
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            gaps.append(abs(right[inside].mean() - confidence[inside].mean()))
            sizes.append(inside.sum())
    return np.array(gaps), np.array(sizes)


def outcomes(setting, repeat):
    """Confidence and correctness of each uncalibrated test case of a repeat."""
    for case in setting.split(setting.tasks[1], "mean_logits", repeat).test:
        probs = np.exp(case.logits.numpy().astype(float))
        probs /= probs.sum(0)
        yield probs.max(0).ravel(), (probs.argmax(0) == case.labels.numpy()).ravel()


@pytest.mark.parametrize("bins", [20, 30, 40, 50])
def test_ece_is_the_mean_over_cases_and_repeats(setting, bins):
    found = summary_binning(setting.summary).data.tasks["plain"].pipelines["identity(mean_logits)"]["ece"][str(bins)]
    means = []
    for repeat in (0, 1):
        pairs = [plain_gaps(*outcome, bins) for outcome in outcomes(setting, repeat)]
        means.append(np.mean([(gaps * sizes).sum() / sizes.sum() for gaps, sizes in pairs]))
    assert found.value == pytest.approx(np.mean(means), abs=1e-6)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("bins", [15, 20, 30, 40])
def test_ace_is_of_all_voxels_of_a_repeat(setting, bins):
    found = summary_binning(setting.summary).data.tasks["plain"].pipelines["identity(mean_logits)"]["ace"][str(bins)]
    repeats = []
    for repeat in (0, 1):
        columns = zip(*outcomes(setting, repeat), strict=True)
        repeats.append(plain_gaps(*(np.concatenate(column) for column in columns), bins)[0].mean())
    expected = (np.mean(repeats), min(repeats), max(repeats))
    assert (found.value, found.low, found.high) == pytest.approx(expected, abs=1e-6)


def numbers(ece, ace):
    def one(values):
        return {str(bins): Estimate(value, value, value) for bins, value in values.items()}

    return {"ece": one(ece), "ace": one(ace)}


def test_pairs_that_change_places_are_counted_against_the_reference():
    steady = numbers(dict.fromkeys((20, 30, 40, 50), 0.2), dict.fromkeys((15, 20, 30, 40), 0.2))
    restless = numbers({20: 0.3, 30: 0.3, 40: 0.1, 50: 0.3}, {15: 0.1, 20: 0.3, 30: 0.3, 40: 0.1})
    study = binning_outcome({"toy": {"a": steady, "b": restless}})
    changed = study.data.tasks["toy"].changed_pairs
    assert changed["ece"] == {"20": 0, "30": 0, "40": 1, "50": 0}
    assert changed["ace"] == {"15": 0, "20": 1, "30": 1, "40": 0}
    table = study.tables["figure6_binning"]
    assert table.notes == (
        "toy: of 1 pairs of pipelines, at most 1 change places in ECE (against 50 bins) and 1 in ACE (against 15).",
    )
    heading = table.to_markdown().splitlines()[2]
    assert heading.count("ECE") == heading.count("ACE") == 4


def test_a_benchmark_without_these_metrics_has_nothing_to_study(setting):
    rows = tuple(structs.replace(row, metrics={"nll": row.metrics["nll"]}) for row in setting.summary.results)
    with pytest.raises(NothingToStudyError, match="no ece and ace among its metrics"):
        summary_binning(structs.replace(setting.summary, results=rows))


def test_bins_are_drawn_for_the_pipelines_asked_for_and_undefined_ones_leave_a_gap(texts):
    def estimate(value):
        return Estimate(value, value - 0.01, value + 0.01)

    own = {
        "ece": {"20": estimate(0.1), "50": estimate(0.2)},
        "ace": {"15": Estimate(None, None, None), "20": estimate(0.3)},
    }
    figure = binning_figure({"a": own, "b": own}, shown=["b", "gone"])
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[20, 0.1], [50, 0.2]]
    assert "b" in texts(figure)
    assert "a" not in texts(figure)
