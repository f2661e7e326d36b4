import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from segcal import ArrayCases, FitConfig, fit
from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.fitting.division import gather
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.selective import KeptVoxels
from segcal.fitting.voxels import HeldVoxels, StreamedVoxels, Voxels, draw, join, systematic


def silent():
    pass


def test_the_sample_of_a_case_does_not_depend_on_its_neighbours(make_cases):
    cases = make_cases(4, 3000, parts=3)
    whole = next(iter(SampledVoxels(cases, 100, 0, silent)))
    alone = next(iter(SampledVoxels(cases.subset(["0"]), 100, 0, silent)))
    assert torch.equal(whole.logits[:, : alone.labels.numel()], alone.logits)


def test_ignored_voxels_and_those_outside_the_mask_are_never_used():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 30, 40))
    labels = rng.integers(0, 3, (30, 40))
    logits[0, :10] = 1e3  # what must not be seen
    labels[:5] = 255
    mask = np.ones((30, 40), bool)
    mask[5:10] = False
    cases = ArrayCases(logits=[logits], labels=[labels], masks=[mask], ignore=255)
    for source in (SampledVoxels(cases, 100, 0, silent), StreamedVoxels(cases, silent)):
        assert source.available == 20 * 40
        for voxels in source:
            assert float(voxels.logits.max()) < 100
            assert int(voxels.labels.min()) >= 0


def test_a_stream_gives_every_voxel_once_in_bounded_steps(monkeypatch, make_cases):
    monkeypatch.setattr("segcal.fitting.voxels.STEP_VALUES", 1)  # 256 voxels a step
    logits = np.random.default_rng(0).normal(size=(3, 20, 50)).astype(np.float16)
    source = StreamedVoxels(ArrayCases(logits=[logits], labels=[np.zeros((20, 50), int)]), silent)
    steps = list(source)
    assert max(step.labels.numel() for step in steps) == 256
    together = torch.cat([step.logits for step in steps], 1)
    assert together.dtype == torch.float32
    assert np.array_equal(together.numpy(), logits.reshape(3, -1).astype(np.float32))
    assert source.used == source.available == source.total_weight == 1000


def test_nothing_to_count_is_refused():
    logits = np.zeros((3, 4))
    with pytest.raises(InputError, match="labels of all 2 cases are ignored everywhere, but at least one voxel must"):
        fit("ts", ArrayCases(logits=[logits] * 2, labels=[np.full(4, 255)] * 2, ignore=255))
    with pytest.raises(InputError, match="labels of all 1 cases are ignored everywhere"):
        fit("ts", ArrayCases(logits=[logits], labels=[np.full(4, 255)], ignore=255), config=FitConfig(voxels="all"))
    with pytest.raises(InputError, match=r"case '0'.* has no labels, but a fit needs them"):
        fit("ts", ArrayCases(logits=[logits]))


class GeneratedCases(Cases):
    """Cases that exist only while they are read."""

    def __init__(self, count):
        super().__init__([str(i) for i in range(count)], 8, "logits")
        self._logits, self._labels = draw_plain(8, 64 * 64)

    def read(self, case_id):
        logits, labels = (np.roll(part, 29 * int(case_id), axis=-1) for part in (self._logits, self._labels))
        return Case(case_id, torch.from_numpy(logits).view(8, 64, 64), torch.from_numpy(labels).view(64, 64))


