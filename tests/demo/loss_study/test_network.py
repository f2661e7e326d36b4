import numpy as np
import torch

from segcal.demo.loss_study.data import Stored
from segcal.demo.loss_study.network import LOGIT_EDGES, Effort, logit_histogram, make_network, train_unit
from segcal.demo.loss_study.plan import Unit


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


def test_a_unit_is_trained_with_its_loss_its_backbone_and_its_share():
    unit = Unit("roads", "nacl", 1, backbone="attention_unet", share=50)
    trained, histograms = train_unit(unit, small_cases(5), small_cases(2), Effort(epochs=2))
    assert type(trained.network).__name__ == "AttentionUNet"
    assert len(trained.history) == 2
    assert sorted(histograms) == [1, 2]


def test_the_same_seed_starts_from_the_same_weights():
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        weights = next(make_network(Unit("tumour", "ce", seed)).parameters())
        if seed == 0:
            first = weights
    assert not torch.equal(first, weights)
