"""The studies of a protocol: names are checked, and what takes long is asked for."""

from pathlib import Path

import pytest

from segcal.benchmark.study_choice import STUDY_FACTS, check_studies
from segcal.errors import InputError


def test_a_study_that_does_not_exist_is_refused():
    for name in ("weather", ["x"], {"a": 1}):
        with pytest.raises(InputError, match=r"no study is named .*\. Choose one of: offsets"):
            check_studies([name])


def test_the_manual_lists_every_study_with_what_is_usual():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
    rows = {
        line.split("`")[1]: line.rstrip(" |").endswith("yes") for line in text.splitlines() if line.startswith("| `")
    }
    assert rows == {name: facts.usual for name, facts in STUDY_FACTS.items()}
