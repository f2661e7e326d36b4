import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from segcal.cases import ArrayCases, as_cases, loader
from segcal.errors import InputError

LOGITS = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(7 * 20).reshape(7, 4, 5) % 3


def assert_all(cases, logits=LOGITS, labels=LABELS):
    assert len(cases) == len(logits)
    assert cases.num_classes == 3
    for case, scores, truth in zip(cases, logits, labels, strict=True):
        torch.testing.assert_close(case.logits, scores, rtol=1e-6, atol=1e-6)
        assert torch.equal(case.labels, truth)


class Pairs(Dataset):
    """A dataset that can be indexed, and knows its length, and nothing else."""

    def __len__(self):
        return len(LOGITS)

    def __getitem__(self, index):
        return LOGITS[index], LABELS[index]


class Again:
    """Batches of several sizes that can be iterated again; counts how many are alive at a time."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        yield LOGITS[:3], LABELS[:3]
        yield LOGITS[3:4], LABELS[3:4]
        yield LOGITS[4:], LABELS[4:]


def reused():
    scores, truth = torch.empty(3, 4, 5), torch.empty(4, 5, dtype=torch.long)
    for one, other in zip(LOGITS, LABELS, strict=True):
        yield scores.copy_(one), truth.copy_(other)


@pytest.mark.parametrize(
    "data",
    [
        (LOGITS.numpy(), LABELS.numpy().astype(np.uint8)),
        (LOGITS.clone().requires_grad_() * 1, LABELS[:, None]),
        (list(LOGITS), LABELS),
        (list(zip(LOGITS, LABELS, strict=True)),),
        ([[LOGITS[:4], LABELS[:4]], [LOGITS[4:], LABELS[4:]]],),
        (DataLoader(TensorDataset(LOGITS, LABELS), batch_size=2),),
        (Pairs(),),
        (reused(),),
    ],
    ids=[
        "arrays", "with a gradient and a channel of labels", "a list and a tensor", "pairs",
        "lists as a loader collates them", "a DataLoader", "a Dataset", "a generator that uses its memory again",
    ],
)  # fmt: skip
def test_whatever_holds_scores_and_labels_becomes_the_same_cases(data):
    assert_all(as_cases(*data))


def test_members_are_a_list_and_stay_visible():
    members = [LOGITS, LOGITS + 2, -LOGITS]
    for data in (members, [[one[i] for one in members] for i in range(7)]):
        cases = as_cases(data, LABELS, pooling="mean_logits")
        assert cases.member_names == ("member 0", "member 1", "member 2")
        assert_all(cases, (LOGITS + 2) / 3)
        assert len(list(cases.member_logits("3"))) == 3
        assert cases.read("0").disagreement is None
        told = cases.with_disagreement().read("0").disagreement
        assert told.shape == (4, 5)
        assert (told > 0).all()
    assert as_cases(LOGITS, LABELS).with_disagreement().read("0").disagreement is None
    with pytest.raises(InputError, match="is a list of 3 members, but no pooling is declared"):
        as_cases(members, LABELS).read("0")


def test_probabilities_and_sigmoids_are_declared():
    foreground = torch.linspace(0.1, 0.9, 7 * 20).reshape(7, 4, 5)
    truth = (foreground > 0.4).long()
    for given in (foreground, foreground[:, None]):
        case = as_cases(given, truth, kind="sigmoid").read("2")
        torch.testing.assert_close(case.logits.exp()[1], foreground[2])
    assert as_cases(torch.softmax(LOGITS, 1), LABELS, kind="probs").kind == "probs"
    assert as_cases(torch.softmax(LOGITS, 1), LABELS).read("0").kind_warning
    assert len(as_cases([foreground, foreground], truth, kind="sigmoid", pooling="mean_probs")) == 7


def test_cases_pass_through_and_take_nothing_beside_them():
    cases = ArrayCases(list(LOGITS), list(LABELS))
    assert as_cases(cases) is cases
    with pytest.raises(InputError, match="labels is given beside cases, which know theirs"):
        as_cases(cases, LABELS)


def test_the_rest_of_what_is_known_reaches_the_cases():
    options = {"ids": list("abcdefg"), "groups": list("xxyyzzz"), "ignore": 2, "class_names": ["p", "q", "r"]}
    for data in ((LOGITS, LABELS), (Again(),)):
        cases = as_cases(*data, **options)
        assert cases.class_names == ("p", "q", "r")
        assert cases.read("c").group == "y"
        assert int(cases.read("c").labels.max()) == 1
        assert {len(part) for part in cases.split(cal=3, val=2)} == {2, 3}
    with pytest.raises(InputError, match="groups has 2 entries, but logits has 7 cases"):
        as_cases(Again(), groups=["x", "y"])
    with pytest.raises(InputError, match="ids has 1 entries, but logits has 7 cases"):
        as_cases(Again(), ids=["x"])


def test_a_loader_is_read_in_one_pass_per_reading_and_goes_back_when_it_must():
    source = Again()
    cases = as_cases(source)
    for passes in (2, 3, 4):  # one more counts
        assert_all(cases)
        assert source.passes == passes
    assert torch.equal(cases.subset(["5"]).read("5").logits, LOGITS[5])
    assert torch.equal(cases.read("0").logits, LOGITS[0])
    assert torch.equal(pickle.loads(pickle.dumps(cases)).read("6").logits, LOGITS[6])


def test_one_batch_is_in_memory_at_a_time():
    alive, most = [], 0

    class Counted:
        def __iter__(self):
            nonlocal most
            for _ in range(6):
                scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
                alive.append(torch.utils.weak.WeakTensorKeyDictionary())
                alive[-1][scores] = 1
                most = max(most, sum(len(one) for one in alive))
                yield scores, torch.zeros(2, 4, dtype=torch.long)
                del scores

    for case in as_cases(Counted()):
        del case
    assert most <= 2  # the one that is held, and the one that is being made


def test_a_loader_that_shuffles_is_refused():
    generator = torch.Generator().manual_seed(3)
    shuffled = DataLoader(TensorDataset(LOGITS, LABELS), batch_size=2, shuffle=True, generator=generator)
    with pytest.raises(InputError, match=r"is another one than in the first pass, .* shuffle=False"):
        list(as_cases(shuffled))


def test_a_generator_beyond_the_bound_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(loader, "KEPT", LOGITS.nbytes // 2)
    match = "data is a generator, which can be read only once, .* but it is read several times. Pass what can be it"
    with pytest.raises(InputError, match=match):
        as_cases(pair for pair in zip(LOGITS, LABELS, strict=True))


class Net(nn.Module):
    def __init__(self, sign=1.0):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)
        self.drop = nn.Dropout(0.5)
        self.sign = sign
        nn.init.constant_(self.conv.weight, 0.5 * sign)

    def forward(self, images):
        return self.drop(self.conv(images))


@pytest.mark.parametrize("kind", ["generator", "tensor"])
def test_a_network_is_run_in_evaluation_mode_and_gets_its_modes_back(kind):
    images = torch.randn(7, 2, 4, 5, generator=torch.Generator().manual_seed(2))
    net = Net()
    net.conv.eval()
    pairs = DataLoader(TensorDataset(images, LABELS), batch_size=3)
    data = {"generator": ((pair for pair in pairs),), "tensor": (images, LABELS)}[kind]
    cases = as_cases(*data, model=net)
    expected = net.conv(images).detach()
    assert_all(cases, expected)
    assert (net.training, net.conv.training, net.drop.training) == (True, False, True)
    assert not cases.read("0").logits.requires_grad
    assert torch.equal(cases.read("4").image, images[4])


def test_networks_are_pooled_and_an_inferer_is_asked():
    images = torch.randn(4, 2, 4, 5, generator=torch.Generator().manual_seed(2))
    nets = [Net(), Net(-1.0)]
    asked = []

    def inferer(inputs, model):
        asked.append(model)
        return 2 * model(inputs)

    data = DataLoader(TensorDataset(images, LABELS[:4]), batch_size=4)
    cases = as_cases(data, model=nets, inferer=inferer, pooling="mean_logits")
    expected = (nets[0].eval()(images) + nets[1].eval()(images)).detach()
    assert_all(cases, expected, LABELS[:4])
    assert set(asked) == set(nets)
    assert len(list(as_cases(iter(data), model=nets, pooling="mean_logits").member_logits("0"))) == 2
    with pytest.raises(InputError, match="model returned dict, but a tensor of scores"):
        as_cases(data, model=lambda inputs: {"out": inputs})


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        ("predictions", {}, "data is 'predictions', but arrays, a list, a loader or cases are needed. Open folders"),
        (3, {}, "data is 3, but arrays"),
        ([], {}, "data is empty"),
        ([], {"labels": []}, "data is empty, but at least one case is needed"),
        (
            [(LOGITS, LABELS)],
            {"inferer": lambda images, model: images},
            "inferer is given without a model, but it runs",
        ),
        (iter([]), {}, "data is empty"),
        ([{"image": LOGITS}], {"model": Net()}, "batch 0 is a dict, but"),
        (iter([(LOGITS, LABELS, 1)]), {}, r"batch 0 is a tuple, but \(scores, labels\) are needed"),
        (Again(), {"labels": LABELS}, r"labels is given beside a loader, which gives \(scores, labels\)"),
        (LOGITS, {"labels": LABELS[:2]}, r"data has shape \(7, 3, 4, 5\) and labels \(2, 4, 5\), but"),
        (LOGITS, {"labels": LABELS, "kind": "prob"}, "no kind is named 'prob'"),
    ],
)
def test_what_cannot_be_cases_is_refused(data, options, match):
    with pytest.raises(InputError, match=match):
        as_cases(data, **options)


def test_voxels_without_space_are_one_case():
    rng = np.random.default_rng(5)
    logits, labels = rng.normal(size=(40, 3)), rng.integers(3, size=40)
    cases = as_cases(logits, labels)
    assert len(cases) == 1
    case = cases.checked(cases.ids[0])
    np.testing.assert_array_equal(case.logits.numpy(), logits.T)
    np.testing.assert_array_equal(case.labels.numpy(), labels)


def test_members_without_labels_are_one_list_per_case():
    with pytest.raises(InputError, match=r"is a list of 2 arrays with pooling='mean_logits' and no labels, but"):
        as_cases([LOGITS, -LOGITS], pooling="mean_logits")
    cases = as_cases([[one, one + 2] for one in LOGITS], pooling="mean_logits")
    torch.testing.assert_close(cases.read("1").logits, LOGITS[1] + 1)
