"""Trust that several raters teach: the sums of each rater are those of a case with its labels alone."""

import numpy as np
import pytest

import segcal
from segcal import ArrayCases, InputError
from segcal.trust.sums import sum_case, sum_raters

CLASSES, SPACE, RATERS = 3, (9, 8), 3


def task(cases=12):
    rng = np.random.default_rng(2)
    logits = [2 * rng.normal(size=(CLASSES, *SPACE)) for _ in range(cases)]
    maps = [np.stack([(z + rng.gumbel(size=z.shape)).argmax(0) for _ in range(RATERS)]) for z in logits]
    maps[0][1, :4] = 9
    maps[3][2] = 9
    return logits, maps


def test_sums_of_each_rater_are_those_of_its_labels():
    logits, maps = task()
    cases = ArrayCases(logits, maps, raters="axis", ignore=9)
    calibrator = segcal.fit("ts", cases).calibrator
    for place, case in enumerate(cases):
        found = sum_raters(calibrator, case)
        there = [number for number in range(RATERS) if (maps[place][number] != 9).any()]
        assert len(found) == len(there)
        for own, number in zip(found, there, strict=True):
            alone = ArrayCases([logits[place]], [maps[place][number]], ignore=9).read("0")
            wanted = sum_case(calibrator, alone)
            assert np.allclose(own.columns, wanted.columns, rtol=1e-12, equal_nan=True)
            assert np.allclose(own.joint, wanted.joint)
            assert np.allclose(own.histograms, wanted.histograms)


def test_intervals_cover_the_volumes_of_raters():
    rng = np.random.default_rng(0)
    logits = [2 * rng.normal(size=(2, 20, 20)) + rng.normal() * np.array([0, 1])[:, None, None] for _ in range(120)]
    bias = [rng.normal() for _ in logits]
    maps = [
        np.stack([(z[1] - z[0] + b / 2 + rng.normal() / 3 + rng.logistic(size=z[0].shape) > 0) for _ in range(RATERS)])
        for z, b in zip(logits, bias, strict=True)
    ]
    cases = ArrayCases(logits, [own.astype(int) for own in maps], raters="axis")
    split = cases.split(60, seed=1)
    fitted = segcal.learn_trust(segcal.fit("ts", split.cal), split.cal)
    assert len(fitted.reference.cases) == 60 * RATERS
    result = segcal.trust(fitted, split.test, level=0.8)
    assert "On average over cases like" in result.promise
    assert "labelled by up to 3 raters: intervals are for what a rater marks" in result.promise
    assert segcal.card(fitted).monitoring.reference_cases == 60
    inside = []
    for row in result.rows:
        volumes = maps[int(row["case"])].sum((1, 2))
        inside += [row["volume_low"] <= volume <= row["volume_high"] for volume in volumes]
    assert 0.7 < np.mean(inside) < 0.92
    assert not segcal.monitor(fitted, split.test).alarms
    with pytest.raises(InputError, match="a biomarker is learned from one labelling"):
        segcal.trust(fitted, split.test, level=0.8, biomarkers={"share": "{class 1} / 400"})


def test_the_chance_of_an_object_is_the_share_of_raters_who_marked_it():
    rng = np.random.default_rng(3)
    whole = np.ones((4, 4))
    logits = [2 * np.kron(rng.normal(size=(2, 5, 5)), whole) for _ in range(24)]
    maps = [
        np.stack([(z + np.kron(rng.gumbel(size=(2, 5, 5)), whole)).argmax(0) for _ in range(RATERS)]) for z in logits
    ]
    maps[2][0] = 9
    cases = ArrayCases(logits, maps, raters="axis", ignore=9)
    fitted = segcal.learn_objects(segcal.fit("ts", cases), cases, held_out=True)  # all by one calibrator
    kept = fitted.objects.cases
    assert [sum(each.id == str(number) for each in kept) for number in range(4)] == [3, 3, 2, 3]
    alone = ArrayCases(logits, [own[1] for own in maps], ignore=9)
    once = segcal.learn_objects(fitted, alone, held_out=True).objects.cases
    for number in range(24):
        second = [each for each in kept if each.id == str(number)][1 if number != 2 else 0]
        assert second.objects == next(each for each in once if each.id == str(number)).objects
    found = segcal.objects(fitted, alone)
    real = [float(row) for each in kept for row in each.objects.split()[7::11]]
    assert np.mean([row.p_real for row in found.rows]) == pytest.approx(np.mean(real), abs=0.05)
    shares = [np.stack([(own == c).mean(0) for c in range(2)]) for own in maps[3:]]
    soft = ArrayCases(logits[3:], shares, raters="shares", num_raters=3)
    with pytest.raises(InputError, match="an object is real to each rater or not"):
        segcal.learn_objects(fitted, soft)
