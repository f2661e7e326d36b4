import argparse
import re

import pytest

from segcal.cli.parsing import Parser, at_least_one, device, taus, voxels
from segcal.errors import InputError


def test_a_count_is_a_whole_number_of_at_least_one():
    assert at_least_one("12") == 12
    for text in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"{text!r} is no count, but a whole number")):
            at_least_one(text)


def test_voxels_may_be_all():
    assert voxels("all") == "all"
    assert voxels("300") == 300
    with pytest.raises(argparse.ArgumentTypeError, match="'some' is no count"):
        voxels("some")


def test_a_device_must_be_there(monkeypatch):
    assert device("cpu") == "cpu"
    with pytest.raises(argparse.ArgumentTypeError, match="'gpu' names no device, but cpu or cuda is needed"):
        device("gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(argparse.ArgumentTypeError, match="'cuda:1' is not available on this machine, but cpu is"):
        device("cuda:1")


def test_a_refusal_is_one_sentence_and_abbreviations_are_refused(capsys):
    parser = Parser(prog="tool")
    parser.add_argument("--number", type=int)
    for arguments in (["--number", "x"], ["--num", "3"], ["--other"]):
        with pytest.raises(SystemExit) as stopped:
            parser.parse_args(arguments)
        assert stopped.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert printed.err.startswith("error: ")
        assert printed.err.endswith("See tool --help.\n")


def test_help_names_all_spellings_of_an_option_and_its_value_once(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    parser = Parser(prog="tool")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where")
    parser.add_argument("--kind", choices=["a", "b"], help="what")
    parser.add_argument("--many", nargs="+", metavar="N", help="several")
    parser.add_argument("--flag", action="store_true", help="yes or no")
    text = parser.format_help()
    assert re.search(r"^  -o, --output FOLDER +where$", text, flags=re.MULTILINE)
    assert re.search(r"^  --kind \{a,b\} +what$", text, flags=re.MULTILINE)
    assert re.search(r"^  --many N \[N \.\.\.\] +several$", text, flags=re.MULTILINE)
    assert re.search(r"^  --flag +yes or no$", text, flags=re.MULTILINE)


def test_a_refusal_quotes_nothing_that_a_terminal_obeys(capsys):
    with pytest.raises(SystemExit):
        Parser(prog="segcal").parse_args(["\x1b[31mred"])
    assert "error: unrecognized arguments: %1B[31mred. See segcal --help." in capsys.readouterr().err


def test_tau_is_one_number_or_one_a_structure():
    titles = ("none", "liver", "a=b")
    assert taus(["0.7"], titles) == 0.7
    assert taus(["liver=0.9", "0.8"], titles) == {"none": 0.8, "liver": 0.9, "a=b": 0.8}
    assert taus(["a=b=0.6"], titles) == {"a=b": 0.6}
    for wrong in ("liver", "liver=", "liver=high"):
        with pytest.raises(InputError, match=r"but a number or STRUCTURE=NUMBER is needed. Write 0.8 or liver=0.8."):
            taus(["0.5", wrong], titles)
