import copy

import numpy as np
import pytest
import torch

from segcal import FitConfig
from segcal.calibrators.selective import Selector
from segcal.fitting import selector as training
from segcal.fitting.selector import Examples, train_selector


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(training, "LEAST_STEPS", 150)
    monkeypatch.setattr(training, "STARTS", 0)
    monkeypatch.setattr(training, "LEAST_STARTS", 2)
    monkeypatch.setattr(training, "TRIAL_STEPS", 30)


def silent(text):
    return None


def examples(count=3000, seed=0, classes=3):
    """Voxels that are wrong where the second class is near the first."""
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(3 * rng.normal(size=(count, classes)))
    leaders = logits.topk(2, dim=1).values
    doubt = torch.sigmoid(2 - 2 * (leaders[:, 0] - leaders[:, 1]))
    right = torch.as_tensor((rng.random(count) > doubt.numpy()).astype(int))
    return logits, Examples(logits.log_softmax(1).float(), right, torch.ones(count))


def margins(selector, logits):
    with torch.no_grad():
        return selector(logits).numpy()


def trained(repeats=1.0, seed=0, validation=True, **options):
    _, known = examples()
    selector = Selector(3)
    held_out = examples(seed=1)[1] if validation else None
    curve = train_selector(selector, known, held_out, repeats, FitConfig(seed=seed, **options), silent)
    return selector, curve


def test_it_learns_which_voxels_are_wrong():
    selector, curve = trained()
    logits, known = examples(seed=2)
    found, wrong = margins(selector, logits) > 0, known.right.numpy() == 0
    assert (found == wrong).mean() > 0.8
    assert min(curve) < curve[0]


def test_the_seed_decides_everything_and_global_randomness_nothing():
    torch.manual_seed(1)
    first, _ = trained()
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second, _ = trained()
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other, _ = trained(seed=5)
    assert not torch.equal(first.weight_1, other.weight_1)


def test_folding_changes_nothing(monkeypatch):
    kept = {}
    folded = training._Network.folded

    def keep(network):
        kept["network"] = copy.deepcopy(network).eval()
        return folded(network)

    monkeypatch.setattr(training._Network, "folded", keep)
    selector, _ = trained(validation=False)
    logits, known = examples(seed=3)
    with torch.no_grad():
        outputs = kept["network"](known.features)
    np.testing.assert_allclose(margins(selector, logits), (outputs[:, 0] - outputs[:, 1]).numpy(), rtol=1e-3, atol=1e-4)


def test_with_validation_the_best_epoch_is_kept(monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(training, "EPOCHS", {"exact": 3})
    monkeypatch.setattr(training, "LEAST_STEPS", 1)
    monkeypatch.setattr(training, "LEAST_STARTS", 1)
    monkeypatch.setattr(training, "_loss_of", lambda *args: next(losses))
    folded, calls = training._Network.folded, []
    monkeypatch.setattr(training._Network, "folded", lambda network: calls.append(folded(network)) or calls[-1])
    selector, curve = trained()
    assert curve == (3.0, 1.0, 2.0)
    assert len(calls) == 2
    assert torch.equal(selector.weight_1.detach(), calls[1][1][0])


def test_the_best_start_goes_on(monkeypatch):
    """Of three starts, the second has the lowest loss after its trial and is the one that is trained to the end."""
    losses = iter([3.0, 1.0, 2.0, 0.9, 0.8])
    monkeypatch.setattr(training, "EPOCHS", {"exact": 3})
    monkeypatch.setattr(training, "LEAST_STEPS", 1)
    monkeypatch.setattr(training, "TRIAL_STEPS", 1)
    monkeypatch.setattr(training, "LEAST_STARTS", 3)
    monkeypatch.setattr(training, "_loss_of", lambda *args: next(losses))
    assert trained()[1] == (1.0, 0.9, 0.8)


@pytest.mark.parametrize("kind", [0, 1])
def test_with_one_kind_only_there_is_nothing_to_learn(kind):
    logits, known = examples(50)
    same = Examples(known.features, torch.full_like(known.right, kind), known.weight)
    selector = Selector(3)
    assert train_selector(selector, same, None, 1.0, FitConfig(), silent) == ()
    assert (margins(selector, logits) > 0).all() == (kind == 0)
