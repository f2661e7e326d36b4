"""Rows of the methods of others: from lines of cases to means and pairs."""

import json

import numpy as np
import pytest

from paper import peer_rows
from segcal.cases import ArrayCases
from segcal.errors import InputError

VALUES = {metric: [0.25, 0.5, None, 0.75] for metric in peer_rows.COUNTED}


def line(division, method, shift=0.0, groups=("a", "a", "b", "c")):
    values = {name: [None if v is None else v + shift for v in column] for name, column in VALUES.items()}
    facts = {"division": division, "method": method, "chosen": "conic" if method == "default" else "", "seconds": 2.0}
    return facts | {"cal": 3, "groups": list(groups), "values": values}


def written(folder, *lines):
    (folder / "roads.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")
    return folder


def test_rows_are_means_over_cases_and_divisions_and_pairs_to_ours(tmp_path):
    shifts = {"ts": 0.0, "default": -0.1, "smart": 0.2}
    lines = [line(f"random {n}", name, shift + n) for n in (0, 1) for name, shift in shifts.items()]
    rows = {(row.task, row.method, row.metric): row for row in peer_rows.rows(written(tmp_path, *lines))}
    for name, shift in shifts.items():
        assert float(rows["roads, at random", name, "NLL"].value) == pytest.approx(np.mean([0.5, 1.5]) + shift)
    pair = rows["roads, at random", "smart against default", "ECE"]
    assert float(pair.value) == pytest.approx(0.3)
    assert (pair.cases, pair.repeats, pair.note) == (8, 2, "better in 0, worse in 6 cases")
    assert rows["roads, at random", "default", "chosen"].note == "conic, conic"


def test_lines_of_other_cases_are_refused(tmp_path):
    folder = written(tmp_path, line("random 0", "ts"), line("random 0", "smart", groups=("a", "a", "b", "d")))
    with pytest.raises(InputError, match="at random has other cases for smart than for ts"):
        list(peer_rows.rows(folder))


def test_voxels_are_drawn_from_those_with_a_label():
    logits = np.arange(24, dtype="float32").reshape(2, 12)
    labels = np.array([0, 1, -1, 1] * 3)
    cases = ArrayCases([logits, logits], [labels, labels], ignore=-1)
    found, truth = peer_rows.drawn(cases, 5)
    assert found.shape == (10, 2)
    places = found[:, 0].long().numpy()
    assert truth.numpy().tolist() == labels[places].tolist()
    assert (labels[places] >= 0).all()
    assert len(peer_rows.drawn(cases, 50)[1]) == 18
