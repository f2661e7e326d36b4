import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, fit, make_calibrator
from segcal.fitting.batches import TileBatches, VoxelBatches
from segcal.fitting.crops import TileSource, Window
from segcal.fitting.voxels import Voxels

CPU = torch.device("cpu")


def images(count, classes=3, space=(20, 17), seed=0, ignored=0.2):
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(classes, *space)).astype("float32") for _ in range(count)]
    labels = [rng.integers(classes, size=space) for _ in range(count)]
    for each in labels:
        each[rng.random(space) < ignored] = 9
    return ArrayCases(logits, labels, ignore=9)


def mean_nll(calibrator, cases):
    total = count = 0.0
    with torch.no_grad():
        for case in cases:
            own = calibrator(case.logits[None])[0].double()
            for label in range(case.logits.shape[0]):
                total -= float(own[label][case.labels == label].sum())
            count += int((case.labels >= 0).sum())
    return total / count


@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
def test_all_tiles_give_the_mean_nll_of_the_cases(name, randomise):
    calibrator = randomise(make_calibrator(name, 3))
    cases = images(6)
    tiles = TileSource(cases, Window(2, 8, 4), FitConfig(voxels=100_000)).draw(0)
    batches = TileBatches(lambda number: tiles, CPU, 0, whole=name == "ibts")
    assert batches.mean(calibrator) == pytest.approx(mean_nll(calibrator, cases), rel=1e-5)
    assert (batches.count, batches.used) == (1, sum(int((case.labels >= 0).sum()) for case in cases))


def test_a_round_visits_everything_once_in_an_order_of_its_own(make_data):
    logits, labels = make_data(3, 70_000, dtype="float32")
    logits[0] = np.arange(70_000)
    voxels = Voxels(torch.from_numpy(logits), torch.from_numpy(labels.astype("int32")), torch.ones(70_000))
    batches = VoxelBatches([voxels], 70_000, CPU, 0)
    seen = []

    class Watching(type(make_calibrator("identity", 3))):
        def scores(self, logits, context=None):
            seen[-1].append(logits[:, 0])
            return logits

    for number in (1, 2, 1):
        seen.append([])
        list(batches.losses(Watching(3), number))
    first, second, again = (torch.cat(parts) for parts in seen)
    assert torch.equal(first.sort().values, torch.from_numpy(logits[0]))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_batch_without_a_labelled_voxel_is_passed_over(randomise):
    cases = images(9)
    tiles = TileSource(cases, Window(2, 8, 4), FitConfig(voxels=100_000)).draw(0)
    tiles.labels[:8] = -1
    calibrator = randomise(make_calibrator("ibts", 3))
    batches = TileBatches(lambda number: tiles, CPU, 0, whole=True)
    for number in range(1, 6):
        losses = [float(loss.detach()) for loss in batches.losses(calibrator, number)]
        assert len(losses) == 1
        assert np.isfinite(losses).all()


def grouped_images(count, groups=None, seed=0, space=(40, 34)):
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(3, *space)).astype("float32") for _ in range(count)]
    labels = [(each / 2 + rng.gumbel(size=each.shape)).argmax(0) for each in logits]
    return ArrayCases(logits, labels, groups=groups)


CONFIG = FitConfig(max_steps=3, voxels=5000)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_without_validation_a_fifth_of_the_cases_is_held_back(name):
    certificate = fit(name, grouped_images(10), config=CONFIG).certificate
    held = certificate.details["held_back"]
    assert len(held) == 2
    assert certificate.voxels_available == 8 * 40 * 34
    assert certificate.validation_nll == min(certificate.curve)
    assert fit(name, grouped_images(10), config=CONFIG).certificate == certificate


@pytest.mark.parametrize("name", ["ibts", "pts"])
def test_a_single_case_holds_back_a_fifth_of_itself_and_says_so(name):
    certificate = fit(name, grouped_images(1), config=CONFIG).certificate
    assert "a fifth of the" in certificate.details["held_back"]
    assert certificate.validation_nll <= certificate.curve[0]
    assert certificate.voxels_available == 40 * 34


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_a_single_tiny_case_is_fitted_on_all_it_has(name):
    certificate = fit(name, grouped_images(1, space=(2, 2)), config=CONFIG).certificate
    assert certificate.voxels == 4
    assert np.isfinite(certificate.validation_nll)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_all_voxels_means_other_tiles_in_every_round(name):
    cases, held = grouped_images(4), grouped_images(2, seed=1)
    certificate = fit(name, cases, validation=held, config=FitConfig(max_steps=3, voxels="all")).certificate
    assert certificate.voxels_available == 4 * 40 * 34
    assert np.isfinite(certificate.curve).all()
