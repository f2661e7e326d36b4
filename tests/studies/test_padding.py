"""The padding artefact: the numbers of a padded voxel, what they do, and that a check catches it."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from segcal import fit
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.fitting import FitConfig
from segcal.studies.padding import padded, study_padding
from segcal.studies.study import ChangedCases


def pad(cases, masked):
    return ChangedCases(cases, partial(padded, masked=masked))


@pytest.fixture(scope="module")
def study(masked_cases):
    split = masked_cases()[0].split(2, 1)
    config = FitConfig(voxels=200, lam=1e-4, mu=1e-4)
    cal, val = (pad(part, True) for part in split[:2])
    return study_padding(
        split, {name: fit(name, cal, val, config).calibrator for name in ("identity", "ts", "dc")}, config
    )


def test_without_a_mask_the_padding_rules_the_uncalibrated_numbers(study):
    share = 1 - 5 * 6 * 4 / (8 * 9 * 4)
    confidence = math.e / (math.e + 4)
    inside, whole = (study.calibrators["identity"][way] for way in ("masked", "unmasked"))
    assert confidence == pytest.approx(0.4046097, abs=1e-7)
    expected = share * 0.9048324 + (1 - share) * inside["nll"].value
    assert whole["nll"].value == pytest.approx(expected, rel=1e-5)
    assert whole["ece"].value > share * 0.59 > 2 * inside["ece"].value
    assert study.padded_voxel == pytest.approx({"confidence": 0.4046097, "gap": 0.5953903, "nll": 0.9048324})


def test_the_temperature_is_driven_down_and_hurts_the_voxels_that_are_real(study):
    temperature = study.temperature
    assert temperature["unmasked"] < 0.7 * temperature["masked"]
    ts = study.calibrators["ts"]
    assert ts["rescued"]["nll"].value > ts["masked"]["nll"].value
    assert ts["rescued"]["dice"].value == ts["masked"]["dice"].value


def test_the_check_reports_every_padded_case_and_none_inside_the_mask(study, tables):
    check = study.check
    assert (check.cases, check.caught, check.caught_inside_the_mask) == (3, 3, 0)
    assert check.mean_share == pytest.approx(1 - 120 / 288)
    text = tables("padding", study)
    assert "58 % of the voxels, each with confidence 0.405 and NLL 0.905" in text
    assert "in 3 of 3 cases" in text


def test_of_a_benchmark_the_first_task_with_masks_is_padded_and_its_own_fits_are_the_masked_ones(setting, studied):
    found = studied["padding"]
    assert list(found.calibrators) == ["identity", "ts", "ms", "cms_ap"]
    rows = setting.results.repeats("toy", "ts(mean_logits)")[0].rows
    expected = sum(row.metrics["nll"] for row in rows) / len(rows)
    assert found.calibrators["ts"]["masked"]["nll"].value == pytest.approx(expected, rel=1e-9)
    assert found.check.caught == len(rows)


def test_padded_cases_hold_a_unit_vector_outside_and_are_untouched_inside(masked_cases):
    cases, mask = masked_cases(1)
    real, whole, kept = cases.read("0"), pad(cases, False).read("0"), pad(cases, True).read("0")
    assert whole.mask is None
    assert (whole.logits[:, ~mask] == torch.tensor([1.0, 0, 0, 0, 0])[:, None]).all()
    assert (whole.logits[:, mask] == real.logits[:, mask]).all()
    assert (whole.labels[~mask] == 0).all()
    assert (whole.labels[mask] == real.labels[mask]).all()
    assert (kept.logits == whole.logits).all()
    assert (kept.labels == real.labels).all()  # with the mask, padding is harmless
    logits = [np.zeros((2, 3, 4), "float32")]
    with pytest.raises(InputError, match="case '0' has no mask, but the padding study needs both"):
        pad(ArrayCases(logits, [np.zeros((3, 4), int)]), True).read("0")
    with pytest.raises(InputError, match="case '0' has no labels"):
        pad(ArrayCases(logits, masks=[np.ones((3, 4), bool)]), True).read("0")
