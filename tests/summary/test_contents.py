"""The summary of a folder: read with its types, refused when it is not ours. What is in it is tested where it is made."""

import json

import pytest
from msgspec import to_builtins

from segcal.errors import ArtifactError
from segcal.summary import SUMMARY, Bootstrap, Estimate, ResultRow, Summary, read_summary

ROWS = (
    ResultRow("t", "", "ts(single)", {"nll": Estimate(0.5, 0.25, 1.0, 7, 1)}, True),
    ResultRow("t", "u", "ts(single)", {"ace": Estimate(None, None, None, repeats=0)}, False),
)
EMPTY = Summary(1, "h", 3, Bootstrap(), {"lam": None, "voxels": 20_000}, ("n",), {}, (), (), {}, ROWS, ())


def test_a_summary_comes_back_as_it_was(tmp_path):
    (tmp_path / SUMMARY).write_text(json.dumps(to_builtins(EMPTY)))
    found = read_summary(tmp_path)
    assert found == EMPTY
    assert found.fit["voxels"] == 20_000
    assert found.numbers("t", "ts(single)")["nll"].low == 0.25
    assert found.numbers("t", "ts(single)", "u")["ace"].value is None
    assert found.numbers("t", "dc(single)") == {}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "is not readable .*No such file.*, but it must be as segcal wrote it"),
        ("{", "is not readable"),
        ("[1]", "is not a summary of schema 1, but one is needed. Run the benchmark again"),
        ('{"schema": 2}', "is not a summary of schema 1"),
        ('{"schema": 1}', "is not readable .*missing required field `hash`"),
    ],
)
def test_what_is_not_ours_is_refused(text, match, tmp_path):
    if text is not None:
        (tmp_path / SUMMARY).write_text(text)
    with pytest.raises(ArtifactError, match=match):
        read_summary(tmp_path)


def test_an_estimate_shows_what_it_is_of():
    assert repr(Estimate(0.5, 0.25, 1.0, 7, 1)) == "Estimate(value=0.5, low=0.25, high=1.0, cases=7, undefined=1)"
    assert repr(Estimate(0.5, 0.5, 0.5, repeats=1)) == "Estimate(value=0.5, low=0.5, high=0.5, repeats=1)"
