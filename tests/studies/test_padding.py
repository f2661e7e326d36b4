"""The padding artefact: the numbers of a padded voxel, what they do, and that a check catches it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs, to_builtins

from segcal.cases import ArrayCases
from segcal.cases.check import check
from segcal.errors import InputError
from segcal.fitting import FitConfig
from segcal.studies.padding import PaddedCases, run_padding, study_padding
from segcal.studies.study import NothingToStudyError


@pytest.fixture(scope="module")
def study(masked_cases):
    cases, _ = masked_cases()
    return study_padding(cases.split(2, 1), ["identity", "ts", "dc"], FitConfig(voxels=200, lam=1e-4, mu=1e-4))


def test_without_a_mask_the_padding_rules_the_uncalibrated_numbers(study):
    share = 1 - 5 * 6 * 4 / (8 * 9 * 4)
    confidence = math.e / (math.e + 4)
    inside, whole = (study.data.calibrators["identity"][way] for way in ("masked", "unmasked"))
    assert confidence == pytest.approx(0.4046097, abs=1e-7)
    expected = share * 0.9048324 + (1 - share) * inside["nll"].value
    assert whole["nll"].value == pytest.approx(expected, rel=1e-5)
    assert whole["ece"].value > share * 0.59 > 2 * inside["ece"].value
    assert to_builtins(study.data.padded_voxel) == pytest.approx(
        {"confidence": 0.4046097, "gap": 0.5953903, "nll": 0.9048324}
    )


def test_the_temperature_is_driven_down_and_hurts_the_voxels_that_are_real(study):
    temperature = study.data.temperature
    assert temperature["unmasked"] < 0.7 * temperature["masked"]
    ts = study.data.calibrators["ts"]
    assert ts["rescued"]["nll"].value > ts["masked"]["nll"].value
    assert ts["rescued"]["dice"].value == ts["masked"]["dice"].value


def test_the_check_reports_every_padded_case_and_none_inside_the_mask(study):
    check = study.data.check
    assert (check.cases, check.caught, check.caught_inside_the_mask) == (3, 3, 0)
    assert check.mean_share == pytest.approx(1 - 120 / 288)
    notes = study.tables["padding"].notes
    assert "58 % of the voxels, each with confidence 0.405 and NLL 0.905" in notes[0]
    assert "in 3 of 3 cases" in notes[1]


def test_of_a_benchmark_the_first_task_with_masks_is_padded_and_its_own_fits_are_the_masked_ones(setting):
    study = run_padding(setting)
    assert list(study.data.calibrators) == ["identity", "ts", "ms", "cms_ap"]
    rows = setting.results.repeats("toy", "ts(mean_logits)")[0].rows
    expected = sum(row.metrics["nll"] for row in rows) / len(rows)
    assert study.data.calibrators["ts"]["masked"]["nll"].value == pytest.approx(expected, rel=1e-9)
    assert study.data.check.caught == len(rows)


def test_without_masks_there_is_nothing_to_pad(setting):
    tasks = tuple(task for task in setting.protocol.tasks if task.name == "plain")
    with pytest.raises(NothingToStudyError, match="no task has logits with their offset and a mask"):
        run_padding(replace(setting, protocol=structs.replace(setting.protocol, tasks=tasks)))


def test_padded_cases_hold_a_unit_vector_outside_and_are_untouched_inside(masked_cases):
    cases, mask = masked_cases(1)
    real, padded = cases.read("0"), PaddedCases(cases, masked=False).read("0")
    kept = PaddedCases(cases, masked=True).read("0")
    assert padded.mask is None
    assert (padded.logits[:, ~mask] == torch.tensor([1.0, 0, 0, 0, 0])[:, None]).all()
    assert (padded.logits[:, mask] == real.logits[:, mask]).all()
    assert (padded.labels[~mask] == 0).all()
    assert (padded.labels[mask] == real.labels[mask]).all()
    assert (kept.logits == padded.logits).all()
    assert (kept.labels == real.labels).all()


def test_cases_without_a_mask_or_without_labels_are_refused():
    logits = [np.zeros((2, 3, 4), "float32")]
    labels = [np.zeros((3, 4), int)]
    with pytest.raises(InputError, match="case '0' has no mask, but the padding study needs both"):
        PaddedCases(ArrayCases(logits, labels), masked=True).read("0")
    masked = ArrayCases(logits, masks=[np.ones((3, 4), bool)])
    with pytest.raises(InputError, match="case '0' has no labels"):
        PaddedCases(masked, masked=True).read("0")


def test_the_mask_makes_the_padding_harmless(masked_cases):
    cases, _ = masked_cases()
    plain = cases.split(2, 1)
    padded = PaddedCases(cases, masked=True).split(2, 1)
    for a, b in zip(plain.test, padded.test, strict=True):
        counts = a.labels >= 0
        assert (a.labels == b.labels).all()
        assert (a.logits[:, counts] == b.logits[:, counts]).all()


def test_the_folder_check_calls_padded_logits_an_error(masked_cases, tmp_path):
    cases, _ = masked_cases(2)
    for folder, mine in (("clean", cases), ("padded", PaddedCases(cases, masked=False))):
        (tmp_path / folder).mkdir()
        for case in mine:
            np.save(tmp_path / folder / f"{case.id}.npy", case.logits.numpy())
    labels = tmp_path / "labels"
    labels.mkdir()
    for case in PaddedCases(cases, masked=False):
        np.save(labels / f"{case.id}.npy", case.labels.numpy())
    assert check(tmp_path / "clean", labels, kind="logits").usable
    found = check(tmp_path / "padded", labels, kind="logits")
    errors = [problem for problem in found.problems if problem.severity == "error"]
    assert [problem.case_id for problem in errors] == ["0", "1"]
    assert "suspected padding" in errors[0].text
