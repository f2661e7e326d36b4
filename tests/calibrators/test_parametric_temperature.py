import math

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators import registry_entry
from segcal.errors import InputError


def plain(logits, weights, biases, largest):
    """Probabilities of one voxel, in plain Python."""
    top = max(logits)
    total = math.log(sum(math.exp(z - top) for z in logits)) + top
    values = sorted((z - total for z in logits), reverse=True)[:largest]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        values = [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        values = [max(v, 0.0) for v in values] if number < len(weights) - 1 else values
    temperature = 1e-3 + math.log(1 + math.exp(values[0] + math.log(math.exp(1 - 1e-3) - 1)))
    scores = [math.exp((z - top) / temperature) for z in logits]
    return [score / sum(scores) for score in scores]


@pytest.mark.parametrize(("classes", "largest"), [(2, 10), (5, 10), (5, 3), (12, 10)])
def test_it_is_the_plain_formula(classes, largest, voxels, randomise):
    calibrator = randomise(make_calibrator("pts", classes, largest=largest))
    weights = [weight.tolist() for weight in calibrator.network.weights]
    biases = [bias.tolist() for bias in calibrator.network.biases]
    logits = voxels(classes, 30)
    expected = [plain(row, weights, biases, largest) for row in logits.tolist()]
    np.testing.assert_allclose(calibrator(logits).exp().detach().numpy(), expected, rtol=1e-9)


def test_the_names_of_the_classes_do_not_matter(voxels, randomise):
    calibrator = randomise(make_calibrator("pts", 5))
    logits, order = voxels(5), torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(calibrator(logits[:, order]), calibrator(logits)[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "count"), [(2, 2 * 5 + 5 + 30 + 6), (20, 10 * 5 + 5 + 30 + 6)])
def test_the_network_has_two_layers_of_five_as_in_the_paper(classes, count):
    calibrator = make_calibrator("pts", classes)
    assert (calibrator.num_parameters(), calibrator.num_identifiable()) == (count, count - 10)


def test_options_are_written_down_when_they_are_not_the_defaults():
    assert registry_entry(make_calibrator("pts", 5)) == ("pts", {})
    entry = registry_entry(make_calibrator("pts", 5, hidden=[7], largest=2))
    assert entry == ("pts", {"hidden": (7,), "largest": 2})


@pytest.mark.parametrize("largest", [0, -1, 2.0, True])
def test_a_count_that_is_none_is_refused(largest):
    with pytest.raises(InputError, match=r"largest is .*, but a count of at least 1 is needed"):
        make_calibrator("pts", 5, largest=largest)
