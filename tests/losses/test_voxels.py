"""Losses that have a term for each voxel, against plain Python."""

import math

import pytest
import torch

from segcal.losses import Focal, NeighbourAware, make_loss
from segcal.losses.spatial import neighbour_penalty

WEIGHTS = (0.5, 2.0, 0.0, 1.0)


def hard(z, label, around):
    return [float(number == label) for number in range(len(z))]


def spread_by(smoothing):
    return lambda z, label, around: [smoothing / len(z) + (1 - smoothing) * one for one in hard(z, label, around)]


def spatial(z, label, around):
    return around


def without(z, shares, around):
    return 0.0


def beyond(margin, power):
    return lambda z, shares, around: sum(max(max(z) - value - margin, 0.0) ** power for value in z) / len(z)


def negative_entropy(z, shares, around):
    return sum(share * math.log(share) for share in shares) / len(shares)


def distance(on, power):
    def penalty(z, shares, around):
        values = z if on == "logits" else shares
        return sum(abs(t - v) ** power for t, v in zip(around, values, strict=True)) / len(z)

    return penalty


# Options of a loss, the target of a voxel, its penalty, and the sigma of the window around it: None for a plain mean.
FORMULAS = [
    ("ce", {}, hard, without, None),
    ("label_smoothing", {"smoothing": 0.3}, spread_by(0.3), without, None),
    ("svls", {"sigma": 0.5}, spatial, without, 0.5),
    ("svls", {}, spatial, without, 2.0),
    ("ecp", {"weight": 0.3}, hard, negative_entropy, None),
    ("mbls", {"margin": 3.0, "weight": 0.2}, hard, beyond(3.0, 1), None),
    ("mbls", {"margin": 3.0, "weight": 0.2, "penalty": "l2"}, hard, beyond(3.0, 2), None),
    *(
        ("nacl", {"weight": 0.2, "prior": prior, "sigma": 1.5, "penalty": f"l{power}", "on": on}, hard,
         distance(on, power), None if prior == "mean" else 1.5)
        for prior in ("mean", "gaussian") for power in (1, 2) for on in ("logits", "softmax")
    ),
]  # fmt: skip


@pytest.mark.parametrize("weights", [(1.0,) * 4, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("name", "options", "target", "penalty", "sigma"), FORMULAS)
def test_it_is_the_plain_loop(plain, batch, name, options, target, penalty, sigma, weights):
    logits, labels = batch
    axes = labels.ndim - 1
    window = plain.mean_window(3, axes) if sigma is None else plain.svls_window(3, axes, sigma)
    entropy = total = penalties = count = 0.0
    for number, place, z, label in plain.voxels(logits, labels):
        shares, around = plain.softmax(z), plain.proportions(labels[number].tolist(), place, len(z), window)
        parts = zip(weights, target(z, label, around), shares, strict=True)
        entropy -= sum(w * t * math.log(p) for w, t, p in parts)
        total, count = total + weights[label], count + 1
        penalties += penalty(z, shares, around)
    expected = entropy / total + options.get("weight", 0) * penalties / count
    loss = make_loss(name, class_weights=None if weights[0] == 1 else torch.tensor(weights), **options)
    assert float(loss(logits, labels)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weights", [(1.0,) * 4, WEIGHTS])
@pytest.mark.parametrize("gamma", [0, 0.5, 1, 3])
def test_focal_is_the_plain_loop(plain, batch, gamma, weights):
    total = count = 0.0
    for _, _, z, label in plain.voxels(*batch):
        share = plain.softmax(z)[label]
        total -= weights[label] * (1 - share) ** gamma * math.log(share)
        count += weights[label]
    loss = Focal(gamma=gamma, class_weights=torch.tensor(weights))
    assert float(loss(*batch)) == pytest.approx(total / count, rel=1e-12)


def test_svls_with_a_wide_window_is_the_plain_loop(plain):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 4, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 4, (1, 6, 5), generator=generator)
    terms = []
    for _, place, z, _ in plain.voxels(logits, labels):
        around = plain.proportions(labels[0].tolist(), place, 4, plain.svls_window(5, 2, 1.5))
        terms.append(-sum(t * math.log(p) for t, p in zip(around, plain.softmax(z), strict=True)))
    found = make_loss("svls", sigma=1.5, kernel_size=5)(logits, labels)
    assert float(found) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("ce", {}, 5.5051886),
        ("label_smoothing", {}, 5.4801886),
        ("focal", {}, 5.4383152),
        ("svls", {}, 5.5051886),  # inside a region it is the cross-entropy
        ("ecp", {}, 5.5042981),
        ("ecp", {"weight": 0.1 * 4}, 5.5016266),  # the paper's sum over classes
        ("mbls", {}, 5.6551886),
        ("mbls", {"weight": 1.0}, 5.5051886 + 1.5),
        ("mbls", {"weight": 1.0, "penalty": "l2"}, 5.5051886 + 4.125),  # not 10.375, which squares before it cuts
        ("mbls", {"weight": 1.0, "margin": 10}, 5.5051886),
        ("nacl", {"weight": 1.0}, 5.5051886 + (1 + 1 + 0.5 + 7.5) / 4),  # drawn to the one-hot label
    ],
)
def test_the_worked_values(worked, name, options, value):
    assert float(make_loss(name, **options)(*worked)) == pytest.approx(value, abs=5e-8)


def test_the_worked_value_of_nacl_at_an_edge():
    """Three of the nine voxels of the window are of class 1."""
    labels = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1]]])
    logits = torch.tensor([2.0, -1.0, 0.5, 7.5], dtype=torch.float64).reshape(1, 4, 1, 1).expand(1, 4, 3, 3)
    value = NeighbourAware(reduction="none")(logits, labels)[0, 1, 1]
    assert float(value) == pytest.approx(5.7718553, abs=5e-8)


@pytest.mark.parametrize(("name", "options"), [("focal", {"gamma": g}) for g in (0.0, 0.5, 3.0)] + [("ecp", {})])
def test_a_voxel_that_is_surely_right_has_no_gradient_and_no_nan(name, options):
    logits = torch.tensor([[500.0, -500.0]], requires_grad=True)
    value = make_loss(name, **options)(logits, torch.tensor([0]))
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


def test_the_gradient_of_the_distance_is_its_sign_and_zero_where_it_is_zero():
    values = torch.tensor([[[2.0, -1.0], [0.5, 0.25]]], requires_grad=True)
    shares = [torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5]])]
    neighbour_penalty(values, shares, torch.zeros(1, 2, dtype=torch.int64)).backward(torch.tensor([[1.0, 10.0]]))
    assert values.grad.tolist() == [[[0.5, -5.0], [0.0, -5.0]]]


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
    own = NeighbourAware(prior="gaussian", parity="marginloss").proportions(labels, 2)
    torch.testing.assert_close(own, NeighbourAware(prior="gaussian").proportions(labels, 2))
