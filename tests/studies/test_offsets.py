"""Offset variability: numbers by hand and from a plain loop."""

import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.report.images import decode_map
from segcal.studies.offsets import OffsetsData, example_map


def test_the_spread_is_that_of_the_mean_logits_over_the_voxels_that_count(setting, studied):
    found = studied["offsets"].tasks["toy"]
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


def test_the_table_shows_mean_and_quartiles_by_ensemble_size(tables):
    spreads = {"1": {"x": 1.0, "y": 2.0, "z": 6.0}, "10": {"x": 4.0, "y": 4.0, "z": None}}
    text = tables("offsets", OffsetsData({"a": spreads, "b": {"10": {"x": 0.5}, "2": {"x": 0.25}}}))
    assert "| Dataset | n | M = 1 | M = 2 | M = 10 |" in text
    assert "| a | 3 | 3.00 [1.50, 2.00, 4.00] | — | 4.00 [4.00, 4.00, 4.00] |" in text
    assert "| b | 1 | — | 0.25 [0.25, 0.25, 0.25] | 0.50 [0.50, 0.50, 0.50] |" in text


def test_the_example_map_is_the_free_energy():
    rng = np.random.default_rng(5)
    arrays = [3 * rng.normal(size=(3, 6, 7)).astype("float32") for _ in range(2)]
    labels = [rng.integers(3, size=(6, 7)) for _ in arrays]
    labels[0][0, :4] = 9
    example = example_map(ArrayCases(arrays, labels, ignore=9))
    energy = np.log(np.exp(arrays[0].astype(float)).sum(0))
    found = decode_map(example.free_energy)
    counts = labels[0] != 9
    step = (example.free_energy["high"] - example.free_energy["low"]) / 255
    assert np.abs(found - energy)[counts].max() <= step / 2 + 1e-5
    assert (decode_map(example.labels) == np.where(counts, labels[0], 255)).all()
    assert example.image is None


def test_a_map_has_its_scale_beside_it_and_may_lack_a_picture(figures, texts, values, classes, picture, nasty):
    for image in (picture, None):
        example = {"case": nasty, "free_energy": values, "labels": classes, "image": image}
        figure = figures("offsets", {"tasks": {}, "examples": {"heart": example}})["energy_heart"].draw()
        assert len(figure.axes) == 3
        drawn = figure.axes[1].images[0]
        assert (drawn.norm.vmin, drawn.norm.vmax) == (values["low"], values["high"])
        assert texts(figure).count("free energy in nats") == 1
