"""ECE says how many bins it has and how cases are averaged; one option gives the convention of the field."""

import json

import numpy as np
import pytest
import torch

import segcal
from segcal.cli import main
from segcal.errors import InputError
from segcal.report.document import metric_words
from segcal.report.paper_tables import BINS


def draw(count=5):
    """Return logits and labels of cases of very different sizes, so that pooling and averaging differ."""
    rng = np.random.default_rng(0)
    logits = [2 * rng.normal(size=(3, 4 + 9 * number, 7)) for number in range(count)]
    labels = [np.where(rng.random(z.shape[1:]) < 0.1 * number, 0, z.argmax(0)) for number, z in enumerate(logits)]
    return logits, labels


def loop(logits, labels, bins):
    """Return the ECE of a plain loop over all voxels."""
    sums = [[0, 0.0, 0.0] for _ in range(bins)]
    for z, y in zip(logits, labels, strict=True):
        p = np.exp(z) / np.exp(z).sum(0)
        for confidence, right in zip(p.max(0).ravel(), (p.argmax(0) == y).ravel(), strict=True):
            place = min(int(confidence * bins), bins - 1)
            sums[place][0] += 1
            sums[place][1] += confidence
            sums[place][2] += right
    return sum(abs(confidence - right) for _, confidence, right in sums) / sum(count for count, _, _ in sums)


def test_the_field_has_15_bins_of_all_voxels():
    logits, labels = draw()
    found = segcal.evaluate(segcal.ArrayCases(logits, labels), metrics=["ece", "ace", "nll"], convention="field")
    assert found.before["ece"].value == pytest.approx(loop(logits, labels, 15), abs=1e-12)
    usual = segcal.evaluate(segcal.ArrayCases(logits, labels), metrics=["ece"]).before["ece"].value
    assert usual == pytest.approx(np.mean([loop([z], [y], 50) for z, y in zip(logits, labels, strict=True)]), abs=1e-12)
    assert abs(usual - found.before["ece"].value) > 0.01


def test_it_is_the_number_of_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics.classification")
    logits, labels = draw()
    flat = torch.tensor(np.concatenate([z.reshape(3, -1) for z in logits], 1).T).softmax(1)
    truth = torch.tensor(np.concatenate([y.ravel() for y in labels]))
    expected = float(torchmetrics.MulticlassCalibrationError(3, n_bins=15, norm="l1")(flat, truth))
    found = segcal.evaluate(segcal.ArrayCases(logits, labels), metrics=["ece"], convention="field")
    assert found.before["ece"].value == pytest.approx(expected, abs=1e-6)


def test_intervals_of_pooled_numbers_are_there_and_hold_them():
    logits, labels = draw(9)
    found = segcal.evaluate(segcal.ArrayCases(logits, labels), metrics=["ece"], convention="field").before["ece"]
    assert found.low is not None
    assert found.low <= found.value <= found.high


def test_an_unknown_convention_is_refused():
    logits, labels = draw(2)
    with pytest.raises(InputError, match=r"no convention is named 'pooled'. Choose one of: paper, field"):
        segcal.evaluate(segcal.ArrayCases(logits, labels), convention="pooled")


@pytest.mark.parametrize("compared", [False, True])
def test_the_table_says_bins_and_averaging(compared):
    logits, labels = draw()
    cases = segcal.ArrayCases([z.astype(np.float32) for z in logits], labels)
    calibrator = segcal.fit("ts", cases).calibrator if compared else None
    text = str(segcal.evaluate(cases, calibrator, metrics=["nll", "ece", "mce", "ace"]))
    assert "ece: 50 bins, mean over cases" in text
    assert "ace: 15 bins, pooled over voxels" in text
    field = str(segcal.evaluate(cases, calibrator, metrics=["nll", "ece", "ace"], convention="field"))
    assert "ece, ace: 15 bins, pooled over voxels" in field
    assert max(map(len, text.splitlines())) <= 110


def test_other_tables_say_it_too():
    assert BINS == ("ECE: 50 bins, mean over cases; ACE: 15 bins, pooled over voxels.",)
    words = metric_words(segcal.METRICS)
    assert words["ece"].explained.endswith("(50 bins, mean over cases.)")
    assert words["ace"].explained.endswith("(15 bins, pooled over voxels.)")


def test_the_command_prints_it_and_takes_the_option(tmp_path, capsys):
    logits, labels = draw(4)
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        for folder, values in (("p", z), ("y", y.astype(np.uint8))):
            (tmp_path / folder).mkdir(exist_ok=True)
            np.save(tmp_path / folder / f"c{number}.npy", values)
    command = ["evaluate", str(tmp_path / "p"), str(tmp_path / "y"), "--kind", "logits", "--convention", "field"]
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)["before"]["ece"]["value"]
    assert found == pytest.approx(loop(logits, labels, 15), abs=1e-9)
    with pytest.raises(SystemExit):
        main(["fit", *command[1:5], "-o", str(tmp_path / "cal")])
    assert "ECE: 15 bins, mean over cases" in capsys.readouterr().out
