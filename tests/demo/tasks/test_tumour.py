import numpy as np
import pytest

from segcal.demo.tasks import TASKS
from segcal.demo.tasks.tumour import ENHANCING, FLUID, NECROSIS, SPACE, SWELLING, NoiseFields, draw_brain, mixed, share
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


def test_shares_are_soft_at_the_surface():
    distance = np.array([-2.0, -0.25, 0.0, 0.25, 2.0])
    assert share(distance).tolist() == [1, 0.75, 0.5, 0.25, 0]


def test_mixing_replaces_a_share_of_a_voxel():
    contrasts = np.ones((4, 1, 1, 2), np.float32)
    part = np.array([[[0.0, 0.5]]], np.float32)
    assert mixed(contrasts, part, (3.0, 1.0, 0.0, -1.0))[:, 0, 0, 1].tolist() == [2, 1, 0.5, 0]
    assert (mixed(contrasts, part, (3.0, 1.0, 0.0, -1.0))[..., 0] == 1).all()


def test_two_fields_of_one_size_are_not_the_same():
    noise = NoiseFields(np.random.default_rng(0))
    first, second = noise(2.0), noise(2.0)
    assert np.sort(first.flat) == pytest.approx(np.sort(second.flat))
    assert abs((first * second).mean()) < 0.3


def test_a_brain_has_two_halves_fluid_in_the_middle_and_nothing_outside():
    brain = draw_brain(np.random.default_rng(0), NoiseFields(np.random.default_rng(1)))
    assert brain.contrasts.shape == (4, *SPACE)
    assert 0.3 < brain.inside.mean() < 0.7
    assert (brain.white[brain.depth > 1] == 0).all()
    middle = brain.ventricle > 0.9
    assert middle.any()
    assert brain.contrasts[2][middle].mean() == pytest.approx(FLUID[2], abs=0.1)
    side = brain.axes[1][middle]
    assert side.min() < -1
    assert side.max() > 1
