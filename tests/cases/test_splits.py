import json

import pytest

from segcal.cases import load_split, open_cases, save_split
from segcal.errors import InputError


@pytest.fixture
def cases(npy_folder):
    return open_cases(npy_folder[0], npy_folder[1], kind="logits")


def test_a_saved_split_gives_the_same_parts_again(cases, tmp_path):
    split = cases.split(cal=2, val=1, seed=3)
    save_split(split, tmp_path / "new" / "splits.json", seed=3)
    again = load_split(cases, tmp_path / "new" / "splits.json")
    assert [part.ids for part in again] == [part.ids for part in split]
    assert json.loads((tmp_path / "new" / "splits.json").read_text())["seed"] == 3
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["splits.json"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 2}, "has format 'segcal-splits' version 2"),
        ({"format": "x"}, "has format 'x' version 1"),
        ({"cal": None}, "has no list of ids under 'cal'"),
        ({"val": [1]}, "has no list of ids under 'val'"),
        ({"val": ["a1"]}, "names a1 more than once"),
        ({"cal": ["a1", "zz"]}, r"names 1 cases that are not there \(zz\) and leaves out 1 that are \(a2\)"),
        ({"test": []}, r"names 0 cases that are not there \(none\) and leaves out 1 that are \(b2\)"),
    ],
)
def test_a_split_that_does_not_fit_the_cases_is_refused(change, match, cases, tmp_path):
    content = {"format": "segcal-splits", "version": 1, "cal": ["a1", "a2"], "val": ["b1"], "test": ["b2"]}
    (tmp_path / "splits.json").write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=match):
        load_split(cases, tmp_path / "splits.json")
