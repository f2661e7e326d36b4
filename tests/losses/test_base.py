import pytest
import torch

from segcal.errors import InputError
from segcal.losses import LOSSES, CrossEntropy, make_loss


def test_weights_must_be_one_finite_factor_a_class():
    assert CrossEntropy(class_weights=[1, 2]).class_weights.tolist() == [1.0, 2.0]
    assert not CrossEntropy(class_weights=torch.ones(2, requires_grad=True)).class_weights.requires_grad
    for wrong in ([1.0, -2.0], [1.0, float("nan")], [1.0, float("inf")]):
        with pytest.raises(InputError, match=r"class_weights is \[1.0, .*but one finite factor of at least 0 a class"):
            CrossEntropy(class_weights=wrong)
    with pytest.raises(InputError, match=r"class_weights is of shape \(2, 2\)"):
        CrossEntropy(class_weights=torch.ones(2, 2))
    with pytest.raises(InputError, match="class_weights is dict, but one factor a class is needed"):
        CrossEntropy(class_weights={0: 1.0})
    with pytest.raises(InputError, match="class_weights has 2 entries, but the logits have 3 classes"):
        CrossEntropy(class_weights=torch.ones(2))(torch.zeros(1, 3, 4), torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [None, "255", 1.5, True])
def test_what_is_ignored_is_a_whole_number(wrong):
    with pytest.raises(InputError, match=f"ignore_index is {wrong!r}, but a whole number is needed"):
        CrossEntropy(ignore_index=wrong)


LOGITS, LABELS = torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64)


@pytest.mark.parametrize("name", LOSSES)
def test_where_all_labels_have_weight_zero_nothing_counts(name):
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    alone = make_loss(name, class_weights=[0.0, 1.0, 1.0])(logits, LABELS)
    unweighted = make_loss(name)(logits, LABELS)
    assert float(alone) < float(unweighted)
    if name in ("ce", "focal", "label_smoothing", "svls"):
        assert float(alone) == 0.0


def test_a_loss_shows_its_options():
    assert repr(make_loss("svls", sigma=0.5, class_weights=[1.0, 2.0])) == (
        "SpatialLabelSmoothing(ignore_index=-1, reduction='mean', sigma=0.5, kernel_size=3, class_weights=[1.0, 2.0])"
    )


def test_options_that_a_loss_does_not_have_are_refused_by_name():
    with pytest.raises(InputError, match=r"nacl has no option 'lam'\. Choose from: weight, prior, kernel_size"):
        make_loss("nacl", lam=0.1)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("ce", {"reduction": "avg"}, "reduction is 'avg', but mean, sum or none is needed"),
        *(("dice", {"smooth": bad}, f"smooth is {bad!r}, but a number of at least 0") for bad in (-1, "0.1", None)),
        ("dice", {"smooth": float("nan")}, "smooth is nan"),
        ("focal", {"gamma": -1}, "gamma is -1, but a number of at least 0 is needed. Choose 0 to switch it off"),
        ("ce_dice", {"dice_weight": -0.5}, r"dice_weight is -0\.5, but a number of at least 0 is needed"),
        ("mbls", {"margin": -2}, "margin is -2, but a number of at least 0 is needed"),
        *((name, {"weight": -0.1}, r"weight is -0\.1, but a number of at least 0") for name in ("ecp", "mbls", "nacl")),
        *((name, {"penalty": "L1"}, "penalty is 'L1', but l1 or l2 is needed") for name in ("mbls", "nacl")),
        ("nacl", {"prior": "median"}, "prior is 'median', but mean or gaussian is needed"),
        ("nacl", {"on": "probs"}, "on is 'probs', but logits or softmax is needed"),
        ("nacl", {"parity": "nnunet"}, "parity is 'nnunet', but None or marginloss or monai is needed"),
        ("ml1_ace", {"bins": 1}, "bins is 1, but a whole number of at least 2 is needed. The paper uses 20."),
        *(("label_smoothing", {"smoothing": wrong}, r"smoothing is .*, but a share from 0 to 1 is needed")
          for wrong in (-0.1, 1.5, float("nan"))),
        *((name, {"kernel_size": size}, f"kernel_size is {size!r}, but an odd whole number of at least 3")
          for name in ("svls", "nacl") for size in (0, 1, 2, 4, 3.0, True)),
        *((name, {"sigma": sigma}, r"sigma is .*, but a positive number of voxels is needed")
          for name in ("svls", "nacl") for sigma in (0, -1.0, float("inf"), float("nan"))),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(name, options, text):
    with pytest.raises(InputError, match=text):
        make_loss(name, **options)
