import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import POOLINGS, pool, pooling
from segcal.errors import InputError
from segcal.pooling import pool_members


def members_of(count, shape=(3, 4, 5), seed=0, dtype=np.float64):
    return list((np.random.default_rng(seed).normal(size=(count, *shape)) * 4).astype(dtype))


def softmax(logits):
    shifted = np.exp(logits - logits.max(0))
    return shifted / shifted.sum(0)


def test_a_pooling_is_what_its_name_says():
    members = members_of(5)
    assert np.array_equal(pool(members[:1], "single"), members[0])
    np.testing.assert_allclose(pool(members, "mean_logits"), np.mean(members, axis=0), rtol=1e-12)
    expected = np.log(np.mean([softmax(member) for member in members], axis=0))
    np.testing.assert_allclose(pool(members, "mean_probs"), expected, rtol=1e-10)


def test_probabilities_that_underflow_are_not_clipped():
    members = [np.array([0.0, -200.0], np.float32), np.array([0.0, -150.0], np.float32)]
    assert pool(members, "mean_probs").tolist() == pytest.approx([0.0, -150.693147], abs=1e-5)


@pytest.mark.parametrize("how", POOLINGS)
def test_one_member_pools_to_the_same_probabilities(how):
    member = members_of(1)[0]
    np.testing.assert_allclose(softmax(pool([member], how).numpy()), softmax(member), rtol=1e-10)


@pytest.mark.parametrize("how", ["mean_logits", "mean_probs"])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_an_offset_of_each_member_changes_no_pooled_probability(how, seed):
    members = members_of(4, seed=seed)
    shifts = np.random.default_rng(seed).normal(size=4) * 100
    moved = [member + shift for member, shift in zip(members, shifts, strict=True)]
    np.testing.assert_allclose(softmax(pool(moved, how).numpy()), softmax(pool(members, how).numpy()), atol=1e-9)


