"""Candidates held out where cases differ: what learns the class frequencies of one site is not taken to another."""

import numpy as np
import pytest

from segcal import ArrayCases, FitConfig
from segcal.fitting.comparison import compare, read_poolings

NAMES = ["identity", "ts", "dc"]


def cases_of(sites, declared=True, seed=2, classes=3, voxels=600):
    """Cases of sites, each with so many: at some the second class is less often right than its logits say."""
    rng = np.random.default_rng(seed)
    logits, labels, names = [], [], []
    for name, count, lean in sites:
        for _ in range(count):
            z = 3 * rng.normal(size=(classes, voxels)) + lean * np.eye(classes)[:, 1:2]
            logits.append(z.astype("float32"))
            labels.append((0.4 * z + lean * np.eye(classes)[:, 1:2] + rng.gumbel(size=z.shape)).argmax(0))
            names.append(name)
    return ArrayCases(
        logits, labels, ids=[f"s{seed}c{k:02d}" for k in range(len(names))], sites=names if declared else None
    )


def nll(calibrator, cases):
    losses = []
    for case in cases:
        log_probs = calibrator(case.logits[None].double())[0].numpy()
        losses.append(-np.take_along_axis(log_probs, case.labels.numpy()[None], 0).mean())
    return np.mean(losses)


def compared(cases, **options):
    config = FitConfig(**options)
    return compare(NAMES, read_poolings(cases, None, config), config)


@pytest.fixture(scope="module")
def home():
    return [("a", 18, -1.2), ("b", 4, 0.2)]


@pytest.mark.parametrize("declared", [True, False])
def test_what_learns_the_frequencies_of_a_site_does_no_harm_at_another(home, declared, monkeypatch):
    cases, other = cases_of(home, declared), cases_of([("c", 6, 1.0)], seed=52)
    simple = nll(compare(["ts"], read_poolings(cases, None, FitConfig()), FitConfig()).fitted.calibrator, other)
    fitted, decision = compared(cases)
    assert decision.chosen.name == "ts"
    assert nll(fitted.calibrator, other) == pytest.approx(simple)
    assert decision.reason.endswith("Where cases that differ are held out, harm was done by dc.")
    monkeypatch.setattr("segcal.fitting.comparison.find_sites", lambda *_: None)  # as it was
    before = compared(cases)
    assert before.decision.chosen.name == "dc"
    assert nll(before.fitted.calibrator, other) > simple + 0.1


def test_what_is_true_everywhere_is_taken(home):
    """Sites that lean alike: held out, each says the same."""
    cases = cases_of([(name, count, -1.2) for name, count, _ in home])
    fitted, decision = compared(cases)
    assert decision.chosen.name == "dc"
    assert fitted.certificate.evidence.sites == {"a": 18, "b": 4}
    assert fitted.certificate.evidence.declared
    assert fitted.certificate.lam == decision.chosen.strengths.lam
    assert {row["strength"] for row in fitted.certificate.path} >= {fitted.certificate.lam}


def test_parts_are_of_the_calibration_cases_where_others_validate(home):
    cases, validation = cases_of(home), cases_of([("a", 12, -1.2)], seed=9)
    config = FitConfig()
    decision = compare(NAMES, read_poolings(cases, validation, config), config).decision
    assert decision.folds == 1
    assert decision.chosen.name == "ts"  # validation cases of site a alone praise dc
    assert next(row for row in decision.candidates if row.name == "dc").against.mean < 0


def test_biases_are_tried_without_where_they_do_harm(home, monkeypatch):
    """Versions of a candidate: at its strength, at stronger ones, and then the same with biases held at zero."""
    seen = []
    monkeypatch.setattr("segcal.fitting.choice.harm", lambda *a: "harm")
    own = compare.__globals__["HeldOutFits"]._versions

    def versions(self, candidate, request, fixed, path, found):
        seen.append((fixed, tuple(path)))
        return own(self, candidate, request, fixed, path, found)

    monkeypatch.setattr("segcal.fitting.comparison.HeldOutFits._versions", versions)
    compared(cases_of(home))
    (first, path), (second, same) = seen
    assert first == (None, None, None)
    assert second == (None, 1e5, None)
    assert path == same
    assert max(path) < 1e5
