import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, InputError, make_calibrator
from segcal.cases import Case
from segcal.fitting.crops import SIDE, TileSource, Window
from segcal.types import IGNORED

WINDOW = Window(axes=2, side=6, margin=4)


def case_of(space, classes=3, seed=0, ignored=0.0, channels=0, case_id="a"):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(classes, size=space))
    labels[torch.from_numpy(rng.random(space) < ignored)] = IGNORED
    logits = torch.from_numpy(3 * rng.normal(size=(classes, *space))).float()
    image = torch.from_numpy(rng.random((channels, *space))).float() if channels else None
    return Case(case_id, logits, labels, image=image)


def source_of(cases, window, **config):
    return TileSource(cases, window, FitConfig(**config))


def collection(*cases):
    images = [case.image for case in cases] if cases[0].image is not None else None
    return ArrayCases(
        [case.logits for case in cases], [case.labels for case in cases], ignore=IGNORED, images=images
    )  # fmt: skip


@pytest.mark.parametrize("space", [(20, 15), (4, 5), (6, 6), (3, 13, 8), (1, 9, 30)])
def test_all_tiles_together_are_the_case(space):
    case = case_of(space, ignored=0.2)
    tiles = source_of(collection(case), WINDOW, voxels=100_000).draw(0).at(0)
    counted = tiles.labels >= 0
    assert int(counted.sum()) == int((case.labels >= 0).sum())
    assert torch.equal(tiles.labels[counted].bincount(minlength=3), case.labels[case.labels >= 0].bincount(minlength=3))
    inside = int((tiles.inside & (tiles.weight > 0).reshape(-1, 1, 1)).sum())
    assert inside == case.labels.numel()
    assert set(tiles.weight.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("name", "space"), [("lts_ti", (23, 18)), ("lts_ti", (3, 9, 8)), ("lts_ti", (3, 4))])
def test_a_calibrator_gives_tiles_what_it_gives_the_whole_case(name, space, randomise):
    """The margin of a tile shows its voxels what they would see in the image, at its border too."""
    calibrator = randomise(make_calibrator(name, 3))
    case = case_of(space)
    tiles = source_of(collection(case), WINDOW, voxels=100_000).draw(0).at(0)
    used = tiles.weight > 0
    with torch.no_grad():
        expected = calibrator(case.logits[None])[0].flatten(1).T
        found = torch.log_softmax(calibrator.inner_scores(tiles.logits[used]), 1).movedim(1, -1)[tiles.inside[used]]
    torch.testing.assert_close(found.sort(dim=0).values, expected.sort(dim=0).values, rtol=1e-4, atol=1e-4)


def test_tiles_of_volumes_are_cut_in_three_axes_for_kernels_in_three(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 3, full_3d=True))
    window = Window.of(calibrator)
    assert window == Window(axes=3, side=SIDE[3], margin=4)
    case = case_of((5, 18, 17))
    tiles = source_of(collection(case), window, voxels=1_000_000).draw(0).at(0)
    used = tiles.weight > 0
    with torch.no_grad():
        expected = calibrator(case.logits[None])[0].flatten(1).T
        found = torch.log_softmax(calibrator.inner_scores(tiles.logits[used]), 1).movedim(1, -1)[tiles.inside[used]]
    torch.testing.assert_close(found.sort(dim=0).values, expected.sort(dim=0).values, rtol=1e-4, atol=1e-4)


def test_weighted_tiles_estimate_the_sums_of_the_case_without_bias():
    case = case_of((2, 40, 30), ignored=0.3)
    case.logits[:, :, :20] *= 5  # one part is sure of itself, so tiles have different probabilities
    value = case.logits[0].where(case.labels >= 0, 0.0)
    truth = np.array([float(value.sum()), float((case.labels >= 0).sum())])
    source, found = source_of(collection(case), WINDOW, voxels=12 * 36), []
    for number in range(120):
        tiles = source.draw(number).at(0)
        inner = tiles.logits[:, 0, 4:-4, 4:-4].where(tiles.labels >= 0, 0.0)
        weight = tiles.weight.reshape(-1, 1, 1)
        found.append([float((weight * inner).sum()), float((weight * (tiles.labels >= 0)).sum())])
    means, errors = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(means - truth) < 4 * errors)
    assert errors[1] < 0.02 * truth[1]


def test_the_same_number_draws_the_same_tiles_and_another_others():
    cases = collection(case_of((40, 30)), case_of((35, 50), seed=1))
    source = source_of(cases, WINDOW, voxels=200)
    first, same, other = (source.draw(number).logits.clone() for number in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(source_of(cases, WINDOW, voxels=200, seed=1).draw(3).logits, first)


def test_memory_bounds_the_tiles_that_are_kept():
    cases = collection(case_of((300, 300)), case_of((300, 300), seed=1))
    tiles = source_of(cases, WINDOW, voxels=90_000, memory=1 << 20).draw(0)
    assert 0.5 * (1 << 20) < sum(values.nbytes for values in tiles if values is not None) <= 1 << 20


def test_images_are_cut_like_logits():
    case = case_of((20, 15), channels=2)
    case.image[:2] = case.logits[:2]
    window = WINDOW._replace(image_channels=2)
    tiles = source_of(collection(case), window, voxels=100_000).draw(0).at(0)
    assert torch.equal(tiles.image, tiles.logits[:, :2])


@pytest.mark.parametrize(
    ("channels", "text"), [(0, "it has no image, but .* sees images of 2"), (3, "an image of 3 channels, but")]
)
def test_a_case_without_its_image_is_refused(channels, text):
    cases = collection(case_of((20, 15), channels=channels))
    with pytest.raises(InputError, match=f"case '0': .*{text}"):
        source_of(cases, WINDOW._replace(image_channels=2)).draw(0)


def test_cases_that_are_no_images_are_refused():
    with pytest.raises(InputError, match="logits has 1 axes of space, but the calibrator sees neighbours"):
        source_of(collection(case_of((50,))), WINDOW).draw(0)
    with pytest.raises(InputError, match="logits has 2 axes of space, but with full_3d the calibrator needs 3"):
        source_of(collection(case_of((9, 8))), Window(3, 16, 4)).draw(0)


def test_cases_without_a_labelled_voxel_are_refused():
    with pytest.raises(InputError, match="labels of all 1 cases are ignored everywhere"):
        source_of(collection(case_of((9, 8), ignored=2.0)), WINDOW).draw(0)
