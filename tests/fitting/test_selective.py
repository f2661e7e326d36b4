import copy

import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, evaluate, fit, load, make_calibrator, save
from segcal.calibrators.selective import Selector
from segcal.fitting import selective
from segcal.fitting import selector as training
from segcal.fitting.selector import Examples, train_selector


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(training, "LEAST_STEPS", 120)
    monkeypatch.setattr(training, "STARTS", 0)
    monkeypatch.setattr(training, "LEAST_STARTS", 2)
    monkeypatch.setattr(training, "TRIAL_STEPS", 30)


def make_cases(seed, cases=2, classes=4, space=(20, 30), ignored=False):
    """Sure predictions that are right, and sure ones that are wrong wherever class 1 comes second."""
    rng = np.random.default_rng(seed)
    logits, labels = [], []
    for _ in range(cases):
        z = 2 * rng.normal(size=(classes, *space))
        z = np.where(z == z.max(0), z + 3, z)
        second = np.argsort(-z, axis=0)[1]
        y = np.where((second == 1) & (rng.random(space) < 0.8), 1, z.argmax(0))
        if ignored:
            y[:7] = 255
        logits.append(z.astype("float32"))
        labels.append(y)
    return ArrayCases(logits, labels, ids=[f"{seed}_{n}" for n in range(cases)], ignore=255)


def nll(cases, calibrator):
    return evaluate(cases, calibrator, metrics=["nll"], replicates=1).after["nll"].value


def test_it_beats_a_single_temperature_where_mistakes_can_be_recognised():
    cal, val, test = make_cases(0), make_cases(1), make_cases(2)
    plain, selected = fit("ts", cal), fit("selective", cal, val)
    assert nll(test, selected.calibrator) < nll(test, plain.calibrator) - 0.02
    found = selected.certificate.details["selector"]
    assert found["recall"] > 0.8
    assert found["precision"] > 0.6
    assert found["auroc"] > 0.85
    assert found["measured_on"] == "validation"
    assert (selected.certificate.method, selected.certificate.kkt_residual) == ("selector", None)
    assert selected.certificate.details["temperature_wrong"] > 1


def unsure_where_it_should_be(seed):
    """Predictions that are far too sure everywhere, with nothing that tells the wrong ones."""
    rng = np.random.default_rng(seed)
    logits = 6 * rng.normal(size=(4, 30, 40))
    return ArrayCases([logits.astype("float32")], [(logits / 6 + rng.gumbel(size=logits.shape)).argmax(0)])


def test_where_temperature_scaling_is_better_it_is_returned():
    cal, val, test = (unsure_where_it_should_be(seed) for seed in range(3))
    fitted, scaling = fit("selective", cal, val), fit("ts", cal)
    details = fitted.certificate.details
    assert details["returned"] == "ts"
    assert fitted.certificate.validation_nll == pytest.approx(details["ts_validation_nll"], rel=1e-6)
    assert nll(test, fitted.calibrator) == pytest.approx(nll(test, scaling.calibrator), rel=1e-5)
    assert fit("selective", make_cases(0), make_cases(1)).certificate.details["returned"] == "trained"
    other_rule = fit(make_calibrator("selective", 4, temperatures="ece"), cal, val)
    assert "returned" not in other_rule.certificate.details


def test_the_papers_rule_follows_the_recall(monkeypatch):
    cal = make_cases(0)
    calibrator = make_calibrator("selective", 4, temperatures="paper")
    assert fit(calibrator, cal).certificate.details["temperature_wrong"] == pytest.approx(1e10)
    quality = {"recall": 0.5, "precision": 1.0, "auroc": 1.0, "flagged_share": 0.1, "mispredicted_share": 0.1}
    monkeypatch.setattr(selective, "measure_selector", lambda *args: quality)
    details = fit(calibrator, cal).certificate.details
    assert (details["temperature_wrong"], details["temperature_right"]) == (2.0, 1.0)


