"""One factor: members, model sizes, crops and scales; models that are run again, and what cannot be run."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from segcal import evaluate
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.studies import STUDIES
from segcal.studies.factor import in_crops, over_scales, predicted_again, run_models
from segcal.studies.study import ChangedCases, NothingToStudyError

RNG = np.random.default_rng(0)
LOGITS, LABELS, IMAGE = RNG.normal(size=(3, 4, 5)), RNG.integers(3, size=(4, 5)), RNG.random((1, 4, 5))


def pointwise(image):
    return torch.stack([image[0], image[0] ** 2, -image[1]])


def test_each_number_of_members_is_measured(setting, studied, tables):
    found = studied["ensemble_size"].tasks["toy"]
    assert list(found) == ["1", "2", "3"]
    for size in (1, 3):
        cases = setting.some(setting.protocol.open(setting.tasks[0], "mean_logits", size).cases)
        result = evaluate(cases, metrics=["ece", "miou"]).before
        assert found[str(size)]["ece"].value == result["ece"].value
        assert found[str(size)]["miou"].value == result["miou"].value
    assert found["3"]["miou"].value > found["1"]["miou"].value
    assert "| 3 |" in tables("ensemble_size", studied["ensemble_size"])


def test_a_single_member_is_no_ensemble(setting, changed):
    tasks = tuple(structs.replace(task, members=1) for task in setting.protocol.tasks)
    with pytest.raises(NothingToStudyError, match="no task has two members"):
        STUDIES["ensemble_size"].run(changed(tasks=tasks))


def test_models_are_ordered_by_their_size(setting, studied):
    found = studied["model_size"].tasks["mean_logits"]
    assert list(found) == ["toy (100)", "plain (400)"]
    assert found["toy (100)"]["ece"] == setting.summary.numbers("toy", "identity(mean_logits)")["ece"]


def test_models_of_embedded_tasks_are_run_in_every_way(studied):
    crops, scales = (studied[name].tasks for name in ("crop_size", "test_scales"))
    assert list(crops) == list(scales) == ["toy", "plain"]
    errors = [[numbers["ece"].value for numbers in found["toy"].values()] for found in (crops, scales)]
    assert [len(own) for own in errors] == [3, 3]
    assert all(0 < error < 1 for own in errors for error in own)
    # Crops do not matter to a model without neighbours.
    assert (len(set(errors[0])), len(set(errors[1])), next(iter(scales["toy"]))) == (1, 3, "1")


def test_models_are_compared_on_the_same_cases():
    rng = np.random.default_rng(0)
    images = [rng.random((2, 6, 7)).astype("float32") for _ in range(3)]
    labels = [image.argmax(0) for image in images]
    cases = ArrayCases([np.zeros((2, 6, 7), "float32")] * 3, labels, images=images)
    ways = {"good": lambda model: model, "bad": lambda model: lambda image: -model(image)}
    found = run_models(lambda cases: ways, [("toy", cases, lambda image: 9 * image)]).tasks["toy"]
    assert (found["good"]["miou"].value, found["bad"]["miou"].value) == (1.0, 0.0)
    expected = torch.softmax(9 * torch.as_tensor(np.stack(images)), 1).amax(1)
    assert found["good"]["ece"].value == pytest.approx(float((1 - expected).mean()), rel=1e-5)


def test_logits_come_from_the_model_and_the_rest_from_the_case():
    def read(model, **given):
        cases = ArrayCases([LOGITS], [LABELS], ids=["a"], **given)
        return ChangedCases(cases, partial(predicted_again, model)).read("a")

    case = read(lambda image: image.repeat(3, 1, 1), images=[IMAGE])
    assert torch.equal(case.logits, torch.as_tensor(IMAGE).repeat(3, 1, 1))
    assert torch.equal(case.labels, torch.as_tensor(LABELS))
    with pytest.raises(InputError, match="case 'a' has no image, but a model needs one"):
        read(lambda image: image)
    with pytest.raises(InputError, match=r"the model returns shape \(1, 4, 5\) for case 'a', but its logits have"):
        read(lambda image: image, images=[IMAGE])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_crops_of_a_model_without_neighbours_change_nothing(height, width, size):
    image = torch.arange(2.0 * height * width).reshape(2, height, width)
    assert torch.equal(in_crops(pointwise, size)(image), pointwise(image))


def test_every_crop_is_full_and_the_last_one_counts_where_two_overlap():
    seen = []

    def numbered(image):
        seen.append(tuple(image.shape[1:]))
        return torch.full((3, *image.shape[1:]), float(len(seen)))

    found = in_crops(numbered, 4)(torch.zeros(1, 4, 10))
    assert seen == [(4, 4)] * 3
    assert found[0, 0].tolist() == [1] * 4 + [2] * 2 + [3] * 4
    volume = torch.rand(2, 3, 5, 7)
    assert torch.equal(in_crops(pointwise, 2)(volume), pointwise(volume))


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
