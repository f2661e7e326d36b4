"""Masks with a bound and lists of objects on a page: what is said to be found is what labels say."""

import numpy as np
import pytest
from msgspec import UNSET

import segcal
from segcal.report.decided import decided_section


def make_cases(seed, count):
    rng = np.random.default_rng(seed)
    centres = rng.integers(3, 10, (count, 2, 2))
    rows, columns = np.mgrid[:13, :14]
    truth = np.zeros((count, 13, 14), int)
    for case, places in enumerate(centres):
        for number, (row, column) in enumerate(places, start=1):
            truth[case][np.hypot(rows - row, columns - column) < 3] = number
    logits = 2.5 * np.eye(3)[truth].transpose(0, 3, 1, 2) + rng.normal(size=(count, 3, 13, 14))
    truth[:, 0] = -1
    return segcal.ArrayCases(
        logits=list(logits), labels=list(truth), ids=[f"{seed} {number}" for number in range(count)], ignore=-1
    )


@pytest.fixture(scope="module")
def fitted():
    found = segcal.learn_trust(segcal.fit("ts", make_cases(0, 12)), make_cases(1, 30))
    return segcal.learn_objects(found, make_cases(1, 30))


def test_recall_and_precision_that_are_found_are_those_of_the_labels(fitted):
    cases = make_cases(2, 7)
    section = decided_section(fitted, cases)
    assert (section.cases, section.of) == (7, 7)
    assert [(row.rule, row.structure) for row in section.bounded] == [
        (rule, f"class {number}") for rule in ("recall=0.9", "precision=0.9") for number in (1, 2)
    ]
    for row in section.bounded:
        number, shares, sizes = int(row.structure[-1]), [], np.zeros(2)
        for case in cases:
            probs = fitted.calibrator(case.logits[None])[0].exp().double().numpy()[number]
            labels = case.labels.numpy()
            mask = probs >= row.threshold
            hit = (mask & (labels == number)).sum()
            whole = (labels == number).sum() if row.rule == "recall=0.9" else (mask & (labels >= 0)).sum()
            if whole:
                shares.append(hit / whole)
            elif row.rule != "recall=0.9":
                shares.append(1.0)
            sizes += mask.sum(), (case.logits.numpy().argmax(0) == number).sum()
        assert (row.found, row.cases) == (pytest.approx(np.mean(shares)), len(shares))
        assert row.size == pytest.approx(sizes[0] / sizes[1])
        assert row.promised == 0.9


def test_lists_of_objects_are_counted_with_what_labels_say(fitted):
    cases = make_cases(2, 7)
    section, found = decided_section(fitted, cases), segcal.objects(fitted, cases)
    for row in section.listed:
        own = [one for one in found.rows if one.structure == row.structure]
        assert (row.objects, row.listed) == (len(own), sum(bool(one.listed) for one in own))
        assert row.real == pytest.approx(sum(one.real is True for one in own) / 7)
        shares = []
        for case in cases.ids:
            listed = [one.real for one in own if one.case == case and one.listed and one.real is not None]
            shares.append(listed.count(False) / len(listed) if listed else 0.0)
        assert row.false_share is None or row.false_share == pytest.approx(np.mean(shares))
    assert len(section.promises) == 3


def test_what_was_not_learned_has_no_section():
    plain = segcal.fit("ts", make_cases(0, 12))
    assert decided_section(plain, make_cases(2, 3)) is UNSET
    few = segcal.learn_trust(plain, make_cases(1, 4))  # 90 % needs nine
    assert decided_section(few, make_cases(2, 3)) is UNSET