@pytest.mark.parametrize("rule", ["nll", "ece"])
def test_the_temperatures_are_the_best_pair_of_the_lists(rule):
    cal, val = make_cases(0), make_cases(1)
    calibrator = fit(make_calibrator("selective", 4, temperatures=rule), cal, val).calibrator

    def score(wrong, right):
        with torch.no_grad():
            calibrator.inverse_temperature_wrong.fill_(1 / wrong)
            calibrator.inverse_temperature_right.fill_(1 / right)
            logits = torch.cat([case.logits.flatten(1) for case in val], 1).double()
            labels = torch.cat([case.labels.flatten() for case in val])
            log_q = calibrator(logits.T)
        if rule == "nll":
            return -float(log_q.gather(1, labels[:, None]).mean())
        confidence, hit = log_q.exp().max(1).values.numpy(), (logits.argmax(0) == labels).numpy()
        bins = np.ceil(confidence * 50).astype(int)
        return sum(abs((confidence - hit)[bins == b].sum()) for b in range(1, 51)) / len(hit)

    chosen = tuple(
        1 / float(x.detach()) for x in (calibrator.inverse_temperature_wrong, calibrator.inverse_temperature_right)
    )
    wrongs, rights = (1, 1.5, 2, 3, 5, 10, 100, 1e4), (1, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    scores = {(w, r): score(w, r) for w in wrongs for r in rights}
    assert score(*chosen) <= min(scores.values()) + 1e-6
    assert score(*chosen) < scores[(1, 1)]


@pytest.mark.parametrize("place", ["unflagged", "before"])
def test_an_inner_calibrator_is_fitted_too(place):
    cal, val, test = make_cases(0), make_cases(1), make_cases(2)
    alone = fit("selective", cal, val)
    both = fit(make_calibrator("selective", 4, inner="cms_ap", place=place), cal, val)
    assert nll(test, both.calibrator) < nll(test, alone.calibrator) + 1e-3
    inside = both.certificate.details["inner"]
    assert (inside["method"], inside["converged"]) == ("convex", True)
    assert (inside["voxels"] == 1200) == (place == "before")
    assert both.certificate.details["temperature_right"] is None


def test_an_inner_calibrator_sees_only_voxels_that_are_not_flagged():
    cal = make_cases(0)
    fitted = fit(make_calibrator("selective", 4, inner="ts"), cal)
    logits = torch.cat([case.logits.flatten(1) for case in cal], 1)
    with torch.no_grad():
        kept = fitted.calibrator.selector(logits[None])[0] <= 0
    labels = torch.cat([case.labels.flatten() for case in cal])
    own = ArrayCases([logits[:, kept].numpy()], [labels[kept].numpy()])
    expected = fit("ts", own).calibrator.inverse_temperature
    found = fitted.calibrator.inner.inverse_temperature
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_without_a_single_misprediction_nothing_is_flagged():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3, 30, 20))
    fitted = fit("selective", ArrayCases([z], [z.argmax(0)]))
    details = fitted.certificate.details
    assert details["mispredictions"] == 0
    assert (details["selector"]["recall"], details["selector"]["flagged_share"]) == (None, 0.0)
    assert details["temperature_wrong"] == 1.0
    assert details["temperature_right"] < 1
    assert np.isfinite(fitted.certificate.nll)


def test_it_is_saved_and_loaded_with_what_it_holds(tmp_path):
    fitted = fit(make_calibrator("selective", 4, inner="ets", place="before", repeats=2), make_cases(0), make_cases(1))
    loaded = load(save(fitted, tmp_path / "calibrator"))
    logits = make_cases(2).read("2_0").logits[None]
    assert torch.equal(loaded.calibrator(logits), fitted.calibrator(logits))
    assert loaded.calibrator.options["repeats"] == 2
    assert loaded.certificate.details["selector"] == fitted.certificate.details["selector"]


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
    curve = train_selector(selector, known, held_out, repeats, FitConfig(seed=seed, **options), lambda text: None)
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
    assert train_selector(selector, same, None, 1.0, FitConfig(), lambda text: None) == ()
    assert (margins(selector, logits) > 0).all() == (kind == 0)
