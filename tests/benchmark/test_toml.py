"""Strict tables; what a protocol refuses is tested with the protocol."""

import pytest
from msgspec import Struct

from segcal.benchmark.toml import AtLeastOne, Number, Text, read_table, read_toml
from segcal.errors import InputError


class Inner(Struct, forbid_unknown_fields=True):
    size: AtLeastOne = 1


class Example(Struct, forbid_unknown_fields=True):
    count: AtLeastOne = 1
    share: Number = 0
    names: tuple[Text, ...] = ()
    name: Text = ""
    inner: Inner | None = None


def test_values_of_the_right_kind_pass_and_whole_numbers_are_numbers():
    found = read_table({"count": 3, "share": 1, "names": ["a"], "inner": {"size": 2}}, "t", Example)
    assert found == Example(3, 1, ("a",), inner=Inner(2))
    assert type(found.share) is int


@pytest.mark.parametrize("value", [1.5, "3", True, None])
def test_a_whole_number_is_nothing_else(value):
    with pytest.raises(InputError, match=r"t\.count = .*, but a whole number is needed"):
        read_table({"count": value}, "t", Example)


def test_a_list_of_texts_has_only_texts():
    with pytest.raises(InputError, match=r"t\.names = \['a', 1\], but a list of texts is needed"):
        read_table({"names": ["a", 1]}, "t", Example)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"count": 0}, r"t\.count = 0, but at least 1 is needed\. Raise it"),
        ({"count": 10**10}, r"t\.count = 10000000000, but at most 4\.29497e\+09 is possible\. Lower it"),
        ({"share": "x"}, r"t\.share = 'x', but a number is needed"),
        ({"inner": 3}, r"t\.inner = 3, but a table is needed"),
        ({"inner": {"size": 0}}, r"t\.inner\.size = 0, but at least 1 is needed"),
        ({"inner": {"sise": 0}}, r"the key t\.inner\.sise, which is unknown\. Known keys: size\."),
    ],
)
def test_what_is_wrong_is_named_wherever_it_stands(table, match):
    with pytest.raises(InputError, match=match):
        read_table(table, "t", Example)


@pytest.mark.parametrize("value", ["a\0b", "a\nb", "\x1b[31m", "\u2028", "a\n", "caf\udce9"])
def test_texts_become_paths_and_names_so_they_have_one_line(value):
    with pytest.raises(InputError, match=r"t\.name = .*, but a text of one line is needed"):
        read_table({"name": value}, "t", Example)
    with pytest.raises(InputError, match=r"t\.names = .*, but a text of one line is needed"):
        read_table({"names": ["a", value]}, "t", Example)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000, "a ="])
def test_a_file_that_is_no_toml_is_refused_in_one_sentence(text, tmp_path):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InputError, match=r"p\.toml is not readable as TOML \(.*\)\. Correct it there"):
        read_toml(tmp_path / "p.toml")
