import copy

import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.look_around import with_margin
from segcal.errors import InputError
from segcal.types import Context


def normal(*shape, seed=0):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("classes", "count"), [(2, 357), (5, 882), (20, 3507)])
@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
def test_the_counts_are_those_of_table_2(name, classes, count):
    calibrator = make_calibrator(name, classes)
    assert (calibrator.num_parameters(), calibrator.num_identifiable()) == (count, count)


def test_options_add_what_the_definitions_say():
    assert make_calibrator("lts", 5, image_channels=3).num_parameters() == 882 + (25 * 3 + 1) + (25 * 5 + 1)
    assert make_calibrator("lts", 5, full_3d=True).num_parameters() == 7 * (125 * 5 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"gate_init": "zeros"}, {"canonical": True, "seed": 7}, {"full_3d": True}])
def test_a_new_temperature_is_exactly_one(options, dtype):
    calibrator = make_calibrator("lts", 5, **options)
    logits = normal(2, 5, 12, 14, 13).to(dtype)
    found = calibrator.inner_temperature(logits).detach()
    assert torch.equal(found, torch.ones_like(found))


def test_an_image_branch_starts_at_one_too():
    calibrator = make_calibrator("lts_ti", 5, image_channels=3)
    found = calibrator.inner_temperature(normal(2, 5, 12, 14), Context(100 * normal(2, 3, 12, 14, seed=1)))
    assert torch.equal(found.detach(), torch.ones(2, 1, 4, 6, dtype=torch.float64))


def test_slices_of_a_volume_do_not_see_each_other(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 5))
    logits = normal(2, 5, 6, 9, 8)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        torch.testing.assert_close(calibrator(logits[:, :, order]), calibrator(logits)[:, :, order], rtol=0, atol=1e-12)
        torch.testing.assert_close(calibrator(logits)[:, :, 3], calibrator(logits[:, :, 3]), rtol=0, atol=1e-12)


def test_with_full_3d_kernels_they_do(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 5, full_3d=True))
    logits = normal(1, 5, 9, 6, 7)
    moved = logits.clone()
    moved[:, :, 2] += normal(1, 5, 6, 7, seed=1)
    with torch.no_grad():
        change = (calibrator(moved) - calibrator(logits)).abs().amax(dim=(0, 1, 3, 4))
    assert bool((change[[0, 2, 4, 6]] > 1e-3).all())  # dilation 2 reaches every other slice, up to four away
    assert bool((change[[7, 8]] == 0).all())  # reflection shows the first slices no others


def test_full_3d_kernels_need_a_volume():
    with pytest.raises(InputError, match="logits has 2 axes of space, but with full_3d the calibrator needs 3"):
        make_calibrator("lts_ti", 5, full_3d=True)(normal(2, 5, 9, 8))


def test_a_voxel_sees_four_voxels_far_and_no_further(randomise):
    calibrator = randomise(make_calibrator("lts", 3))
    logits = normal(1, 3, 21, 22)
    moved = logits.clone()
    moved[:, :, 10, 11] += 5
    with torch.no_grad():
        change = (calibrator(moved) - calibrator(logits)).abs().amax(dim=(0, 1))
    rows, columns = (change > 1e-9).nonzero().T
    assert (int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())) == (6, 14, 7, 15)


