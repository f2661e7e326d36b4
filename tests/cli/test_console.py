import json
import warnings

import pytest

from segcal.cases import CaseError
from segcal.cli.console import Bar, Output, in_options, plural, table, warnings_in_one_line
from segcal.errors import SuspicionWarning


def test_for_a_person_texts_and_tables_go_to_stdout(capsys):
    output = Output(as_json=False)
    output.say("a [bold] word", table(["name", "value"], [["[x]", "1"]]))
    output.document({"never": "printed"})
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "a [bold] word"
    assert "[x]" in printed.out
    assert "never" not in printed.out
    assert all(line == line.rstrip() for line in printed.out.splitlines())


def test_as_json_there_is_the_document_alone(capsys):
    output = Output(as_json=True)
    output.say("silent", table(["name"], [["x"]]))
    output.failed(CaseError("a", "broken, pass kind='probs'."))
    output.document({"value": 1.5})
    assert json.loads(capsys.readouterr().out) == {"value": 1.5, "failed": {"a": "broken, pass --kind probs."}}


def test_a_number_that_json_does_not_know_is_never_printed():
    with pytest.raises(ValueError, match="not JSON compliant"):
        Output(as_json=True).document({"value": float("nan")})


def test_failed_cases_are_listed_on_stderr_and_decide_the_exit_code(capsys):
    output = Output(as_json=False)
    assert output.finish() == 0
    for name in ("a", "b"):
        output.failed(CaseError(name, "is broken"))
    output.warn("try ignore=3")
    assert output.finish() == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "warning: try --ignore 3\n2 cases failed:\n  a: is broken\n  b: is broken\n"


def test_a_long_sentence_in_a_pipe_is_one_line(capsys):
    Output(as_json=False).say("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_no_bar_in_a_pipe(capsys):
    with Bar("working", 3) as bar:
        bar.step()
    printed = capsys.readouterr()
    assert printed.err == printed.out == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pool='mean_logits' or pool='mean_probs'.", "--pool mean_logits or --pool mean_probs."),
        ("Pass format= with one of them", "Pass --format with one of them"),
        ("Choose it with key=.", "Choose it with --key."),
        ("pass ignore=-1.", "pass --ignore -1."),
        ("the monkey='x' stays", "the monkey='x' stays"),
        ("cal=3 is not an option", "cal=3 is not an option"),
    ],
)
def test_messages_of_the_library_are_put_in_the_words_of_the_command_line(text, expected):
    assert in_options(text) == expected


def test_counts_have_the_right_number():
    assert plural(0, "case") == "0 cases"
    assert plural(1, "case") == "1 case"
    assert plural(1234567, "voxel") == "1,234,567 voxels"


def test_suspicions_are_one_line_in_the_words_of_the_command_line(capsys):
    with warnings_in_one_line():
        for _ in range(2):
            warnings.warn("Declare kind='probs' if so.", SuspicionWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: Declare --kind probs if so.\n" * 2


def test_other_warnings_stay_as_they_are(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *arguments: shown.append(arguments[:4]))
    with warnings_in_one_line():
        warnings.showwarning("other", UserWarning, "file.py", 3)
    assert shown == [("other", UserWarning, "file.py", 3)]
