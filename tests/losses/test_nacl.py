import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropy, NeighbourAware
from segcal.losses.nacl import neighbour_penalty

TAU = torch.tensor([[6 / 9], [3 / 9], [0], [0]], dtype=torch.float64)[None]
LOGITS = torch.tensor([[2.0], [-1.0], [0.5], [7.5]], dtype=torch.float64)[None]


def by_hand(plain, logits, labels, window, weight, power, on):
    terms = []
    for number, place, z, label in plain.voxels(logits, labels):
        shares = plain.softmax(z)
        tau = plain.proportions(labels[number].tolist(), place, len(z), window)
        values = z if on == "logits" else shares
        distance = sum(abs(t - v) ** power for t, v in zip(tau, values, strict=True)) / len(z)
        terms.append(-math.log(shares[label]) + weight * distance)
    return terms


def test_the_worked_penalties():
    labels = torch.zeros(1, 1, dtype=torch.int64)
    assert float(neighbour_penalty(LOGITS, TAU.unbind(1), labels)) == pytest.approx(2.6666667, abs=5e-8)
    assert float(neighbour_penalty(LOGITS, TAU.unbind(1), labels, "l2")) == pytest.approx(15.0138889, abs=5e-8)


def test_the_gradient_of_the_distance_is_its_sign_and_zero_where_it_is_zero():
    values = torch.tensor([[[2.0, -1.0], [0.5, 0.25]]], requires_grad=True)
    shares = [torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5]])]
    neighbour_penalty(values, shares, torch.zeros(1, 2, dtype=torch.int64)).backward(torch.tensor([[1.0, 10.0]]))
    assert values.grad.tolist() == [[[0.5, -5.0], [0.0, -5.0]]]


def test_the_worked_loss():
    """Three of the nine voxels of the window are of class 1."""
    labels = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
    logits = LOGITS[..., None].expand(1, 4, 3, 3)
    value = NeighbourAware(reduction="none")(logits, labels)[0, 1, 1]
    assert float(value) == pytest.approx(5.7718553, abs=5e-8)


@pytest.mark.parametrize("on", ["logits", "softmax"])
@pytest.mark.parametrize(("penalty", "power"), [("l1", 1), ("l2", 2)])
@pytest.mark.parametrize("prior", ["mean", "gaussian"])
def test_it_is_the_plain_loop(plain, batch, on, penalty, power, prior):
    logits, labels = batch
    axes = labels.ndim - 1
    window = plain.mean_window(3, axes) if prior == "mean" else plain.svls_window(3, axes, 1.5)
    terms = by_hand(plain, logits, labels, window, 0.2, power, on)
    loss = NeighbourAware(weight=0.2, prior=prior, sigma=1.5, penalty=penalty, on=on)
    assert float(loss(logits, labels)) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("kind", ["mean", "gaussian"])
@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_parity_with_monai(axes, kind, penalty):
    losses = pytest.importorskip("monai.losses")
    generator = torch.Generator().manual_seed(6)
    space = (8, 11, 9)[:axes]
    logits = 3 * torch.randn(2, 4, *space, generator=generator)
    labels = torch.randint(0, 4, (2, *space), generator=generator)
    theirs = losses.NACLLoss(4, axes, kernel_ops=kind, distance_type=penalty, alpha=0.3, sigma=1.5)
    ours = NeighbourAware(weight=0.3, prior=kind, sigma=1.5, penalty=penalty, parity="monai")
    torch.testing.assert_close(ours(logits, labels), theirs(logits, labels), rtol=2e-5, atol=1e-6)


def test_parity_with_the_published_code_pads_labels_with_class_zero():
    labels = torch.tensor([[0, 0, 0, 1, 1]] * 5)[None]
    shares = NeighbourAware(parity="marginloss").proportions(labels, 2)[0]
    assert shares[:, 0, 4].tolist() == pytest.approx([5 / 9, 4 / 9])
    assert shares[:, 2, 3].tolist() == pytest.approx([1 / 3, 2 / 3])
    own = NeighbourAware(prior="gaussian", parity="marginloss").proportions(labels, 2)
    torch.testing.assert_close(own, NeighbourAware(prior="gaussian").proportions(labels, 2))


def test_parity_with_the_published_code_from_its_definition():
    """Zero-padded labels, one-hot, a mean filter, for pictures: built here with torch's own pooling."""
    generator = torch.Generator().manual_seed(8)
    logits = 4 * torch.randn(2, 4, 5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (2, 5, 7), generator=generator)
    padded = torch.nn.functional.pad(labels, (1, 1, 1, 1))
    hot = torch.nn.functional.one_hot(padded, 4).movedim(-1, 1).double()
    tau = torch.nn.functional.avg_pool2d(hot, 3, stride=1)
    expected = torch.nn.functional.cross_entropy(logits, labels) + 0.1 * (tau - logits).abs().mean()
    torch.testing.assert_close(NeighbourAware(parity="marginloss")(logits, labels), expected)


def test_slices_that_repeat_make_no_difference():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, 3, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 3, (1, 6, 5), generator=generator)
    deep = (logits[:, :, None].expand(-1, -1, 4, -1, -1), labels[:, None].expand(-1, 4, -1, -1))
    torch.testing.assert_close(NeighbourAware()(*deep), NeighbourAware()(logits, labels), rtol=1e-12, atol=0)
    gaussian = NeighbourAware(prior="gaussian")
    assert abs(float(gaussian(*deep) - gaussian(logits, labels))) > 1e-4


def test_inside_a_region_the_logits_are_drawn_to_the_one_hot_label(worked):
    penalty = NeighbourAware(weight=1.0)(*worked) - CrossEntropy()(*worked)
    assert float(penalty) == pytest.approx((1 + 1 + 0.5 + 7.5) / 4)


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="prior is 'median', but mean or gaussian is needed"):
        NeighbourAware(prior="median")
    with pytest.raises(InputError, match="on is 'probs', but logits or softmax is needed"):
        NeighbourAware(on="probs")
    with pytest.raises(InputError, match="parity is 'nnunet', but None or marginloss or monai is needed"):
        NeighbourAware(parity="nnunet")
    with pytest.raises(InputError, match="penalty is 'linear', but l1 or l2 is needed"):
        NeighbourAware(penalty="linear")
    with pytest.raises(InputError, match="kernel_size is 2, but an odd whole number"):
        NeighbourAware(kernel_size=2)
    with pytest.raises(InputError, match=r"sigma is -1\.0, but a positive number"):
        NeighbourAware(sigma=-1.0)
    with pytest.raises(InputError, match="needs at least that many voxels along every axis"):
        NeighbourAware(kernel_size=7)(torch.zeros(1, 2, 5, 9), torch.zeros(1, 5, 9, dtype=torch.int64))
