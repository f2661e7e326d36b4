import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.metrics.classwise import classwise_calibration_error
from segcal.statistics import count_logits


def make_case(seed=0, num_classes=4, voxels=700):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(num_classes, voxels))
    labels = rng.integers(num_classes - 1, size=voxels)  # the last class is never true
    labels[: voxels // 2] = np.minimum(logits.argmax(0), num_classes - 2)[: voxels // 2]
    return logits, labels


def errors_one_by_one(logits, labels, chosen, bins=15):
    q = np.exp(logits) / np.exp(logits).sum(0)
    errors = []
    for c in range(len(q)):
        error = 0.0
        for b in range(bins):
            inside = [v for v in chosen if (b == 0 or q[c, v] > b / bins) and q[c, v] <= (b + 1) / bins]
            error += abs(sum(q[c, v] - (labels[v] == c) for v in inside)) / len(chosen)
        errors.append(error)
    return errors


@pytest.mark.parametrize("region", ["all", "foreground", "union"])
def test_cece_against_plain_loops_in_every_region(region):
    logits, labels = make_case()
    prediction = logits.argmax(0)
    chosen = {
        "all": range(700),
        "foreground": [v for v in range(700) if labels[v] > 0],
        "union": [v for v in range(700) if labels[v] > 0 or prediction[v] > 0],
    }[region]
    errors = errors_one_by_one(logits, labels, list(chosen))
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables
    name = "cece" if region == "all" else f"cece_{region}"
    assert METRICS[name](tables) == pytest.approx(np.mean(errors), abs=1e-12)
    curve = tables.classwise[region]
    assert classwise_calibration_error(curve, classes="sum") == pytest.approx(sum(errors), abs=1e-12)
    assert classwise_calibration_error(curve, classes="up_to_largest") == pytest.approx(np.mean(errors[:3]), abs=1e-12)
    present = errors[:3] if region != "foreground" else errors[1:3]
    assert classwise_calibration_error(curve, classes="present") == pytest.approx(np.mean(present), abs=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_monai_agrees_where_it_computes_the_same():
    from monai.metrics.calibration import CalibrationErrorMetric

    logits, labels = make_case(2)
    q = torch.softmax(torch.from_numpy(logits), 0)[None]
    hot = torch.nn.functional.one_hot(torch.from_numpy(labels), 4).T[None]
    theirs = CalibrationErrorMetric(num_bins=15)(q.double(), hot)
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables
    assert METRICS["cece"](tables) == pytest.approx(float(theirs.mean()), abs=1e-6)


def test_a_case_without_foreground_has_no_foreground_error():
    tables = count_logits(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([0, 0])).tables
    assert METRICS["cece_foreground"](tables) is None
    assert METRICS["ece_foreground"](tables) is None
    assert METRICS["ece_union"](tables) is None


def test_an_unknown_choice_of_classes_is_refused():
    tables = count_logits(*map(torch.from_numpy, make_case())).tables
    with pytest.raises(
        InputError, match=r"no classes is named 'some'. Choose one of: all, present, up_to_largest, sum"
    ):
        METRICS["cece"].with_options(classes="some")(tables)
