import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from segcal import ArrayCases, FitConfig, choose, fit
from segcal.errors import InputError, SuspicionWarning
from segcal.fitting.request import check_cases, read_data


def test_more_cases_share_the_memory_that_is_allowed(make_cases):
    config = FitConfig(voxels=100_000, memory=1 << 20)
    room = (1 << 20) // (4 * (3 + 2))
    data = read_data(make_cases(3, 120_000, parts=3), None, config)
    assert data.source.available == 120_000
    assert (
        room - 30 <= data.source.used <= room + 3
    )  # systematic drawing is exact to one voxel a case, clamping loses few


def test_progress_counts_cases(make_cases):
    messages = []
    read_data(make_cases(2, 40, parts=2), make_cases(2, 30, seed=1), FitConfig(), messages.append)
    assert messages == ["read 1 of 2 cases", "read 2 of 2 cases", "read 1 of 1 cases"]


def test_collections_that_nothing_can_be_fitted_to_are_refused(make_cases):
    cases = make_cases(3, 20)
    with pytest.raises(InputError, match="cases is empty, but at least one case is needed"):
        check_cases(cases.subset([]), None)
    with pytest.raises(InputError, match="validation is empty, but at least one case is needed"):
        check_cases(cases, cases.subset([]))
    with pytest.raises(InputError, match="validation has 4 classes, but the calibration cases have 3"):
        check_cases(cases, make_cases(4, 20))


def test_what_is_seldom_meant_is_said_where_it_is_asked_for(scenes):
    drawn = scenes(6)
    logits, labels = [z for z, _ in drawn], [y[::-1].copy() for _, y in drawn]
    cases = ArrayCases([[z, z] for z in logits], labels, pooling="mean_logits")
    read_data(cases, None, FitConfig())
    with pytest.warns(SuspicionWarning) as said:
        read_data(cases.subset([*"0123"]), cases.subset([*"45"]), FitConfig(), suspect=True)
    texts = [str(one.message) for one in said]
    assert [text.split(" (")[0] for text in texts] == [
        "0, 1, 2, 3, 4 and 1 more: labels fit clearly better as numpy.flip(labels, 0)",
        "members hold the same scores",
    ]


@pytest.mark.parametrize("voxels", [500, "all"])
def test_copies_in_calibration_and_validation_are_known_by_content(scenes, voxels):
    drawn = scenes(4)
    cal, val = (ArrayCases([drawn[i][0] for i in part], [drawn[i][1] for i in part]) for part in ((0, 1, 2), (3, 1)))
    match = r"the same scores are in calibration and in validation \(1 = 1\)"
    with pytest.warns(SuspicionWarning, match=match) as said:
        read_data(cal, val, FitConfig(voxels=voxels), suspect=True)
    assert len(said) == 1
    read_data(cal, cal, FitConfig(voxels=voxels), suspect=True)


def drawn(cases=6, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(cases, 3, 9, 11)).astype("float32")
    return logits, (2 * logits + rng.gumbel(size=logits.shape)).argmax(1)


@pytest.mark.parametrize(
    "how",
    {
        "arrays": lambda z, y: fit("ts", z, y),
        "tensors with gradients": lambda z, y: fit("ts", torch.tensor(z, requires_grad=True), torch.tensor(y)),
        "lists": lambda z, y: fit("ts", list(z), list(y)),
        "a generator": lambda z, y: fit("ts", ((z[i : i + 2], y[i : i + 2]) for i in range(0, 6, 2))),
        "a loader": lambda z, y: fit("ts", DataLoader(TensorDataset(torch.tensor(z), torch.tensor(y)), batch_size=4)),
        "a network": lambda z, y: fit("ts", [(z / 2, y)], model=Doubling()),
        "an inferer": lambda z, y: fit("ts", [(z, y)], model=Doubling(), inferer=lambda x, net: net(x) / 2),
        "probabilities": lambda z, y: fit("ts", torch.softmax(torch.tensor(z).double(), 1), y, kind="probs"),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_in_memory_is_fitted_as_cases_are(how):
    logits, labels = drawn()
    expected = fit("ts", ArrayCases(list(logits), list(labels))).calibrator.temperature
    assert how[1](logits, labels).calibrator.temperature == pytest.approx(expected, rel=1e-5)


class Doubling(torch.nn.Module):
    def forward(self, images):
        return 2 * images


def test_validation_is_a_pair_a_loader_or_cases_also_in_the_place_of_labels():
    (logits, labels), held = drawn(), drawn(3, seed=1)
    cases, own = ArrayCases(list(logits), list(labels)), ArrayCases(list(held[0]), list(held[1]))
    found = [
        fit("cms_ap", logits, labels, validation=held),
        fit("cms_ap", logits, labels, validation=[held]),
        fit("cms_ap", cases, own),
        fit("cms_ap", cases, validation=own),
    ]
    assert len({fitted.certificate.validation_nll for fitted in found}) == 1
    assert {fitted.validation_ids for fitted in found} == {("0", "1", "2")}
    assert choose(logits, labels, validation=held).validation_ids == ("0", "1", "2")
    with pytest.raises(InputError, match=r"labels is a collection of cases, but validation is given too"):
        fit("ts", cases, own, validation=own)


def test_a_kind_is_declared_for_validation_too():
    (logits, labels), held = drawn(), drawn(3, seed=1)
    probs, own = (torch.softmax(torch.tensor(z).double(), 1) for z in (logits, held[0]))
    fitted = fit("ts", probs, labels, validation=(own, held[1]), kind="probs")
    expected = fit("ts", logits, labels, validation=held)
    assert fitted.kind == "probs"
    assert fitted.certificate.validation_nll == pytest.approx(expected.certificate.validation_nll, rel=1e-5)


def test_what_holds_no_scores_is_refused():
    with pytest.raises(InputError, match=r"data is 'predictions/', but arrays, a list, a loader or cases are needed"):
        fit("ts", "predictions/")
