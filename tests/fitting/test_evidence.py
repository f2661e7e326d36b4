"""Evidence in groups: counted by a loop, the optimum found by others, and a starved class that keeps the shared map."""

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from segcal import ArrayCases, FitConfig, fit, make_calibrator
from segcal.fitting.convex_problem import STEEPER
from segcal.fitting.evidence import collect, pair_table, shrinkage
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels
from tests.fitting.test_exact import bounds_of, objective, three_terms

STRONG = {"lam": 0.3, "mu": 0.3, "nu": 0.3}


def make(groups="aabcdef", classes=4, voxels=80, rare=(3, "b"), seed=0):
    """Cases in which one class is a label and a winner in one group alone."""
    rng = np.random.default_rng(seed)
    logits, labels = [], []
    for group in groups:
        z = 3 * rng.normal(size=(classes, voxels))
        z[rare[0]] -= 0 if group == rare[1] else 12
        truth = 0.5 * z + rng.gumbel(size=z.shape)
        truth[rare[0]] -= 0 if group == rare[1] else 50
        logits.append(z)
        labels.append(truth.argmax(0))
    return ArrayCases(logits, labels, groups=list(groups))


def source_of(cases):
    return SampledVoxels(cases, 10_000, 0, lambda: None)


@pytest.mark.parametrize("streamed", [False, True])
def test_groups_are_counted_that_have_a_winner_and_a_label(streamed):
    cases = make()
    table, groups = pair_table(StreamedVoxels(cases, lambda: None) if streamed else source_of(cases), cases)
    assert groups == 6
    winners, labels = ([set() for _ in range(6)] for _ in range(2))
    for case in cases:
        winners["abcdef".index(case.group)] |= set(case.logits.argmax(0).tolist())
        labels["abcdef".index(case.group)] |= set(case.labels.tolist())
    for winner in range(4):
        for label in range(4):
            both = [winner in w and label in k for w, k in zip(winners, labels, strict=True)]
            assert table[winner, label] == sum(both)
        assert table[winner, -1] == sum(winner in w for w in winners)
        assert table[-1, winner] == sum(winner in k for k in labels)
    assert table[-1, -1] == 6
    assert table[-1, 3] == 1


