"""What is measured of regions, against numbers counted by hand; and apply, audit and evaluate from end to end."""

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators import make_calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.evaluation.slabs import calibrated_scores
from segcal.fitting.certificate import Certificate, Fitted
from segcal.regions import Regions

DECLARED = {"whole": [1, 2, 3], "core": [2, 3], "edge": [1, 2]}
REGIONS = Regions.declared(DECLARED)
SPACE = (6, 8, 5)


def data(cases=3, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=(cases, 3, *SPACE)) * 2).astype(dtype)
    scores[:, :, 0, 0, :2] = 0.0
    labels = rng.integers(0, 5, size=(cases, *SPACE))
    labels[:, -1] = 255
    return scores, labels


def cases_of(scores, labels, kind="logits"):
    return segcal.ArrayCases(list(scores), list(labels), ignore=255, kind=kind, regions=DECLARED)


def on_side(values):
    """A map that anybody could write: some power of the odds in each region, and a shift for the last."""
    odds = values.double() * torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64).reshape(1, 3, 1, 1, 1)
    odds[:, 2] += 0.7
    return torch.nn.functional.logsigmoid(odds)


def test_numbers_of_each_region_are_those_of_its_probability():
    z, y = data()
    result = segcal.evaluate(cases_of(z, y), lambda logits, context: on_side(logits), metrics=None)
    for number, (name, own) in enumerate(DECLARED.items()):
        for stage, estimates in (("before", result.before), ("after", result.after)):
            values = []
            for scores, labels in zip(z.astype(np.float64), y, strict=True):
                counts, truth = labels != 255, np.isin(labels, own)
                odds = scores[number] * ([0.5, 3.0, 1.0][number] if stage == "after" else 1)
                odds = odds + (0.7 if stage == "after" and number == 2 else 0)
                p = (1 / (1 + np.exp(-odds)))[counts]
                t = truth[counts].astype(float)
                sure, right = np.maximum(p, 1 - p), (p > 0.5) == (t == 1)
                bins = np.minimum(np.ceil(sure * 50).astype(int), 50) - 1
                ece = sum(abs((sure - right)[bins == b].sum()) for b in range(50)) / len(p)
                dice = 2 * ((p > 0.5) & (t == 1)).sum() / ((p > 0.5).sum() + t.sum())
                nll = -np.log(np.where(t == 1, p, 1 - p)).mean()
                values.append([nll, 2 * ((p - t) ** 2).mean(), ece, dice])
            for metric, expected in zip(("nll", "brier", "ece", "dice"), np.mean(values, 0), strict=True):
                assert estimates[f"{metric} ({name})"].value == pytest.approx(expected, rel=1e-5), (metric, name, stage)
    flips = np.mean([((s[2] + 0.7 > 0) != (s[2] > 0))[lab != 255].mean() for s, lab in zip(z, y, strict=True)])
    assert result.after["flip_rate (edge)"].value == pytest.approx(flips)
    assert result.after["flip_rate (whole)"].value == 0
    assert result.after["flip_rate"].value == pytest.approx(flips / 3)


def test_the_label_map_and_nesting_are_counted():
    z, y = data(seed=1)
    result = segcal.evaluate(cases_of(z, y), lambda logits, context: on_side(logits), metrics=["nll", "flip_rate"])
    changed, turned = [], {"before": [], "after": []}
    for scores, labels in zip(z.astype(np.float64), y, strict=True):
        counts = labels != 255
        after = scores * np.array([0.5, 3.0, 1.0])[:, None, None, None]
        after[2] += 0.7
        maps = []
        for values in (scores, after):
            found = np.zeros(SPACE, int)
            for number, label in enumerate(REGIONS.order):
                found[values[number] > 0] = label
            maps.append(found)
        changed.append((maps[0] != maps[1])[counts].mean())
        for stage, values in (("before", scores), ("after", after)):
            turned[stage].append(np.mean([(values[i] > values[o])[counts] for i, o in ((1, 0), (2, 0))]))
    assert result.after["label_map_flips"].value == pytest.approx(np.mean(changed))
    assert np.mean(changed) > 0.01
    assert result.before["nesting"].value == pytest.approx(np.mean(turned["before"]))
    assert result.after["nesting"].value == pytest.approx(np.mean(turned["after"]))
    rows = [row for row in result.rows if row["stage"] == "after"]
    assert [row["label_map_flips"] for row in rows] == pytest.approx(changed)
    assert rows[0]["voxels"] == 5 * 8 * 5