def trained(calibrator, steps=200):
    """Adam on an image whose temperature depends on the sign of a neighbour's gap times the own one: no sum of both."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 2, 16, 16, generator=generator, dtype=torch.float64)
    gap = logits[:, :1] - logits[:, 1:]
    right = torch.where(gap * gap.roll(2, dims=3) > 0, 6.0, 0.3)
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    labels = (logits / right + noise).argmax(1)
    adam = torch.optim.Adam(calibrator.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        adam.zero_grad()
        loss = -calibrator(logits).gather(1, labels[:, None]).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        adam.step()
    return losses


def test_gates_that_start_at_zero_never_learn_and_leaves_stay_equal():
    """Definitions 1.3: the published start makes the tree one convolution, for ever."""
    calibrator = make_calibrator("lts", 2, gate_init="zeros")
    losses = trained(calibrator)
    assert losses[-1] < losses[0]
    weight, bias = calibrator.tree.weight.detach(), calibrator.tree.bias.detach()
    assert float(weight[0].abs().max()) > 0.01
    assert all(torch.equal(weight[leaf], weight[0]) for leaf in (1, 2, 3))
    assert all(torch.equal(bias[leaf], bias[0]) for leaf in (1, 2, 3))
    assert float(weight[4:].abs().max()) == float(bias[4:].abs().max()) == 0


def test_gates_that_start_at_random_learn_and_fit_better():
    random, zeros = make_calibrator("lts", 2), make_calibrator("lts", 2, gate_init="zeros")
    start = copy.deepcopy(random.tree.weight.detach())
    reached, published = trained(random)[-1], trained(zeros)[-1]
    assert reached < published - 0.005
    assert float((random.tree.weight.detach() - start)[4:].abs().max()) > 0.02
    assert float((random.tree.weight[0] - random.tree.weight[1]).detach().abs().max()) > 0.02


@torch.no_grad()
def test_the_identifiable_count_is_the_rank_of_the_jacobian(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 2))
    logits = normal(1, 2, 28, 29)
    columns = []
    for parameter in calibrator.parameters():
        flat = parameter.view(-1)
        for i in range(flat.numel()):
            value, ends = float(flat[i]), []
            for step in (1e-5, -1e-5):
                flat[i] = value + step
                ends.append(calibrator(logits)[:, 0].flatten())
            flat[i] = value
            columns.append((ends[0] - ends[1]) / 2e-5)
    sizes = torch.linalg.svdvals(torch.stack(columns))
    assert int((sizes > 1e-7 * sizes[0]).sum()) == calibrator.num_identifiable() == len(columns)


def temperatures(calibrator, logits):
    """The temperature of every voxel, from the ratio of a gap before and after."""
    with torch.no_grad():
        scores = calibrator.scores(logits)
    return (logits[:, 0] - logits[:, 1]) / (scores[:, 0] - scores[:, 1])


@pytest.mark.parametrize("space", [(9, 8), (5, 9, 8)])
def test_every_image_has_one_temperature_of_its_own(space, randomise):
    calibrator = randomise(make_calibrator("ibts", 5))
    found = temperatures(calibrator, normal(4, 5, *space)).flatten(1)
    torch.testing.assert_close(found, found[:, :1].expand_as(found), rtol=1e-9, atol=0)
    assert float(found[:, 0].std()) > 1e-3


def test_the_others_in_the_batch_do_not_matter(randomise):
    calibrator = randomise(make_calibrator("ibts", 5))
    logits = normal(4, 5, 9, 8)
    torch.testing.assert_close(calibrator(logits)[2:3], calibrator(logits[2:3]), rtol=0, atol=1e-12)


def test_the_temperature_is_that_of_the_mean_of_the_tree(randomise):
    calibrator = randomise(make_calibrator("ibts", 3))
    logits = normal(1, 3, 7, 8)
    local = make_calibrator("lts_ti", 3)
    local.load_state_dict(calibrator.state_dict())
    per_voxel = temperatures(local, logits)
    c0, eps = 0.53974239, 1e-3
    mean = (torch.log(torch.expm1(per_voxel - eps)) - c0).mean()
    expected = eps + torch.log1p(torch.exp(mean + c0))
    torch.testing.assert_close(temperatures(calibrator, logits)[0, 0, 0], expected, rtol=1e-6, atol=0)


def test_weights_say_how_many_voxels_one_stands_for(randomise):
    """A voxel of weight 2 counts as two, one of weight 0 not at all."""
    calibrator = randomise(make_calibrator("ibts", 3))
    first, second = normal(1, 3, 6, 7), normal(1, 3, 6, 7, seed=1)
    slices = with_margin(torch.stack([first, second], dim=2), (0, 4, 4))
    alone = torch.tensor([1.0, 0.0]).reshape(1, 1, 2, 1, 1).expand(1, 1, 2, 6, 7).double()
    with torch.no_grad():
        found = calibrator.inner_scores(slices, weight=alone)[:, :, 0]
        torch.testing.assert_close(found, calibrator.scores(first), rtol=1e-9, atol=1e-9)
        twice = calibrator.inner_scores(slices, weight=alone + 1)[:, :, 0]
        three = with_margin(torch.stack([first, first, second], dim=2), (0, 4, 4))
        torch.testing.assert_close(twice, calibrator.inner_scores(three)[:, :, 0], rtol=1e-9, atol=1e-9)
