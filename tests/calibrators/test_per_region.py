"""Calibrators of regions: masks, label maps and nesting are kept for any parameters, in every type."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import segcal
from segcal.calibrators import CALIBRATORS, make_calibrator, make_per_region, registry_entry
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.prior_shift import PriorShift
from segcal.regions import Regions
from segcal.types import Context

NESTED = Regions.declared({"whole": [1, 2, 3], "core": [2, 3], "inner": [3]})
MIXED = Regions.declared({"user": [8, 9, 10], "vehicle": [8, 10], "person": [9, 10], "ground": [3]})
KEEPING = [name for name in CALIBRATORS if make_calibrator(name, 2).preserves and name not in ("selective",)]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def hard_logits(regions, seed, dtype, space=(7, 5)):
    """Logits of all sizes, with exact zeros, exact ties between regions, and neighbours of both."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(2, len(regions), *space)) * 10 ** rng.uniform(-6, 2, size=(2, 1, *space))
    values[rng.random(values.shape) < 0.15] = 0.0
    tied = rng.random((2, *space)) < 0.3
    values = np.where(tied[:, None], values[:, :1] * (1 + 1e-7 * rng.integers(-2, 3, size=values.shape)), values)
    return torch.from_numpy(values).to(dtype)


def drawn(name, regions, randomise, seed):
    """A calibrator of regions with different random parameters for each."""
    inner = [randomise(make_calibrator(name, 2), seed=seed + number) for number in range(len(regions))]
    return PerRegion(regions, inner).eval()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("regions", [NESTED, MIXED], ids=["nested", "overlapping"])
@pytest.mark.parametrize("name", KEEPING)
def test_masks_label_maps_and_nesting_are_kept(name, regions, dtype, randomise):
    for seed in range(3):
        calibrator = drawn(name, regions, randomise, seed)
        logits = hard_logits(regions, seed, dtype)
        with torch.no_grad():
            log_probs, odds = (
                calibrator(logits),
                calibrator.scores(logits.to(torch.promote_types(dtype, torch.float32))),
            )
        assert log_probs.shape == logits.shape
        assert log_probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        before = logits > 0
        assert torch.equal(log_probs.exp() > 0.5, before)
        assert torch.equal(odds > 0, before)
        for case, own in zip(log_probs.exp(), before, strict=True):
            assert torch.equal(regions.label_map(case > 0.5), regions.label_map(own))
        for inner, outer in regions.nested:
            held = logits[:, inner] <= logits[:, outer]
            for values in (odds, log_probs, log_probs.exp().half()):
                assert bool((values[:, inner] <= values[:, outer])[held].all())


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from(["ts", "conic_class"]))
def test_keeping_regions_nested_never_costs_likelihood(seed, name):
    """At every voxel and for every truth that is nested, the loss summed over regions is at most what it was."""
    rng = np.random.default_rng(seed)
    inner = [make_calibrator(name, 2) for _ in NESTED.names]
    for each in inner:
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.copy_(torch.as_tensor(0.01 + 3 * rng.random(parameter.shape)))
    logits = torch.sort(torch.from_numpy(rng.normal(size=(400, 3)) * 3), dim=1, descending=True).values  # nested
    with torch.no_grad():
        alone = torch.stack([
            (lambda s: s[:, 1] - s[:, 0])(each.scores(torch.stack([torch.zeros(400).double(), z], 1)))
            for each, z in zip(inner, logits.T, strict=True)
        ], 1)  # fmt: skip
        together = PerRegion(NESTED, inner).scores(logits)
    assert bool((alone[:, 1] > alone[:, 0]).any() | (alone[:, 2] > alone[:, 1]).any())
    for truth in ([0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]):
        sign = 2.0 * torch.tensor(truth).double() - 1
        losses = [np.logaddexp(0, (-sign * odds).numpy()).sum(1) for odds in (alone, together)]
        assert (losses[1] <= losses[0] + 1e-12).all()


def test_a_new_one_is_the_sigmoid():
    logits = hard_logits(MIXED, 0, torch.float64)
    found = make_per_region("conic", MIXED)(logits)
    expected = 1 / (1 + np.exp(-logits.numpy()))
    np.testing.assert_allclose(found.detach().exp().numpy(), expected, rtol=1e-9, atol=1e-15)


def test_peers_may_move_masks_and_promise_nothing():
    for name in ("platt", "isotonic"):
        assert make_per_region(name, NESTED).preserves is None
        assert "may change masks" in repr(make_per_region(name, NESTED))
    platt = make_per_region("platt", NESTED)
    with torch.no_grad():
        for each in platt.inner:
            each.scale.fill_(2.0)
            each.bias.copy_(torch.tensor([0.0, -1.0]))
    logits = torch.tensor([[0.3, 2.0, -1.0]], dtype=torch.float64)
    np.testing.assert_allclose(platt.scores(logits).detach().numpy(), 2 * logits.numpy() - 1, atol=1e-12)


