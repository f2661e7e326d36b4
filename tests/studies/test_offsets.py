"""Offset variability: numbers by hand and from a plain loop."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal.benchmark.tasks import OpenTask
from segcal.cases import ArrayCases
from segcal.report.pictures import decode_map
from segcal.studies.offsets import EnergyExample, energy_figure, example_map, offset_outcome, run_offsets
from segcal.studies.study import NothingToStudyError


def make_cases():
    rng = np.random.default_rng(5)
    arrays = [3 * rng.normal(size=(3, 6, 7)).astype("float32") for _ in range(2)]
    labels = [rng.integers(3, size=(6, 7)) for _ in arrays]
    labels[0][0, :4] = 9
    return ArrayCases(arrays, labels, ignore=9), arrays, labels


def test_the_spread_is_that_of_the_mean_logits_over_the_voxels_that_count(setting):
    study = run_offsets(setting)
    found = study.data.tasks["toy"]
    assert list(found) == ["1", "2", "3"]
    for size in (1, 2, 3):
        expected = {}
        for case in setting.some(setting.protocol.open(setting.tasks[0], "mean_logits", size).cases):
            logits, labels = case.logits.numpy().astype(float), case.labels.numpy()
            energies = [
                np.log(sum(np.exp(logits[c, i, j]) for c in range(3)))
                for i, j in zip(*np.nonzero(labels >= 0), strict=True)
            ]
            expected[case.id] = pytest.approx(np.std(energies), rel=1e-5)
        assert found[str(size)] == expected


def test_the_table_shows_mean_and_quartiles_by_ensemble_size():
    measured = {"a": {1: {"x": 1.0, "y": 2.0, "z": 6.0}, 2: {"x": 4.0, "y": 4.0, "z": None}}, "b": {2: {"x": 0.5}}}
    text = offset_outcome(measured).tables["table5_offsets"].to_markdown()
    assert "| a | 3 | 3.00 [1.50, 2.00, 4.00] | 4.00 [4.00, 4.00, 4.00] |" in text
    assert "| b | 1 | — | 0.50 [0.50, 0.50, 0.50] |" in text


def test_the_example_map_is_the_free_energy():
    cases, arrays, labels = make_cases()
    example = example_map(cases)
    energy = np.log(np.exp(arrays[0].astype(float)).sum(0))
    found = decode_map(example.free_energy)
    counts = labels[0] != 9
    step = (example.free_energy["high"] - example.free_energy["low"]) / 255
    assert np.abs(found - energy)[counts].max() <= step / 2 + 1e-5
    assert (decode_map(example.labels) == np.where(counts, labels[0], 255)).all()
    assert example.image is None


def test_probabilities_have_no_offset_to_study(setting):
    cases = ArrayCases([np.full((2, 3, 4), 0.5)], [np.zeros((3, 4), int)], kind="probs")
    protocol = structs.replace(setting.protocol, embedded=lambda *_, once=False: OpenTask(cases, True))
    with pytest.raises(NothingToStudyError, match="no task has logits with their offset"):
        run_offsets(replace(setting, protocol=protocol))


def test_every_map_has_its_scale_beside_it_and_may_lack_a_picture(texts, values, classes, picture, nasty):
    examples = {"roads": EnergyExample(nasty, values, classes, picture), "heart": EnergyExample("b", values, classes)}
    figure = energy_figure(examples)
    assert len(figure.axes) == 6
    drawn = figure.axes[1].images[0]
    assert (drawn.norm.vmin, drawn.norm.vmax) == (values["low"], values["high"])
    assert texts(figure).count("free energy in nats") == 2
