import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.names import class_titles, clean, clean_lines, csv_cell


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b]0;title\x07.npy", "%1B]0;title%07.npy"),
        ("a\nerror: b", "a%0Aerror: b"),
        ("line\u2028break\x85", "line%E2%80%A8break%C2%85"),
        ("gpj.\u202enpy", "gpj.%E2%80%AEnpy"),
        (os.fsdecode(b"caf\xe9"), "caf%E9"),
        ("\ud800", "%ED%A0%80"),
        ("Ärztin 病院 🫀 50% (1)", "Ärztin 病院 🫀 50% (1)"),
    ],
)
def test_what_a_terminal_obeys_or_no_file_holds_is_written_out(name, shown):
    assert clean(name) == shown
    assert str(InputError(f"{name} is odd")) == f"{shown} is odd"


@given(st.text(st.characters(codec=None)))
def test_what_is_clean_can_be_encoded_and_stays(text):
    made = clean(text)
    made.encode("utf-8")
    assert clean(made) == made
    assert made.isprintable() or not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in made)


def test_lines_stay_lines():
    assert clean_lines("a\x1b\nb") == "a%1B\nb"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start):
    assert csv_cell(f"{start}1") == f"'{clean(start)}1"


@pytest.mark.parametrize("value", [-0.5, None, 3, "", "a=b"])
def test_other_cells_stay(value):
    assert csv_cell(value) is value or csv_cell(value) == value


def test_classes_without_names_are_numbered():
    assert class_titles(None, 2) == ("class 0", "class 1")
    assert class_titles(["a", "b"], 2) == ("a", "b")