def test_one_region_and_what_is_known_of_each():
    alone = make_per_region("ts", Regions.declared({"lesion": 1}))
    assert alone(torch.zeros(2, 1, 3)).shape == (2, 1, 3)
    assert alone.num_parameters() == 1
    assert alone.title == "Temperature scaling, per region"
    assert list(make_per_region("ts", NESTED).each) == ["whole", "core", "inner"]


def test_each_region_sees_its_own_surroundings(randomise):
    inner = [randomise(make_calibrator("conic", 2, contexts=["disagreement", "gap_image"]), seed=n) for n in range(3)]
    calibrator = PerRegion(NESTED, inner)
    assert calibrator.sees_members
    assert calibrator.reach(2) == (0, 0)
    logits = hard_logits(NESTED, 1, torch.float64)
    context = Context(disagreement=torch.rand(logits.shape, dtype=torch.float64), mean_gap=torch.rand(2, 3))
    odds = calibrator.scores(logits, context)
    own = Context(disagreement=context.disagreement[:, 0], mean_gap=context.mean_gap[:, 0])
    pair = inner[0].scores(torch.stack([torch.zeros_like(logits[:, 0]), logits[:, 0]], 1), own)
    free = ~((logits[:, 1] <= logits[:, 0]) | (logits[:, 2] <= logits[:, 0]))  # nothing to keep there
    np.testing.assert_array_equal(odds[:, 0][free].detach(), (pair[:, 1] - pair[:, 0])[free].detach())


def test_it_is_made_again_from_plain_data(randomise):
    calibrator = drawn("conic_class", MIXED, randomise, 0)
    name, options = registry_entry(calibrator)
    again = make_calibrator(name, 4, **options)
    again.load_state_dict(calibrator.state_dict())
    assert again.regions == MIXED
    logits = hard_logits(MIXED, 3, torch.float32)
    assert torch.equal(again(logits), calibrator(logits))
    peer = make_calibrator(*(lambda n, o: (n, 3))(*registry_entry(make_per_region("isotonic", NESTED))),
                           **registry_entry(make_per_region("isotonic", NESTED))[1])  # fmt: skip
    assert all(each.foreground for each in peer.inner)


RATIO = torch.tensor([3.0, -5.0, 0.5], dtype=torch.float64)


def shifted(inner, ratio=RATIO):
    found = PriorShift(inner.num_classes, inner)
    found.log_ratio.data = ratio
    return found.requires_grad_(False)


@pytest.fixture
def drawn_logits():
    return torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4


def test_where_the_winner_stays_it_is_bayes_rule(drawn_logits):
    found = shifted(segcal.make_calibrator("ts", 3))(drawn_logits).exp().numpy()
    weighed = np.exp(drawn_logits.numpy()) * np.exp(RATIO.numpy())[:, None, None]
    weighed /= weighed.sum(1, keepdims=True)
    stays = weighed.argmax(1) == drawn_logits.numpy().argmax(1)
    assert 10 < stays.sum() < stays.size
    same = np.broadcast_to(stays[:, None], found.shape)
    np.testing.assert_allclose(found[same], weighed[same], rtol=1e-9)


@pytest.mark.parametrize("inner", ["identity", "ts", "cms_ap", "conic_class"])
def test_the_mask_stays_and_the_offset_is_not_seen(drawn_logits, inner):
    calibrator = shifted(segcal.make_calibrator(inner, 3))
    assert calibrator.preserves == "argmax"
    for dtype in (torch.float16, torch.float32, torch.float64):
        own = drawn_logits.to(dtype)
        assert torch.equal(calibrator(own).argmax(1), own.argmax(1))
    torch.testing.assert_close(calibrator(drawn_logits + 100), calibrator(drawn_logits))


def test_a_calibrator_that_may_change_masks_is_weighed_as_it_is(drawn_logits):
    inner = segcal.make_calibrator("ms_c", 3)
    found = shifted(inner)(drawn_logits).exp().numpy()
    weighed = inner(drawn_logits).detach().exp().numpy() * np.exp(RATIO.numpy())[:, None, None]
    np.testing.assert_allclose(found, weighed / weighed.sum(1, keepdims=True), rtol=1e-9)


def test_without_a_change_it_is_the_inner_calibrator(drawn_logits):
    inner = segcal.make_calibrator("ts", 3)
    inner.inverse_temperature.data.fill_(0.4)
    torch.testing.assert_close(PriorShift(3, inner)(drawn_logits), inner(drawn_logits))
