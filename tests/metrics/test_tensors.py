"""Metrics of plain tensors, against answers in numpy that import nothing from segcal."""

import numpy as np
import pytest
import torch

import segcal
from segcal import InputError
from segcal.metrics import METRICS
from segcal.metrics.tensors import Meter


def batch(seed=0, items=3, classes=4, space=(9, 14)):
    rng = np.random.default_rng(seed)
    labels = np.zeros((items, *space), np.int64)
    labels[:, 2:7, 3:11] = 1
    labels[:, 5:8, 6:13] = 2
    labels[1:, :2, :4] = 3
    logits = 2.0 * np.moveaxis(np.eye(classes)[labels], -1, 1) + rng.normal(size=(items, classes, *space))
    return logits, labels


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def voxels_of(logits, labels, ignore=None):
    """Confidence, prediction, probabilities (n, C) and truth of the voxels that count, per case."""
    for q, y in zip(softmax(logits), labels, strict=True):
        flat, truth = q.reshape(len(q), -1).T, y.reshape(-1)
        kept = np.ones(len(truth), bool) if ignore is None else truth != ignore
        yield flat[kept], truth[kept]


def ece(q, y, bins):
    confidence, right = q.max(1), q.argmax(1) == y
    slot = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    return sum(abs((right - confidence)[slot == b].sum()) for b in range(bins)) / len(y)


def ace(q, y, bins=15):
    confidence, right = q.max(1), q.argmax(1) == y
    slot = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    return np.mean([abs((right - confidence)[slot == b].mean()) for b in np.unique(slot)])


def dice(q, y):
    guess, scores = q.argmax(1), []
    for c in range(1, q.shape[1]):
        if (y == c).any() or (guess == c).any():
            scores.append(2 * ((y == c) & (guess == c)).sum() / ((y == c).sum() + (guess == c).sum()))
    return np.mean(scores)


def miou(q, y):
    guess = q.argmax(1)
    pairs = [((y == c) & (guess == c), (y == c) | (guess == c)) for c in range(q.shape[1])]
    return np.mean([both.sum() / either.sum() for both, either in pairs if either.any()])


ANSWERS = {
    "nll": lambda q, y: -np.log(q[np.arange(len(y)), y]).mean(),
    "brier": lambda q, y: ((q - np.eye(q.shape[1])[y]) ** 2).sum(1).mean(),
    "root_brier": lambda q, y: np.sqrt(((q - np.eye(q.shape[1])[y]) ** 2).sum(1).mean()),
    "entropy": lambda q, _: -(q * np.log(q)).sum(1).mean(),
    "accuracy": lambda q, y: (q.argmax(1) == y).mean(),
    "ece": lambda q, y: ece(q, y, 50),
    "ace": ace,
    "dice": dice,
    "miou": miou,
}
POOLED = ("ace", "miou")


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("average", [None, "voxels"])
def test_one_line_on_tensors_is_the_number_of_plain_numpy(name, average):
    logits, labels = batch()
    labels[:, 0] = 255
    found = getattr(segcal.metrics, name)(
        torch.from_numpy(logits), torch.from_numpy(labels), ignore=255, average=average
    )
    per_case = list(voxels_of(logits, labels, 255))
    if average == "voxels" or (average is None and name in POOLED):
        per_case = [tuple(np.concatenate(each) for each in zip(*per_case, strict=True))]
    assert found == pytest.approx(np.mean([ANSWERS[name](q, y) for q, y in per_case]), rel=1e-9)


def test_arrays_half_types_and_tensors_with_gradients_are_taken():
    logits, labels = batch()
    expected = segcal.metrics.nll(logits, labels)
    assert segcal.metrics.nll(torch.tensor(logits, requires_grad=True), labels.astype(np.uint8)) == expected
    assert segcal.metrics.nll(torch.tensor(logits).half(), labels) == pytest.approx(expected, rel=1e-3)
    assert segcal.metrics.nll(torch.tensor(logits).bfloat16(), labels) == pytest.approx(expected, rel=1e-2)


def test_voxels_without_space_are_one_case():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(500, 5)), rng.integers(5, size=500)
    assert segcal.metrics.ece(logits, labels) == pytest.approx(ece(softmax(logits), labels, 50), rel=1e-9)


def test_the_kind_is_declared():
    logits, labels = batch()
    probs = softmax(logits)
    assert segcal.metrics.ece(probs, labels, kind="probs") == pytest.approx(
        segcal.metrics.ece(logits, labels), rel=1e-9
    )
    foreground = probs[:, 1]
    both = np.log(np.stack([1 - foreground, foreground], 1))
    expected = segcal.metrics.nll(both, labels == 1)
    assert segcal.metrics.nll(foreground, labels == 1, kind="sigmoid") == pytest.approx(expected, rel=1e-9)
    assert segcal.metrics.nll(foreground[:, None], labels == 1, kind="sigmoid") == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputError, match="no kind is named 'prob'"):
        segcal.metrics.ece(probs, labels, kind="prob")
    with pytest.raises(InputError, match="but probabilities lie between 0 and 1"):
        segcal.metrics.ece(logits, labels, kind="probs")


def test_other_bins_and_conventions_are_passed_on():
    logits, labels = batch(2)
    expected = np.mean([ece(q, y, 10) for q, y in voxels_of(logits, labels)])
    assert segcal.metrics.ece(logits, labels, bins=10) == pytest.approx(expected, rel=1e-9)
    whole = segcal.metrics.dice(logits, labels, include_background=True)
    assert whole > segcal.metrics.dice(logits, labels)
    with pytest.raises(InputError, match="bins is 10, but the Dice score, foreground classes is read without"):
        segcal.metrics.dice(logits, labels, bins=10)


