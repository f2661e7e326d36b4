import numpy as np
import pytest

from segcal import ArrayCases, FitConfig, fit


def images(count, groups=None, seed=0, space=(40, 34)):
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(3, *space)).astype("float32") for _ in range(count)]
    labels = [(each / 2 + rng.gumbel(size=each.shape)).argmax(0) for each in logits]
    return ArrayCases(logits, labels, groups=groups)


CONFIG = FitConfig(max_steps=3, voxels=5000)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_without_validation_a_fifth_of_the_cases_is_held_back(name):
    certificate = fit(name, images(10), config=CONFIG).certificate
    held = certificate.details["held_back"]
    assert len(held) == 2
    assert certificate.voxels_available == 8 * 40 * 34
    assert certificate.validation_nll == min(certificate.curve)
    assert fit(name, images(10), config=CONFIG).certificate == certificate


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_groups_are_held_back_whole(name):
    groups = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"]
    held = fit(name, images(10, groups), config=CONFIG).certificate.details["held_back"]
    assert len(held) == 2
    assert len({groups[int(case_id)] for case_id in held}) == 1


@pytest.mark.parametrize("name", ["lts_ti", "ibts", "pts", "iop"])
def test_a_single_case_holds_back_a_fifth_of_itself_and_says_so(name):
    certificate = fit(name, images(1), config=CONFIG).certificate
    assert "a fifth of the" in certificate.details["held_back"]
    assert certificate.validation_nll <= certificate.curve[0]
    assert certificate.voxels_available == 40 * 34


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_a_single_tiny_case_is_fitted_on_all_it_has(name):
    certificate = fit(name, images(1, space=(2, 2)), config=CONFIG).certificate
    assert certificate.voxels == 4
    assert np.isfinite(certificate.validation_nll)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_all_voxels_means_other_tiles_in_every_round(name):
    cases, held = images(4), images(2, seed=1)
    certificate = fit(name, cases, validation=held, config=FitConfig(max_steps=3, voxels="all")).certificate
    assert certificate.voxels_available == 4 * 40 * 34
    assert np.isfinite(certificate.curve).all()
