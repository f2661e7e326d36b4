from dataclasses import replace

import numpy as np
import pytest
import torch

from paper.loss_study.backbones import AttentionUNet
from paper.loss_study.data import Stored
from paper.loss_study.network import LOGIT_EDGES, Data, Effort, logit_histogram, make_network, unit_steps
from paper.loss_study.plan import CONFIGS, Unit
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import train
from segcal.losses import make_loss


class Constant(torch.nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, image):
        return self.logits.reshape(1, -1, 1, 1).expand(len(image), -1, *image.shape[2:])


def test_a_histogram_counts_the_largest_logit_of_every_voxel():
    counts = logit_histogram(Constant([-1.0, 3.2]), [torch.zeros(3, 4, 5)] * 2)
    assert sum(counts) == 40
    place = counts.index(40)
    assert LOGIT_EDGES[place] <= 3.2 < LOGIT_EDGES[place + 1]
    assert logit_histogram(Constant([0.0, 1e6]), [torch.zeros(3, 4, 5)])[-1] == 20


def small_cases(count):
    rng = np.random.default_rng(0)
    images = rng.random((count, 3, 16, 24)).astype(np.float32)
    return [Stored(str(i), image, (image[0] > 0.5).astype(np.int64)) for i, image in enumerate(images)]


def trained(unit, data, effort):
    """Train a unit to its end and return the result and the histograms."""
    histograms = {}
    (ended,) = take_turns(iter([(unit, unit_steps(unit, data, effort, histograms))]), 1, effort.device)
    if ended.error is not None:
        raise ended.error
    return ended.trained, histograms


def pairs(cases):
    return [(torch.from_numpy(case.image), torch.from_numpy(case.labels)) for case in cases]


def assert_same(network, other):
    for mine, its in zip(network.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, its)


def test_a_unit_is_trained_with_its_loss_its_backbone_and_its_share():
    unit = Unit("roads", "nacl_0.2", 1, backbone="attention_unet", share=50)
    found, histograms = trained(unit, Data(small_cases(5), small_cases(2)), Effort(epochs=2))
    torch.manual_seed(1)
    network = AttentionUNet(3, 2, widths=(16, 24, 48, 72)).to(memory_format=torch.channels_last)
    config = replace(CONFIGS["roads"], epochs=2, seed=1)
    expected = train(network, make_loss("nacl", weight=0.2), pairs(small_cases(5)[:2]), config, pairs(small_cases(2)))
    assert found.history == expected.history
    assert_same(found.network, expected.network)
    assert not histograms  # which are of the main table


def test_logits_are_watched_at_the_first_epoch_and_at_each_validation(monkeypatch):
    monkeypatch.setitem(CONFIGS, "roads", replace(CONFIGS["roads"], validate_every=2, epochs=5))
    _, histograms = trained(Unit("roads", "ce", 0), Data(small_cases(2), small_cases(1)), Effort())
    assert sorted(histograms) == [1, 2, 4, 5]


def test_the_first_four_validation_cases_are_watched():
    cases = small_cases(6)
    found, histograms = trained(Unit("roads", "ce", 0), Data(cases[:1], cases), Effort(epochs=1))
    assert histograms == {1: logit_histogram(found.network, [image for image, _ in pairs(cases[:4])])}
    assert sum(histograms[1]) == 4 * 16 * 24


def test_a_whole_training_has_the_epochs_of_the_study(monkeypatch):
    monkeypatch.setitem(CONFIGS, "roads", replace(CONFIGS["roads"], epochs=2))
    for epochs, wanted in ((None, 2), (1, 1), (9, 2)):
        found, _ = trained(Unit("roads", "ce", 0), Data(small_cases(1), small_cases(1)), Effort(epochs=epochs))
        assert len(found.history) == wanted


def test_networks_that_take_turns_are_those_that_are_trained_alone():
    data, effort = Data(small_cases(4), small_cases(1)), Effort(epochs=2)
    units = [Unit("roads", "ce", 0), Unit("roads", "focal", 1), Unit("roads", "nacl", 0)]
    for ended in take_turns(((unit, unit_steps(unit, data, effort, {})) for unit in units), 2, "cpu"):
        alone, _ = trained(ended.name, data, effort)
        assert ended.trained.history == alone.history
        assert_same(ended.trained.network, alone.network)


def test_a_checkpoint_is_written_where_it_is_wanted(tmp_path):
    data = Data(small_cases(1), small_cases(1), tmp_path / "a.pt")
    first, _ = trained(Unit("roads", "ce", 0), data, Effort(epochs=1))
    steps = unit_steps(Unit("roads", "ce", 0), data, Effort(epochs=1), {})
    with pytest.raises(StopIteration) as end:  # without a single step
        next(steps)
    assert_same(end.value.value.network, first.network)


def test_histograms_stand_beside_the_checkpoint_until_they_are_forgotten(tmp_path):
    data = Data(small_cases(1), small_cases(1), tmp_path / "roads-svls_0.5.pt")
    assert data.histograms() == {}
    _, histograms = trained(Unit("roads", "ce", 0), data, Effort(epochs=1))
    assert data.histograms() == histograms
    assert {path.name for path in tmp_path.iterdir()} == {"roads-svls_0.5.pt", "roads-svls_0.5.json"}
    data.forget()
    assert data.histograms() == {}
    assert not list(tmp_path.iterdir())


def test_without_a_checkpoint_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = Data(small_cases(1), small_cases(1))
    _, histograms = trained(Unit("roads", "ce", 0), data, Effort(epochs=1))
    assert histograms
    assert data.histograms() == {}
    data.forget()
    assert not list(tmp_path.iterdir())


def test_the_seed_of_a_unit_decides_its_weights():
    def weights(seed):
        found, _ = trained(Unit("roads", "ce", seed), Data(small_cases(1), small_cases(1)), Effort(epochs=1))
        return torch.cat([value.detach().flatten() for value in found.network.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize(
    ("task", "shape", "layout"),
    [("streets", (3, 3, 8, 9), torch.channels_last), ("tumour", (2, 4, 8, 9, 10), torch.channels_last_3d)],
)
def test_weights_lie_channels_last(task, shape, layout):
    network = make_network(Unit(task, "ce", 0))
    convolutions = [value for value in network.parameters() if value.ndim == len(shape) and value.shape[-1] == 3]
    assert len(convolutions) > 10
    assert all(value.is_contiguous(memory_format=layout) for value in convolutions)
    assert network(torch.rand(shape)).shape[2:] == shape[2:]
