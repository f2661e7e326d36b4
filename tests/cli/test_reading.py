from dataclasses import fields
from pathlib import Path

import pytest

from segcal import ReadOptions
from segcal.cli import make_parser
from segcal.cli.reading import open_folders, read_options
from segcal.cli.wording import option
from segcal.errors import InputError


def parsed(*arguments):
    return make_parser().parse_args(["evaluate", "p", "l", *arguments])


def test_every_declaration_can_be_given_and_none_is_there_unless_it_is():
    assert read_options(parsed()) == {}
    given = {
        "kind": "probs", "pooling": "mean_logits", "format": "npy", "ignore": 255, "class_axis": 1, "key": "k",
        "label_key": "l", "label_axes": "zyx", "images": Path("i"), "groups": "(a)", "class_names": ["sky", "road"],
        "class_pattern": "p", "properties": Path("q"), "regions": {"whole": [1, 2], "core": [2]},
        "regions_class_order": [1, 2], "ignore_geometry": True, "sites": "(b)",
    }  # fmt: skip
    assert set(given) == {field.name for field in fields(ReadOptions)}
    pairs = [(option(name), shown(value)) for name, value in given.items()]
    words = [word for pair in pairs for word in pair if word != "True"]
    assert "--pool" in words
    assert read_options(parsed(*words)) == given


def shown(value):
    if isinstance(value, dict):
        return ",".join(f"{name}={'+'.join(map(str, labels))}" for name, labels in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_unless_strict_an_incomplete_case_is_kept_and_fails_later(folders):
    (folders.labels / "a1.npy").unlink()
    arguments = [folders.predictions], folders.labels
    assert len(open_folders(parsed("--kind", "logits"), *arguments)) == 6
    with pytest.raises(InputError, match="lacks case a1"):
        open_folders(parsed("--kind", "logits", "--strict"), *arguments)
