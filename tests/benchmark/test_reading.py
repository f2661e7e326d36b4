"""Strict tables; what a protocol refuses is tested with the protocol."""

import pytest

from segcal.benchmark.reading import check_least, read_table, require
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
        check_least(1, "t.count", 2)
