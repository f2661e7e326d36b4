import ast
import json
import os
from pathlib import Path

import pytest

import segcal
from segcal import documents
from segcal.documents import json_text, parse_json, parse_toml, read_json, read_text, reading, write_csv
from segcal.errors import InputError

SOURCE = Path(segcal.__file__).parent


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[1]", "holds a list, but a JSON object"),
        ("{", r"a\.json cannot be read \(JSONDecodeError"),
        ("[" * 100_000, r"a\.json cannot be read \(ValueError: nested more than 64 deep\), but a complete file"),
        ('{"a": ' * 100 + "1" + "}" * 100, "nested more than 64 deep"),
        ('{"a": [1, -10000000000000000000]}', "a whole number beyond 9223372036854775807"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_json_that_is_not_what_it_should_be_is_refused_in_one_sentence(content, match, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=match) as caught:
        read_json(tmp_path / "a.json")
    assert len(str(caught.value)) < 600


def test_what_is_within_the_bounds_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ' * 63 + "9223372036854775807" + "}" * 63)
    assert read_json(tmp_path / "a.json")["a"]["a"]


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "[" * 90 + "]" * 90, "a = " + "9" * 5000, "a ="])
def test_toml_that_is_not_what_it_should_be_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"deep|digits|Invalid value"):
        parse_toml(text)


def test_toml_numbers_are_bounded():
    assert parse_toml("a = 1") == {"a": 1}
    with pytest.raises(ValueError, match="a whole number beyond"):
        parse_toml("a = [1, 99999999999999999999]")


def test_a_text_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(json.dumps({"a": "b" * 100}))
    monkeypatch.setattr(documents, "MAX_BYTES", 50)
    with pytest.raises(InputError, match=r"a\.json has 109 bytes, but a text file of at most 50 is needed"):
        read_text(tmp_path / "a.json")


def test_a_pipe_is_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    with (
        pytest.raises(InputError, match=r"x\.npy is a pipe or a device, but a file is needed"),
        reading(tmp_path / "x.npy"),
    ):
        raise AssertionError("opened")


def test_a_path_with_a_zero_byte_is_a_sentence():
    with pytest.raises(InputError, match=r"cannot be read .*null byte"):
        read_text(Path("a\0b"))


def test_json_holds_every_name_and_reads_back_as_it_was():
    data = {"name": os.fsdecode(b"caf\xe9"), "line": "a\u2028\x9b\x1b", "日本": [1.5, None]}
    text = json_text(data)
    assert parse_json(text.encode("utf-8")) == data
    assert "日本" in text
    assert not any(letter in text for letter in "\x1b\x9b\u2028")


def test_rows_are_written_as_a_table_that_no_spreadsheet_takes_for_formulas(tmp_path):
    rows = [{"case": "=1+1", "dice": 0.1, "more": "left out"}, {"case": "b,\x1b", "dice": None}, {"dice": -0.5}]
    write_csv(tmp_path / "a.csv", ["case", "dice"], rows)
    assert (tmp_path / "a.csv").read_bytes() == b'case,dice\n\'=1+1,0.1\n"b,%1B",\n,-0.5\n'


def test_nothing_else_reads_json_toml_or_pickles():
    """One border: whoever reads such a file goes through it. Processes of one run may send each other pickles."""
    readers = {f"{module}.{call}" for module in ("json", "pickle", "tomllib") for call in ("load", "loads")}
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and f"{getattr(node.value, 'id', '')}.{node.attr}" in readers:
                found.add(str(path.relative_to(SOURCE)))
    assert found == {"documents.py", "cases/parallel.py", "scale/dask_engine.py"}
