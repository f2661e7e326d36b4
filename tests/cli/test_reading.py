import inspect
from pathlib import Path

import pytest

from segcal import open_cases
from segcal.cli import make_parser
from segcal.cli.reading import open_folders, reading_arguments, split_paths
from segcal.errors import InputError


def parsed(*arguments):
    return make_parser().parse_args(["evaluate", "p", "l", *arguments])


def test_every_argument_of_open_cases_can_be_given():
    given = set(reading_arguments(parsed()))
    assert given == set(inspect.signature(open_cases).parameters) - {"predictions", "labels", "strict"}


def test_arguments_that_are_not_given_are_the_defaults():
    parameters = inspect.signature(open_cases).parameters
    for name, value in reading_arguments(parsed()).items():
        assert value == parameters[name].default, name


def test_class_names_are_a_list():
    assert reading_arguments(parsed("--class-names", "sky,road"))["class_names"] == ["sky", "road"]


def test_the_labels_come_last():
    assert split_paths([Path("a"), Path("b"), Path("c")]) == ([Path("a"), Path("b")], Path("c"))
    with pytest.raises(InputError, match="PREDICTIONS LABELS is a alone, but both are needed"):
        split_paths([Path("a")])


def test_unless_strict_an_incomplete_case_is_kept_and_fails_later(folders):
    (folders.labels / "a1.npy").unlink()
    arguments = [folders.predictions], folders.labels
    assert len(open_folders(parsed("--kind", "logits"), *arguments)) == 6
    with pytest.raises(InputError, match="lacks case a1"):
        open_folders(parsed("--kind", "logits", "--strict"), *arguments)
