import numpy as np
import pytest

from segcal.demo.tasks.brain import FLUID, SPACE, Noise, draw_brain, mixed, share


def test_shares_are_soft_at_the_surface():
    distance = np.array([-2.0, -0.25, 0.0, 0.25, 2.0])
    assert share(distance).tolist() == [1, 0.75, 0.5, 0.25, 0]


def test_mixing_replaces_a_share_of_a_voxel():
    contrasts = np.ones((4, 1, 1, 2), np.float32)
    part = np.array([[[0.0, 0.5]]], np.float32)
    assert mixed(contrasts, part, (3.0, 1.0, 0.0, -1.0))[:, 0, 0, 1].tolist() == [2, 1, 0.5, 0]
    assert (mixed(contrasts, part, (3.0, 1.0, 0.0, -1.0))[..., 0] == 1).all()


def test_two_fields_of_one_size_are_not_the_same():
    noise = Noise(np.random.default_rng(0))
    first, second = noise(2.0), noise(2.0)
    assert np.sort(first.flat) == pytest.approx(np.sort(second.flat))
    assert abs((first * second).mean()) < 0.3


def test_a_brain_has_two_halves_fluid_in_the_middle_and_nothing_outside():
    brain = draw_brain(np.random.default_rng(0), Noise(np.random.default_rng(1)))
    assert brain.contrasts.shape == (4, *SPACE)
    assert 0.3 < brain.inside.mean() < 0.7
    assert (brain.white[brain.depth > 1] == 0).all()
    middle = brain.ventricle > 0.9
    assert middle.any()
    assert brain.contrasts[2][middle].mean() == pytest.approx(FLUID[2], abs=0.1)
    side = brain.axes[1][middle]
    assert side.min() < -1
    assert side.max() > 1
