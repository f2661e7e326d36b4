import warnings

import pytest

from segcal.cli.wording import in_options, plural, warnings_in_one_line
from segcal.errors import SuspicionWarning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pooling='mean_logits' or pooling='mean_probs'.", "--pool mean_logits or --pool mean_probs."),
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
