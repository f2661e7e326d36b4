"""The studies of a protocol: names are checked, and what takes long is asked for."""

from pathlib import Path

import pytest

from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.study_choice import STUDY_FACTS, USUAL, Options, read_options, read_studies
from segcal.errors import InputError

TASK = {"name": "x", "embedded": "roads"}


def test_a_protocol_has_the_usual_studies_unless_it_names_others():
    assert parse_protocol({"tasks": [TASK]}).studies == USUAL
    assert parse_protocol({"tasks": [TASK], "studies": []}).studies == ()
    assert parse_protocol({"tasks": [TASK], "studies": "all"}).studies == tuple(STUDY_FACTS)
    assert read_studies(["padding", "flips", "padding"]) == ("padding", "flips")


def test_studies_and_their_options_do_not_change_the_hash():
    plain = parse_protocol({"tasks": [TASK]})
    other = parse_protocol({"tasks": [TASK], "studies": ["flips"], "study_options": {"cases": 2}})
    assert other.study_options == Options(cases=2)
    assert plain.hash() == other.hash()


def test_a_study_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"no study is named 'weather'\. Choose one of: offsets"):
        read_studies(["weather"])
    with pytest.raises(InputError, match="protocol has studies = 'flips', but 'all' or a list of names is needed"):
        read_studies("flips")


def test_options_are_read_strictly():
    found = read_options({"sizes": [2, 5], "size_tasks": ["a"], "padding_calibrators": ["ts"]})
    assert found == Options(None, (2, 5), ("a",), ("ts",))
    with pytest.raises(InputError, match=r"study_options\.cases = 0, but at least 1 is needed"):
        read_options({"cases": 0})
    for wrong in ([], [0], ["2"], 3, [True]):
        with pytest.raises(InputError, match=r"study_options\.sizes = .*, but whole numbers of at least 1 are needed"):
            read_options({"sizes": wrong})
    with pytest.raises(InputError, match=r"protocol has the key study_options\.size, which is unknown"):
        read_options({"size": 3})


def test_the_manual_lists_every_study_with_what_is_usual():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
    rows = {
        line.split("`")[1]: line.rstrip(" |").endswith("yes") for line in text.splitlines() if line.startswith("| `")
    }
    assert rows == {name: facts.usual for name, facts in STUDY_FACTS.items()}
