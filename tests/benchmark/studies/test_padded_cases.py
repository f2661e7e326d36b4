"""Padded cases: what they hold, and that a check of a folder catches them."""

import numpy as np
import pytest
import torch

from segcal.benchmark.studies.padded_cases import PaddedCases
from segcal.cases import ArrayCases
from segcal.cases.check import check
from segcal.errors import InputError


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