def fitted_with(randomise, name="conic_class", **options):
    inner = [randomise(make_calibrator(name, 2, **options), seed=number) for number in range(3)]
    calibrator = PerRegion(REGIONS, inner).eval().requires_grad_(False)
    return Fitted(calibrator, Certificate("convex", 0, 0, 0, True, 1, 1, 1), segcal.FitConfig(), REGIONS.names)


def test_slabs_change_nothing(randomise):
    fitted = fitted_with(randomise, contexts=["gap_near", "share_near", "gap_image"])
    case = next(iter(cases_of(*data(1))))
    whole = calibrated_scores(fitted.calibrator, case)
    for values in (60, 700):
        torch.testing.assert_close(calibrated_scores(fitted.calibrator, case, values=values), whole)
    torch.testing.assert_close(whole[None], fitted.calibrator.scores(case.logits[None]))


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "logits"), (np.float32, "sigmoid"), (np.float16, "sigmoid")])
def test_files_keep_masks_and_nesting_bit_by_bit(tmp_path, randomise, dtype, kind):
    z, _ = data(dtype=dtype)
    stored = z if kind == "logits" else (1 / (1 + np.exp(-z.astype(np.float64)))).astype(dtype)
    (tmp_path / "in").mkdir()
    for number, values in enumerate(stored):
        np.save(tmp_path / "in" / f"c{number}.npy", values)
    fitted = fitted_with(randomise)
    limit = 0.0 if kind == "logits" else 0.5
    for target, output in (("same", None), ("other", "sigmoid" if kind == "logits" else "logits")):
        cases = segcal.open_cases(tmp_path / "in", kind=kind, regions=DECLARED)
        applied = segcal.apply(fitted, cases, tmp_path / target, output_kind=output, confidence_map=True)
        assert (applied.flips, applied.voxels) == (0, 3 * 6 * 8 * 5)
        for number, before in enumerate(stored):
            after = np.load(tmp_path / target / f"c{number}.npy")
            assert after.dtype == dtype
            own = limit if output is None else 0.5 - limit
            np.testing.assert_array_equal(after > own, before > limit)
            assert not np.array_equal(after, before)
            for inner, outer in REGIONS.nested:
                held = before[inner] <= before[outer]
                assert (after[inner] <= after[outer])[held].all()
    assert len(list((tmp_path / "same" / "confidence").iterdir())) == 3


def test_the_audit_knows_what_is_promised(randomise):
    z, y = data()
    found = segcal.audit(fitted_with(randomise), cases_of(z, y))
    assert found.passed
    assert (found.flips, found.voxels) == (0, 3 * 6 * 8 * 5)
    assert [finding.promise for finding in found.findings] == ["decision"] * 3 + ["nesting"]
    assert str(found).splitlines()[1].startswith("  [ok  ] whole: keeps where it is on")
    platt = fitted_with(lambda each, seed: each, "vs_ti")
    for each in platt.calibrator.inner:
        each.bias.copy_(torch.tensor([0.5, 0.0]))
    found = segcal.audit(platt, cases_of(z, y))
    assert found.passed  # it promises nothing
    assert found.flips == int((((z - 0.5) > 0) != (z > 0)).any(1).sum())
    assert "does not promise to keep regions nested (2 pairs)" in str(found)


def test_a_broken_promise_is_found(randomise):
    fitted = fitted_with(randomise)
    fitted.calibrator._nested = lambda odds, logits: odds
    found = segcal.audit(fitted)
    assert not found.passed
    assert [finding.holds for finding in found.findings] == [True, True, True, False]