def test_every_metric_of_the_registry_is_a_function_of_tensors():
    logits, labels = batch(3, space=(19, 23))
    labels[:, 0] = -1
    reference = np.random.default_rng(0).integers(4, size=labels.shape)
    cases = segcal.ArrayCases(logits=list(logits), labels=list(labels), ignore=-1)
    alone = [name for name, metric in METRICS.items() if "reference" not in metric.needs]
    evaluated = segcal.evaluate(cases, metrics=alone, replicates=10).before
    for name, metric in METRICS.items():
        function = getattr(segcal.metrics, name)
        assert function.__name__ == name
        assert metric.title in function.__doc__
        assert name in dir(segcal.metrics)
        value = function(logits, labels, ignore=-1, reference=None if name in alone else reference)
        if name in alone:
            assert value == pytest.approx(evaluated[name].value, rel=1e-12), name
        assert value != 0 if metric.better is None else value > 0


def test_flips_are_counted_against_a_reference():
    logits, labels = batch(4)
    reference = logits.argmax(1)
    reference[0, 0, :7] = (reference[0, 0, :7] + 1) % 4
    found = segcal.metrics.flip_rate(logits, labels, reference=reference)
    assert found == pytest.approx(7 / labels[0].size / 3)
    with pytest.raises(InputError, match="reference is missing, but flips are counted against one"):
        segcal.metrics.flip_rate(logits, labels)


def test_a_meter_that_is_fed_batch_by_batch_ends_where_one_call_ends():
    logits, labels = batch(5, items=5)
    names = ("ece", "ace", "nll", "ba_ece", "hd95", "miou")
    running = segcal.metrics.meter(*names)
    assert running.compute() == dict.fromkeys(names)
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        running.update(logits[part], torch.from_numpy(labels[part]))
    for name, value in running.compute().items():
        assert value == pytest.approx(getattr(segcal.metrics, name)(logits, labels), rel=1e-12)
    running.reset()
    running.update(logits[:1], labels[:1])
    assert running.compute()["ece"] == segcal.metrics.ece(logits[:1], labels[:1])


def test_a_batch_that_is_refused_leaves_no_trace():
    logits, labels = batch(6)
    running = segcal.metrics.meter("ece", "nll", "miou")
    running.update(logits[:1], labels[:1])
    before = running.compute()
    wrong = labels.copy()
    wrong[2, 0, 0] = 9
    with pytest.raises(InputError, match="labels contains 9, but there are 4 classes"):
        running.update(logits, wrong)
    with pytest.raises(InputError, match=r"logits has 2 classes, but the batches before had 4. Use one meter"):
        running.update(logits[:, :2], labels.clip(0, 1))
    assert running.compute() == before
    running.reset()
    running.update(logits[:, :2], labels.clip(0, 1))


def test_where_nothing_counts_nothing_is_defined():
    logits, labels = batch()
    assert segcal.metrics.ece(logits, np.full_like(labels, 255), ignore=255) is None
    assert segcal.metrics.miou(logits, np.full_like(labels, 255), ignore=255) is None


def test_shapes_that_do_not_fit_and_voxel_sizes_that_are_none_are_refused():
    for logits, labels, text in (
        (np.zeros((3, 5, 6)), np.zeros((5, 6), int), r"labels \(5, 6\), but .*pass logits\[None\]"),
        (np.zeros((2, 3, 5)), np.zeros((2, 6), int), r"labels has space \(6,\), but its logits have \(5,\)"),
        (np.zeros(4), np.zeros(4, int), r"logits has shape \(4,\) and labels \(4,\)"),
    ):
        with pytest.raises(InputError, match=text):
            segcal.metrics.ece(logits, labels)
    logits, labels = np.zeros((1, 2, 5, 4)), np.zeros((1, 5, 4), int)
    for spacing in ((1, 2, 3), (1, -2), 2, (1, float("nan")), ("a", 1)):
        with pytest.raises(InputError, match=r"spacing is .*, but (one positive voxel size|a list, each entry a)"):
            segcal.metrics.hd(logits, labels, spacing=spacing)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match=r"no average is named 'mean'. Choose one of: cases, voxels"):
        Meter({"ece": METRICS["ece"]}, average="mean")
    with pytest.raises(InputError, match="average is 'voxels', but distances between surfaces belong to one case"):
        segcal.metrics.meter("hd", average="voxels")
    with pytest.raises(InputError, match="no metric is named 'eec'"):
        segcal.metrics.meter("eec")
    for names in ((), (["ece"],)):
        with pytest.raises(InputError, match=r"but names of metrics are needed. Write for example meter"):
            segcal.metrics.meter(*names)
    with pytest.raises(AttributeError, match="has no attribute 'eec'"):
        segcal.metrics.eec  # noqa: B018


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu_give_the_same_numbers():
    logits, labels = (torch.from_numpy(each) for each in batch(7))
    for name in ("ece", "ba_ece", "dice", "hd95", "cece"):
        function = getattr(segcal.metrics, name)
        for there in (labels.cuda(), labels):
            assert function(logits.cuda(), there) == pytest.approx(function(logits, labels), rel=1e-9)
    with pytest.raises(InputError, match="labels contains 99"):
        segcal.metrics.ece(logits.cuda(), torch.full_like(labels, 99).cuda())


def test_probabilities_that_nobody_declared_are_doubted():
    probs = np.full((1, 2, 3), 0.5)
    probs[:, 0, 0], probs[:, 1, 0] = 0.9, 0.1
    with pytest.warns(segcal.SuspicionWarning, match="declared as logits, but all lie in 0 to 1 and sum to 1"):
        segcal.metrics.nll(probs, np.zeros((1, 3), int))
