"""Strict tables; what a protocol refuses is tested with the protocol."""

import pytest

from segcal.benchmark.reading import check_range, read_table, read_toml, require
from segcal.errors import InputError

KINDS = {"count": int, "share": float, "names": list, "free": None}


def test_values_of_the_right_kind_pass_and_whole_numbers_are_numbers():
    table = {"count": 3, "share": 1, "names": ["a"], "free": {"x": 1}}
    assert read_table(table, "t", KINDS) == table


@pytest.mark.parametrize("value", [1.5, "3", True, None])
def test_a_whole_number_is_nothing_else(value):
    with pytest.raises(InputError, match=r"t\.count = .*, but a whole number is needed"):
        read_table({"count": value}, "t", KINDS)


def test_a_list_of_texts_has_only_texts():
    with pytest.raises(InputError, match=r"t\.names = \['a', 1\], but a list of texts is needed"):
        read_table({"names": ["a", 1]}, "t", KINDS)


def test_missing_keys_and_small_numbers_are_named():
    with pytest.raises(InputError, match=r"no t\.count, but it is needed"):
        require({}, "t", ["count"])
    with pytest.raises(InputError, match=r"t\.count = 1, but at least 2 is needed"):
        check_range(1, "t.count", 2)
    with pytest.raises(InputError, match=r"t\.count = 5, but at most 4 is possible\. Lower it"):
        check_range(5, "t.count", 2, 4)


@pytest.mark.parametrize("value", ["a\0b", "a\nb", "\x1b[31m", "\u2028"])
def test_texts_become_paths_and_names_so_they_have_one_line(value):
    with pytest.raises(InputError, match=r"t\.name = .*, but a text of one line is needed"):
        read_table({"name": value}, "t", {"name": str})
    with pytest.raises(InputError, match=r"t\.names = .*, but a text of one line is needed"):
        read_table({"names": ["a", value]}, "t", KINDS)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000, "a ="])
def test_a_file_that_is_no_toml_is_refused_in_one_sentence(text, tmp_path):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InputError, match=r"p\.toml is not readable as TOML \(.*\)\. Correct it there"):
        read_toml(tmp_path / "p.toml")
