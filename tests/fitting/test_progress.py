import sys

import pytest

from segcal.fitting.progress import Progress


def test_in_a_pipe_nothing_is_shown(capsys):
    with Progress("fitting") as progress:
        progress("step 1")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_the_messages_appear_and_standard_output_stays_clean(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("fitting", show=True) as progress:
        progress("step 1")
    assert capsys.readouterr().out == ""


def test_an_interruption_goes_through():
    with pytest.raises(KeyboardInterrupt), Progress("fitting", show=True):
        raise KeyboardInterrupt
