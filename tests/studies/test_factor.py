"""Models that are run again: on the same cases, slice by slice, and what cannot be run is said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from segcal.benchmark.tasks import OpenTask
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.studies.crop_size import STUDY
from segcal.studies.factor import RepredictedCases, compare_models, slice_by_slice
from segcal.studies.scales import over_scales
from segcal.studies.study import NothingToStudyError

RNG = np.random.default_rng(0)
LOGITS, LABELS, IMAGE = RNG.normal(size=(3, 4, 5)), RNG.integers(3, size=(4, 5)), RNG.random((1, 4, 5))


def test_models_are_compared_on_the_same_cases():
    rng = np.random.default_rng(0)
    images = [rng.random((2, 6, 7)).astype("float32") for _ in range(3)]
    labels = [image.argmax(0) for image in images]
    cases = ArrayCases([np.zeros((2, 6, 7), "float32")] * 3, labels, images=images)
    found = compare_models(cases, {"good": lambda image: 9 * image, "bad": lambda image: -9 * image})
    assert (found["good"]["miou"].value, found["bad"]["miou"].value) == (1.0, 0.0)
    expected = torch.softmax(9 * torch.as_tensor(np.stack(images)), 1).amax(1)
    assert found["good"]["ece"].value == pytest.approx(float((1 - expected).mean()), rel=1e-5)


def test_tasks_without_a_model_have_nothing_to_run(setting):
    def open_plain(task, pooling, once=False):
        opened = setting.protocol.embedded(task, pooling)
        return OpenTask(opened.cases, opened.background)

    with pytest.raises(NothingToStudyError, match="no task has a model that can be run"):
        STUDY.run(replace(setting, protocol=structs.replace(setting.protocol, embedded=open_plain)))


def test_a_model_of_slices_sees_each_slice_in_its_own_way_and_pictures_pass():
    seen = []

    def shapes(image):
        seen.append(tuple(image.shape))
        return image[:1] * 2

    volume = torch.rand(2, 3, 8, 12)
    found = slice_by_slice(over_scales(shapes, [1.0, 0.5], "mean_logits"))(volume)
    assert found.shape == (1, 3, 8, 12)
    assert seen == [(2, 8, 12), (2, 4, 6)] * 3
    assert torch.equal(slice_by_slice(shapes)(volume), volume[:1] * 2)
    assert torch.equal(slice_by_slice(shapes)(volume[:, 0]), volume[:1, 0] * 2)


def test_logits_come_from_the_model_and_the_rest_from_the_case():
    cases = ArrayCases([LOGITS], [LABELS], images=[IMAGE], ids=["a"])
    case = RepredictedCases(cases, lambda image: image.repeat(3, 1, 1)).read("a")
    assert torch.equal(case.logits, torch.as_tensor(IMAGE).repeat(3, 1, 1))
    assert torch.equal(case.labels, cases.read("a").labels)


def test_a_case_without_an_image_is_refused():
    cases = ArrayCases([LOGITS], [LABELS], ids=["a"])
    with pytest.raises(InputError, match="case 'a' has no image, but a model needs one"):
        RepredictedCases(cases, lambda image: image).read("a")


def test_a_model_of_another_size_is_refused():
    cases = ArrayCases([LOGITS], [LABELS], images=[IMAGE], ids=["a"])
    with pytest.raises(InputError, match=r"the model returns shape \(1, 4, 5\) for case 'a', but its logits have"):
        RepredictedCases(cases, lambda image: image).read("a")
