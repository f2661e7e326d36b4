import numpy as np
import pytest

from segcal.demo.tasks import TASKS
from segcal.demo.tasks.tumour import ENHANCING, NECROSIS, SWELLING
from segcal.types import IGNORED


@pytest.fixture(scope="module")
def samples():
    return [TASKS["tumour"].sample(index) for index in range(10)]


def test_more_than_95_percent_of_the_voxels_are_background(samples):
    counted = np.concatenate([labels[labels != IGNORED] for _, labels, _ in samples])
    assert (counted == 0).mean() > 0.95
    assert all((labels > 0).any() for _, labels, _ in samples)


def test_there_is_no_data_outside_the_field_of_view_and_it_is_a_large_part(samples):
    for image, labels, mask in samples:
        assert (image[:, ~mask] == 0).all()
        assert np.array_equal(labels == IGNORED, ~mask)
    assert 0.2 < np.mean([1 - mask.mean() for _, _, mask in samples]) < 0.6


def distance_to_the_middle(labels, kind):
    """Return the mean distance of a class's voxels to the centre of all tumour voxels, in millimetres."""
    spacing = np.array(TASKS["tumour"].spacing)
    centre = np.argwhere(labels > 0).mean(axis=0)
    return np.linalg.norm((np.argwhere(labels == kind) - centre) * spacing, axis=1).mean()


def test_regions_are_nested(samples):
    """The core is inside the rim, and the rim is inside the swelling, in most cases with all three."""
    nested = []
    for _, labels, _ in samples:
        if all((labels == kind).sum() > 20 for kind in (NECROSIS, ENHANCING, SWELLING)):
            inner, rim, outer = (distance_to_the_middle(labels, kind) for kind in (NECROSIS, ENHANCING, SWELLING))
            nested.append(inner < rim < outer)
    assert len(nested) >= 4
    assert np.mean(nested) > 0.6


def test_contrast_agent_lights_up_the_rim(samples):
    lit = [image[1][labels == ENHANCING].mean() - image[0][labels == ENHANCING].mean() for image, labels, _ in samples
           if (labels == ENHANCING).sum() > 20]  # fmt: skip
    assert np.mean(lit) > 0.15