class Elsewhere(torch.Tensor):
    """A tensor that says it is on another device than plain ones: what joins both is refused, as a GPU does."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim]
        assert all(isinstance(x, Elsewhere) for x in tensors), f"{function} joins tensors of two devices"
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else found


def test_voxels_on_another_device_are_counted_there_and_nothing_of_two_devices_is_joined():
    cases, calibrator = make(), make_calibrator("cms_ap", 4)
    here, there = source_of(cases), source_of(cases)
    there._voxels = there._voxels.each(lambda values: values.as_subclass(Elsewhere))
    with pytest.raises(AssertionError, match="joins tensors of two devices"):
        _ = next(iter(there)).labels + next(iter(here)).labels
    found, expected = (shrinkage(calibrator, source, cases, 3) for source in (there, here))
    assert torch.equal(found.behind, expected.behind)
    assert found[2:] == expected[2:]


def test_where_no_variable_is_about_a_class_nothing_changes():
    cases = make()
    assert shrinkage(make_calibrator("conic", 4), source_of(cases), cases, 3) is None
    assert shrinkage(make_calibrator("cms_ap", 4), source_of(cases), cases, 0) is None


@pytest.mark.parametrize("name", ["cms_ap", "conic_class"])
def test_a_class_without_evidence_keeps_the_shared_map_exactly(name):
    """Its score below the winner is that of the shared curve: a temperature, or what all classes have in common."""
    cases = make()
    fitted = fit(name, cases, config=FitConfig(**STRONG))
    assert fitted.certificate.converged
    assert (3, 0, int(pair_table(source_of(cases), cases)[0][3, 0])) in fitted.certificate.shrunk
    z = 3 * torch.from_numpy(np.random.default_rng(5).normal(size=(500, 4)))
    first = z.argmax(1)
    beside = z[first != 3]
    scores = fitted.calibrator.scores(beside)
    below = scores.gather(1, first[first != 3, None])[:, 0] - scores[:, 3]
    gap = beside.amax(1) - beside[:, 3]
    if name == "cms_ap":
        torch.testing.assert_close(below, fitted.certificate.inverse_temperature * gap, rtol=1e-12, atol=1e-12)
        own = fitted.calibrator.scores(z[first == 3])
        expected = fitted.certificate.inverse_temperature * (z[first == 3].amax(1, keepdim=True) - z[first == 3])
        torch.testing.assert_close(own[:, 3:] - own, expected, rtol=1e-12, atol=1e-12)
    else:
        assert float(fitted.calibrator.of_pair[:, 3].abs().max()) == 0
        assert float(fitted.calibrator.of_pair[3].abs().max()) == 0
        assert float(fitted.calibrator.of_pair.max()) > 0
    free = fit(name, cases, config=FitConfig(**STRONG, evidence=0)).calibrator.scores(beside)
    assert not torch.allclose(free, scores, atol=1e-3)


def scaled(calibrator, anchor, roots):
    """A calibrator that is further from temperature scaling, variable by variable."""
    theta = calibrator.theta()
    other = make_calibrator(calibrator.name, calibrator.num_classes)
    weight, bias, gauge = other._unpack(anchor + roots * (theta - anchor))
    other.__dict__["_parameters"] = {"weight": weight, "bias": bias, "gauge": gauge}
    return other


@pytest.mark.parametrize("name", ["cms_ap", "cms_op", "cdc"])
def test_the_optimum_with_weights_is_certified_by_the_formula(name):
    """Every class is in enough groups to be free, but not in all of them."""
    cases = make("abcdef", rare=(3, "b"))
    more = make("ghijkl", rare=(3, "b"), seed=1)
    both = [case for part in (cases, more) for case in part]
    arrays = [case.logits.numpy() for case in both], [case.labels.numpy() for case in both]
    joined = ArrayCases(*arrays, groups=[case.group for case in both])
    fitted = fit(name, joined, config=FitConfig(**STRONG, evidence=1))
    calibrator, beta = fitted.calibrator.requires_grad_(), fitted.certificate.inverse_temperature
    table, groups = pair_table(source_of(joined), joined)
    concerns = calibrator.concerns()
    counts = table[concerns[..., 0], concerns[..., 1]].double()
    roots = (groups / counts.clamp(min=1)).sqrt().where((concerns >= 0).any(-1), 1.0)
    logits, labels = np.concatenate(arrays[0], 1), np.concatenate(arrays[1])
    anchor = calibrator.anchor(beta)
    value = objective(calibrator, logits, labels, 0, 0) + three_terms(scaled(calibrator, anchor, roots), 0.3, beta)
    value.backward()
    assert fitted.certificate.objective == pytest.approx(value.item(), abs=1e-9)
    low, high = bounds_of(calibrator)
    frozen = calibrator._unpack(counts < 1)
    for (key, parameter), held_back in zip(calibrator.named_parameters(), frozen, strict=True):
        if not parameter.numel():
            continue
        g = parameter.grad
        held = ((parameter <= low[key]) & (g > 0)) | ((parameter >= high[key]) & (g < 0)) | held_back.reshape(g.shape)
        assert float(torch.where(held, 0.0, g).abs().max()) <= 3e-6


def test_classes_are_counted_in_groups_and_voxels():
    cases = make()
    found = collect(source_of(cases), cases, None, {})
    labels = [(case.group, case.labels.numpy()) for case in cases]
    assert found.groups == 6
    for label in range(4):
        assert found.class_groups[label] == len({group for group, own in labels if (own == label).any()})
        assert found.class_voxels[label] == sum(int((own == label).sum()) for _, own in labels)
    assert found.influence == {}


def test_the_group_that_decides_a_temperature_is_named():
    """Five groups of T = 2, one that failed: without it the temperature is what the others say, refitted here."""
    rng = np.random.default_rng(0)
    logits = [4 * rng.normal(size=(3, 300)) for _ in range(6)]
    labels = [(z / 2 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    labels[4] = rng.integers(0, 3, 300)
    cases = ArrayCases(logits, labels, ids=[f"p{k}" for k in range(6)])
    fitted = fit("ts", cases)
    found = fitted.certificate.evidence.influence
    assert set(found) == {"p4"}
    without = fit("ts", cases.subset([i for i in cases.ids if i != "p4"])).calibrator.temperature
    exact = without / fitted.calibrator.temperature - 1
    assert exact < -0.3
    assert found["p4"] == pytest.approx(exact, rel=0.35)  # one step of Newton


def test_what_belongs_to_a_class_adds_little_to_a_slope():
    rng = np.random.default_rng(1)
    logits = [3 * rng.normal(size=(3, 400)) for _ in range(12)]
    sharp = [z * np.where(z.argmax(0) == 1, 3.0, 0.6) for z in logits]  # one class is far surer than the others
    labels = [(z + rng.gumbel(size=z.shape)).argmax(0) for z in sharp]
    cases = ArrayCases(logits, labels)
    found = fit("conic_class", cases, config=FitConfig())
    scale = found.certificate.inverse_temperature
    largest = float(found.calibrator.of_pair.max())
    assert largest == pytest.approx(STEEPER * scale)
    assert not any("of_pair" in bound for bound in found.certificate.active_bounds)  # a bound of the model
    free = fit("conic_class", cases, config=FitConfig(evidence=0))
    assert float(free.calibrator.of_pair.max()) > 2 * largest


def test_a_group_that_failed_and_counts_in_full_is_named():
    rng = np.random.default_rng(3)
    logits = [8 * rng.normal(size=(4, 300)) for _ in range(24)]
    labels = [np.where(rng.random(300) < 0.01, rng.integers(4, size=300), z.argmax(0)) for z in logits]
    groups = [f"p{number // 2}" for number in range(24)]
    assert fit("ts", ArrayCases(logits, labels, groups=groups)).certificate.evidence.failed == {}
    labels[8], labels[9] = logits[8].argmin(0), rng.integers(4, size=300)
    fitted = fit("ts", ArrayCases(logits, labels, groups=groups), config=FitConfig(voxels="all", outliers=False))
    evidence, losses = fitted.certificate.evidence, []
    for z, truth in zip(logits, labels, strict=True):
        scaled = z / float(fitted.calibrator.temperature)
        losses.append(np.log(np.exp(scaled).sum(0)) - scaled[truth, np.arange(300)])
    means = np.reshape(losses, (12, 600)).mean(1)
    assert set(fit("ts", ArrayCases(logits, labels, groups=groups)).certificate.evidence.weights) == {"p4"}
    assert evidence.weights == {}
    assert evidence.failed == {"p4": pytest.approx(means[4] / np.percentile(means, 75), rel=1e-6)}
