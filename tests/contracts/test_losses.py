"""The promises of every loss, for every member of the registry."""

import pickle

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import LOSSES, make_loss
from segcal.types import IGNORED

# Sums of a term per voxel and terms per class.
SUMS = ["ce_dice", "ml1_ace", "ml1_ace_soft"]
SPACES = [(3, 5), (3, 4, 3)]
# Those that hold back a network which is right and sure already. (focal and ecp only lose interest in it.)
SOFT = ["label_smoothing", "svls", "mbls", "nacl"]
# Those whose neighbourhood gains the slices above and below in a volume.
MORE_NEIGHBOURS = ["svls"]


def draw(space, seed=0, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, classes, *space, generator=generator, dtype=dtype)
    labels = torch.randint(0, classes, (2, *space), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORED
    return logits, labels


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("space", SPACES)
def test_the_gradient_is_right(name, space):
    logits, labels = draw(space)
    loss = make_loss(name)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (logits.requires_grad_(),))


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives_are_right(name):
    logits, labels = draw((3, 4), classes=3)
    loss = make_loss(name)
    assert torch.autograd.gradgradcheck(lambda z: torch.exp(loss(z, labels)), (logits.requires_grad_(),))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("space", SPACES)
def test_ignored_voxels_have_no_say_and_no_gradient(name, space):
    logits, labels = draw(space)
    loss = make_loss(name)
    ignored = (labels == IGNORED)[:, None].expand_as(logits)
    other = logits.clone()
    other[ignored] = 100 * torch.randn(
        int(ignored.sum()), dtype=logits.dtype, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(loss(other, labels), loss(logits, labels), rtol=1e-12, atol=0)
    logits.requires_grad_()
    loss(logits, labels).backward()
    assert (logits.grad[ignored] == 0).all()
    assert (logits.grad[~ignored] != 0).any()


@pytest.mark.parametrize("name", LOSSES)
def test_another_ignore_index_is_the_same_mask(name):
    logits, labels = draw((5, 7))
    renamed = torch.where(labels == IGNORED, 255, labels)
    assert make_loss(name, ignore_index=255)(logits, renamed) == make_loss(name)(logits, labels)


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_a_voxel_that_counts_has_zero_loss_and_gradient(name):
    logits, labels = draw((5, 7))
    logits.requires_grad_()
    value = make_loss(name)(logits, torch.full_like(labels, IGNORED))
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_right_answer_costs_less_than_a_wrong_one(name):
    _, labels = draw((5, 7))
    truth = torch.nn.functional.one_hot(labels.clamp(min=0), 4).movedim(-1, 1).double()
    loss = make_loss(name)
    assert loss(3 * truth, labels) < loss(3 * truth.roll(1, dims=1), labels) - 0.3
    if name in SOFT:  # boundless confidence is punished
        assert loss(600 * truth, labels) > loss(60 * truth, labels) + 1
    else:
        assert loss(60 * truth, labels) < 1e-4


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in MORE_NEIGHBOURS])
def test_a_volume_of_identical_slices_costs_what_a_slice_costs(name):
    logits, labels = draw((5, 7))
    deep = logits[:, :, None].expand(-1, -1, 3, -1, -1), labels[:, None].expand(-1, 3, -1, -1)
    loss = make_loss(name, **({"smooth": 0.0} if name == "dice" else {}))
    torch.testing.assert_close(loss(*deep), loss(logits, labels), rtol=1e-6 if name in SUMS else 1e-12, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_agree(name):
    logits, labels = draw((5, 7))
    total = make_loss(name, reduction="sum")(logits, labels)
    assert total.shape == make_loss(name)(logits, labels).shape == ()
    if name in SUMS:
        with pytest.raises(InputError, match="reduction is 'none', but the cross-entropy has one value per voxel"):
            make_loss(name, reduction="none")
        return
    parts = make_loss(name, reduction="none")(logits, labels)
    torch.testing.assert_close(parts.sum(), total, rtol=1e-12, atol=0)
    count = parts.numel() if name == "dice" else int((labels != IGNORED).sum())
    torch.testing.assert_close(parts.sum() / count, make_loss(name)(logits, labels), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_class_weights_of_one_change_nothing_and_others_do(name):
    logits, labels = draw((5, 7))
    expected = make_loss(name)(logits, labels)
    torch.testing.assert_close(make_loss(name, class_weights=torch.ones(4))(logits, labels), expected)
    other = make_loss(name, class_weights=torch.tensor([0.1, 1.0, 2.0, 5.0]))(logits, labels)
    assert abs(float(other - expected)) > 1e-3


@pytest.mark.parametrize("name", LOSSES)
def test_labels_of_any_whole_type_are_the_same_labels(name):
    logits, labels = draw((5, 7))
    expected = make_loss(name)(logits, labels.clamp(min=0))
    for dtype in (torch.uint8, torch.int16):
        assert make_loss(name)(logits, labels.clamp(min=0).to(dtype)) == expected


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_no_parameters_and_travels_as_a_module(name):
    loss = make_loss(name, class_weights=torch.ones(4))
    assert isinstance(loss, torch.nn.Module)
    assert not list(loss.parameters())
    logits, labels = draw((5, 7))
    assert pickle.loads(pickle.dumps(loss))(logits, labels) == loss(logits, labels)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("space", SPACES)
def test_a_gpu_computes_the_same(name, space):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    logits, labels = draw(space)
    loss = make_loss(name)
    here, there = (logits.detach().to(device).requires_grad_() for device in ("cpu", "cuda"))
    loss(here, labels).backward()
    loss(there, labels.cuda()).backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32_under_autocast(name, half):
    logits, labels = draw((5, 7), dtype=torch.float32)
    logits = logits.to(half)
    loss = make_loss(name)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(logits, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(logits.float(), labels), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_large_logits_stay_finite(name):
    logits, labels = draw((5, 7), dtype=torch.float32)
    logits = (1e4 * logits).requires_grad_()
    value = make_loss(name)(logits, labels)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_bad_batches_are_refused_with_a_repair(name):
    loss = make_loss(name)
    logits, labels = draw((5, 7))
    broken = logits.clone()
    broken[1, 2, 3, 4:] = torch.nan
    for wrong_logits, wrong_labels, text in (
        (logits[:, :1], labels, r"logits has shape \(2, 1, 5, 7\), but .* at least 2 classes"),
        (logits, logits.long(), r"labels has shape \(2, 4, 5, 7\), but .* need \(2, 5, 7\)"),
        (logits, labels.double(), r"labels has dtype float64.*labels\.long\(\)"),
        (logits, torch.where(labels == 2, 9, labels), r"labels contains 9, .*0 to 3.*ignore_index=9"),
        (broken, labels, "logits has 3 values that are NaN or infinite"),
        (logits.numpy(), labels, "logits is ndarray, but a tensor is needed"),
        (logits, labels.tolist(), "labels is list, but a tensor is needed"),
        (logits.long(), labels, "logits has dtype int64, but floating-point numbers are needed"),
        (logits, labels.to("meta"), "logits is on cpu and labels on meta, but one device is needed"),
        (logits[:0], labels[:0], r"logits has shape \(0, 4, 5, 7\), but at least one voxel is needed"),
    ):
        with pytest.raises(InputError, match=text):
            loss(wrong_logits, wrong_labels)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no loss is named 'cedice'\. Choose one of: ce, dice, ce_dice"):
        make_loss("cedice")
