"""Reading the summary of a folder of results."""

import pytest

from segcal.errors import ArtifactError
from segcal.report.document import read_summary


def test_what_is_not_a_summary_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"summary.json is not readable"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ArtifactError, match="is not a summary of schema 1"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text('{"schema": 1, "a": 2}', encoding="utf-8")
    assert read_summary(tmp_path)["a"] == 2