def draw_plain(classes, count):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(classes, count)).astype(np.float32) * 3
    return logits, (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(0)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and the most there ever were."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._users = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), tensor)
        return out

    def _count(self, storage, tensor):
        key, size = storage.data_ptr(), storage.nbytes()
        users = self._users.get(key, 0)
        if users == 0:
            self.now += size
            self.peak = max(self.peak, self.now)
        self._users[key] = users + 1
        weakref.finalize(tensor, self._release, key, size)

    def _release(self, key, size):
        self._users[key] -= 1
        if self._users[key] == 0:
            self.now -= size


def peak_of(name, count, config):
    with LiveBytes() as live:
        fit(name, GeneratedCases(count), config=config)
    return live.peak


@pytest.mark.parametrize(("name", "voxels"), [("ts", "all"), ("ets", "all"), ("cms_ap", 4096), ("cms_ap", "all")])
def test_what_a_fit_holds_does_not_grow_with_the_number_of_cases(name, voxels, monkeypatch):
    monkeypatch.setattr("segcal.fitting.convex_problem.COARSE_VOXELS", 1 << 10)
    monkeypatch.setattr("segcal.fitting.outliers.FOLD_VOXELS", 1 << 10)
    config = FitConfig(voxels=voxels, memory=1 << 20, tol=1e-2, lam=0.01, mu=0.01)
    few, many = peak_of(name, 7, config), peak_of(name, 21, config)
    assert 1 << 17 < few < 1 << 26
    assert many < 1.15 * few


def held(classes=3, count=400, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(3 * rng.normal(size=(classes, count)))
    labels = torch.as_tensor(rng.integers(classes, size=count), dtype=torch.int32)
    return Voxels(logits, labels, torch.as_tensor(rng.uniform(1, 5, size=count)))


def test_a_large_sample_is_thinned_and_its_weight_stays():
    voxels = held(count=4000)
    found = gather(HeldVoxels(voxels, {"a": 4000}), 1000, seed=0)
    assert abs(found.labels.numel() - 1000) <= 1
    assert float(found.weight.sum()) == pytest.approx(float(voxels.weight.sum()), rel=0.05)
    assert torch.equal(found.logits, gather(HeldVoxels(voxels, {"a": 4000}), 1000, seed=0).logits)


def test_a_stream_is_drawn_from_and_its_weight_stays(make_cases):
    cases = make_cases(3, 6000, parts=3)
    stream = StreamedVoxels(cases, lambda: None)
    found = gather(stream, 1500, seed=1)
    assert 1300 < found.labels.numel() < 1700
    assert float(found.weight.sum()) == pytest.approx(6000, rel=0.1)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_rule_keeps_some_voxels_with_their_labels_and_weights(make_cases, streamed):
    cases = make_cases(3, 900, parts=2)
    source = StreamedVoxels(cases, lambda: None) if streamed else SampledVoxels(cases, 10_000, 0, lambda: None)
    kept = KeptVoxels(source, lambda logits: logits[1] > 0)
    together = join(list(source))[:3]
    stays = together[0][1] > 0
    assert kept.used == int(stays.sum()) == kept.available
    assert kept.total_weight == kept.used
    for found, expected in zip(join(list(kept))[:3], together, strict=True):
        assert torch.equal(found, expected[..., stays])
    assert (kept.ids, kept.num_classes, kept.streamed) == (source.ids, 3, streamed)


def voxels_of(classes, count, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(4 * rng.normal(size=(classes, count)))
    labels = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    return Voxels(logits, labels, torch.ones(count, dtype=torch.float64))


def nll_sum(voxels):
    own = voxels.logits.log_softmax(0).gather(0, voxels.labels.long()[None])[0]
    return float(-(voxels.weight * own).sum())


def test_weighted_sums_over_a_sample_are_unbiased():
    """The mean over many seeds is the sum over all voxels, for the count and for the likelihood."""
    voxels = voxels_of(4, 500)
    drawn = [draw(voxels, 60, np.random.default_rng(seed)) for seed in range(1000)]
    for quantity in (nll_sum, lambda sample: float(sample.weight.sum())):
        estimates = np.array([quantity(sample) for sample in drawn])
        error = estimates.std() / np.sqrt(len(estimates))
        assert abs(estimates.mean() - quantity(voxels)) < 4 * error
        assert estimates.std() > 0


def test_whether_a_voxel_is_drawn_does_not_depend_on_its_label():
    voxels = voxels_of(4, 500)
    other = voxels._replace(labels=(voxels.labels + 1) % 4)
    first, second = (draw(v, 60, np.random.default_rng(5)) for v in (voxels, other))
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("quota", [1, 499])
def test_a_sample_never_exceeds_its_quota(quota):
    voxels = voxels_of(4, 500)
    sizes = [draw(voxels, quota, np.random.default_rng(seed)).labels.numel() for seed in range(50)]
    assert max(sizes) <= quota
    assert max(sizes) > 0


def test_systematic_sampling_always_takes_what_is_certain():
    probability = torch.tensor([1.0, 0.2, 1.0, 0.3, 0.5, 1.0])
    for seed in range(20):
        index = systematic(probability, np.random.default_rng(seed)).tolist()
        assert {0, 2, 5} <= set(index)
        assert len(index) == len(set(index)) == 4
