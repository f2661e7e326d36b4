"""Offset variability: numbers by hand and from a plain loop."""

import json

import numpy as np
import pytest

from segcal.benchmark.studies.examples import decode_map
from segcal.benchmark.studies.offsets import offset_study, run_offsets
from segcal.cases import ArrayCases


def make_cases(members):
    rng = np.random.default_rng(5)
    every = [[3 * rng.normal(size=(3, 6, 7)).astype("float32") for _ in range(5)] for _ in range(4)]
    labels = [rng.integers(3, size=(6, 7)) for _ in every]
    labels[0][0, :4] = 9
    names = [f"case{number}" for number in range(4)]
    arrays = [case[:members] for case in every]
    return ArrayCases(arrays, labels, ignore=9, ids=names, pooling="mean_logits"), arrays, labels


def test_the_spread_is_that_of_the_mean_logits_over_the_voxels_that_count(tmp_path):
    cases = {size: make_cases(size)[0] for size in (1, 3)}
    study = run_offsets({"toy": cases})
    _, arrays, labels = make_cases(3)
    expected = {}
    for number, (members, truth) in enumerate(zip(arrays, labels, strict=True)):
        mean = sum(member.astype(float) for member in members) / 3
        energies = [
            np.log(sum(np.exp(mean[c, i, j]) for c in range(3))) for i in range(6) for j in range(7) if truth[i, j] != 9
        ]
        expected[f"case{number}"] = pytest.approx(np.std(energies), rel=1e-5)
    assert study.data["tasks"]["toy"]["3"] == expected
    paths = study.write(tmp_path)
    assert [path.name for path in paths] == [
        "offsets.json", "table5_offsets.md", "table5_offsets.csv", "table5_offsets.tex",
    ]  # fmt: skip
    assert json.loads(paths[0].read_text())["study"] == "offsets"
    assert "M = 3" in paths[1].read_text()


def test_the_table_shows_mean_and_quartiles_by_ensemble_size():
    measured = {"a": {1: {"x": 1.0, "y": 2.0, "z": 6.0}, 2: {"x": 4.0, "y": 4.0, "z": None}}, "b": {2: {"x": 0.5}}}
    text = offset_study(measured).tables["table5_offsets"].to_markdown()
    assert "| a | 3 | 3.00 [1.50, 2.00, 4.00] | 4.00 [4.00, 4.00, 4.00] |" in text
    assert "| b | 1 | — | 0.50 [0.50, 0.50, 0.50] |" in text


def test_the_example_map_is_the_free_energy_of_the_largest_ensemble():
    study = run_offsets({"toy": {size: make_cases(size)[0] for size in (1, 3)}})
    example = study.data["examples"]["toy"]
    _, arrays, labels = make_cases(3)
    mean = sum(member.astype(float) for member in arrays[0]) / 3
    energy = np.log(np.exp(mean).sum(0))
    found = decode_map(example["free_energy"])
    counts = labels[0] != 9
    step = (example["free_energy"]["high"] - example["free_energy"]["low"]) / 255
    assert np.abs(found - energy)[counts].max() <= step / 2 + 1e-5
    assert (decode_map(example["labels"]) == np.where(counts, labels[0], 255)).all()
    assert example["image"] is None
