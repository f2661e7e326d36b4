"""The file of a stream: what was changed is noticed."""

import json

import pytest

from segcal.errors import ArtifactError
from segcal.trust.monitored import StreamDraw, read_state, write_state

DRAW = StreamDraw("\0a", ["a"], "1 2", 0.5, "0.5 0.2", 0.5, "entropy", 1.0, None)


def test_it_reads_back(tmp_path):
    write_state(tmp_path / "s.json", "digest", [DRAW])
    assert read_state(tmp_path / "s.json", "digest") == [DRAW]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 3}, "has version 3, but this segcal reads 2. Update segcal"),
        ({"version": 1}, "has version 1, whose p-values are not right .* goes on with 2. Name a new file"),
        ({"format": "other"}, "is not readable as a stream"),
        ({"draws": [{"name": "a"}]}, "is not readable as a stream"),
    ],
)
def test_other_files_are_refused(tmp_path, change, text):
    write_state(tmp_path / "s.json", "digest", [DRAW])
    plain = json.loads((tmp_path / "s.json").read_text("utf-8")) | change
    (tmp_path / "s.json").write_text(json.dumps(plain))
    with pytest.raises(ArtifactError, match=text):
        read_state(tmp_path / "s.json", "digest")
