"""Scales of the input: brought back to the size of the image, and pooled."""

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.studies.scales import STUDY, over_scales


def pointwise(image):
    return torch.stack([image[0], image[0] ** 2, -image[1]])


def test_one_scale_of_one_is_the_model_itself():
    image = torch.rand(2, 6, 8)
    torch.testing.assert_close(over_scales(pointwise, [1.0], "mean_logits")(image), pointwise(image))


def test_scales_are_pooled_as_probabilities_at_the_size_of_the_image():
    values = {(8, 12): 1.0, (4, 6): 3.0, (12, 18): -2.0}

    def by_size(image):
        logits = torch.zeros(2, *image.shape[1:])
        logits[0] = values[tuple(image.shape[1:])]
        return logits

    found = over_scales(by_size, [1.0, 0.5, 1.5])(torch.rand(1, 8, 12))
    assert found.shape == (2, 8, 12)
    expected = np.mean([1 / (1 + np.exp(-value)) for value in values.values()])
    np.testing.assert_allclose(found.softmax(0)[0], expected, rtol=1e-5)


def test_an_image_is_resized_smoothly_and_brought_back():
    ramp = torch.linspace(0, 1, 32).expand(2, 16, 32).clone()
    found = over_scales(lambda image: 5 * image, [0.5])(ramp)
    inside = slice(4, -4)
    torch.testing.assert_close(
        found[:, :, inside].softmax(0), (5 * ramp)[:, :, inside].softmax(0), rtol=0.02, atol=0.02
    )


def test_scales_that_are_none_are_refused():
    with pytest.raises(InputError, match=r"scales is \(1.0, -1.0\), but positive factors are needed"):
        over_scales(pointwise, [1.0, -1.0])


def test_models_of_embedded_tasks_are_run_in_every_way(setting):
    study = STUDY.run(setting)
    assert list(study.data.tasks) == ["toy", "plain"]
    found = study.data.tasks["toy"]
    assert len(found) == 3
    assert all(0 < numbers["ece"].value < 1 for numbers in found.values())
    assert next(iter(found)) == "1"
    assert len({numbers["ece"].value for numbers in found.values()}) == 3
