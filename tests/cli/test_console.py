import json

import pytest

from segcal.cases import CaseError
from segcal.cli.console import Output
from segcal.cli.wording import table


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
