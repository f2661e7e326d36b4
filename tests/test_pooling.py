import gc
import math
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


@pytest.mark.parametrize("shape", [(2,), (3, 1000), (11, 2, 90, 123), (150, 37, 41)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_of_probabilities_change_no_bit(shape, dtype, monkeypatch):
    monkeypatch.setattr(pooling, "TILE_VALUES", 1 << 12)
    generator = torch.Generator().manual_seed(0)
    members = [4 * torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3)]
    whole = torch.log_softmax(members[0], 0)
    for member in members[1:]:
        whole = torch.logaddexp(whole, torch.log_softmax(member, 0))
    found = pool(members, "mean_probs")
    assert torch.equal(found, whole - math.log(3))
    assert found.shape == torch.Size(shape)