@pytest.mark.parametrize("how", ["mean_logits", "mean_probs"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_types_are_pooled_in_float32_and_members_stay_as_they_are(how, dtype):
    members = members_of(5, dtype=dtype)
    copies = [member.copy() for member in members]
    found = pool(members, how)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, pool([m.astype(np.float64) for m in members], how), rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(members, copies, strict=True))


@pytest.mark.parametrize(("how", "disagreement"), [("mean_logits", True), ("mean_probs", False)])
def test_members_are_let_go_one_by_one(how, disagreement):
    alive, most = [], 0

    def produce():
        nonlocal most
        for seed in range(4):
            member = torch.as_tensor(members_of(1, seed=seed)[0])
            alive.append(weakref.ref(member))
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            yield member
            del member

    pool_members(produce(), how, disagreement)
    assert most <= 2


def zeros(*shapes):
    return [np.zeros(shape) for shape in shapes]


@pytest.mark.parametrize(
    ("members", "how", "text"),
    [
        ([], "mean_logits", "members is empty, but at least one member is needed. Pass the logits of each network"),
        ([], "single", "members is empty"),
        (
            zeros((3, 4), (3, 4), (3, 6)),
            "mean_logits",
            r"member 2 has shape \(3, 6\), but member 0 has \(3, 4\). Members .* must agree in shape",
        ),
        (zeros((3, 4), (2, 4)), "mean_probs", r"member 1 has shape \(2, 4\), but .* must agree in classes"),
        ([np.zeros((2, 3))] * 2, "single", "members has more than one member, but pooling 'single' takes one"),
        ([np.zeros((2, 3))], "median", "no pooling is named 'median'. Choose one of: single, mean_logits, mean_probs"),
        ([np.zeros((2, 3)), np.full((2, 3), np.nan)], "mean_logits", "member 1 has 6 values that are NaN or infinite"),
        ([np.zeros((2, 3), int)], "mean_logits", "member 0 has dtype int64, but floating-point values are needed"),
        (["a.npy"], "mean_logits", "member 0 is str, but a numeric array is needed"),
    ],
)
def test_what_cannot_be_pooled_is_refused(members, how, text):
    with pytest.raises(InputError, match=text):
        pool(members, how)


@pytest.mark.parametrize(("how", "dtype"), [("mean_logits", np.float64), ("mean_probs", np.float32)])
def test_disagreement_is_the_mutual_information_of_class_and_member(how, dtype):
    members = members_of(4, dtype=dtype)
    logits, found = pool_members((member for member in members), how, disagreement=True)
    probs = np.stack([softmax(member.astype(np.float64)) for member in members])
    mean = probs.mean(0)
    expected = -(mean * np.log(mean)).sum(0) + (probs * np.log(probs)).sum(1).mean(0)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert torch.equal(logits, pool(members, how))


def test_members_that_agree_do_not_disagree_and_certain_ones_disagree_by_log_two():
    member, other = members_of(2)
    assert pool_members([member], "single", disagreement=True)[1] is None  # nobody to disagree with
    assert pool_members([member, other], "mean_probs")[1] is None  # nobody asked
    assert pool_members([member, member + 5], "mean_probs", disagreement=True)[1].abs().max() < 1e-6
    certain = [np.array([0.0, -1e4, -1e4]), np.array([-1e4, 0.0, -1e4])]
    assert float(pool_members(certain, "mean_logits", disagreement=True)[1]) == pytest.approx(np.log(2))


def pooled_one_by_one(members):
    """Means of logits and of probabilities, and the mutual information, in float64 from the definitions."""
    wide = np.stack([np.asarray(member, np.float64) for member in members])
    log_probs = wide - wide.max(1, keepdims=True)
    log_probs = log_probs - np.log(np.exp(log_probs).sum(1, keepdims=True))
    top = log_probs.max(0)
    mean = top + np.log(np.exp(log_probs - top).mean(0))
    entropy = -(np.exp(log_probs) * log_probs).sum(1).mean(0)
    return wide.mean(0), mean, -(np.exp(mean) * mean).sum(0) - entropy


@pytest.mark.parametrize("shape", [(2,), (3, 1000), (11, 2, 90, 123), (150, 37, 41)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [3, 100])
def test_pooling_in_one_pass_is_that_of_the_definitions(shape, dtype, scale):
    """At the scale of 100 many probabilities are below the smallest float32; every member but one has them."""
    generator = torch.Generator().manual_seed(0)
    scales = [scale, scale, 1, scale]
    members = [(each * torch.randn(shape, generator=generator)).to(dtype) for each in scales]
    (logits, log_probs), disagreement = pooling.pool_each(members, ["mean_logits", "mean_probs"], disagreement=True)
    expected = pooled_one_by_one([member.float() for member in members])
    for found, exact in zip((logits, log_probs, disagreement), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=2e-7 * max(scale, 50))
    total = members[0].float()
    for member in members[1:]:
        total = total + member.float()
    assert torch.equal(logits, total / 4)


def test_probabilities_that_are_small_in_every_member_are_added_as_logarithms():
    gaps = np.array(
        [[10.0, 79.9, 80.1, 200.0, 90.0], [10.0, 80.1, 79.9, 300.0, 70.0], [200.0, 75.0, 95.0, 201.0, 95.0]]
    )
    members = [np.stack([np.zeros(5), -gap]).astype(np.float32) for gap in gaps]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        found = pool([members[k] for k in order], "mean_probs")
        np.testing.assert_allclose(found, pooled_one_by_one(members)[1], rtol=3e-7, atol=1e-7)


def test_pooling_does_not_depend_on_threads_or_on_where_a_voxel_lies():
    members = [torch.from_numpy(member) for member in members_of(3, (5, 40_000), dtype=np.float16)]
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(pooling.pool_each(members, ["mean_probs", "mean_logits"], disagreement=True))
    finally:
        torch.set_num_threads(before)
    (one, disagreement), (two, other) = found
    assert all(map(torch.equal, one, two))
    assert torch.equal(disagreement, other)
    part = pooling.pool_each([member[:, 12_345:12_999] for member in members], ["mean_probs"])[0][0]
    assert torch.equal(part, one[0][:, 12_345:12_999])


def test_members_of_several_types_are_pooled_together():
    members = members_of(3)
    mixed = [members[0].astype(np.float16), members[1], members[2].astype(np.float32)]
    np.testing.assert_allclose(pool(mixed, "mean_probs"), pooled_one_by_one(mixed)[1], atol=1e-6)
    with pytest.raises(InputError, match="member 1 has values up to 1e"):
        pool([np.zeros((2, 3), np.float32), np.full((2, 3), 1e20, np.float32)], "mean_logits")


def test_a_gradient_comes_back_through_the_mean_of_logits():
    members = [torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3)]
    pool(members, "mean_logits").sum().backward()
    assert members[0].grad.unique().tolist() == [0.5]
