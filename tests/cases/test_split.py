import json
from pathlib import Path

import numpy as np
import pytest

from segcal.cases import load_split, open_cases, save_split
from segcal.cases.split import draw_groups, resolve_groups
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


IDS = ["p1_a", "p1_b", "p2_a", "q_a"]


@pytest.mark.parametrize(
    ("group", "match"),
    [
        ("(", "is not a regular expression"),
        ("p", "has 0 groups, but exactly one is needed"),
        ("(p)(.)", "has 2 groups, but exactly one is needed"),
        (r"(p\d)_", r"does not match 1 of 4 ids \(q_a\)"),
        (r"(p\d)?_", r"does not match 1 of 4 ids \(q_a\)"),
        ({"p1_a": "x", "p1_b": "x"}, "group has no group for 2 of 4 cases"),
        (Path("no.csv"), r"no\.csv is missing"),
    ],
)
def test_every_case_needs_a_group(group, match):
    assert resolve_groups(r"^(\w+)_", IDS) == {"p1_a": "p1", "p1_b": "p1", "p2_a": "p2", "q_a": "q"}
    with pytest.raises(InputError, match=match):
        resolve_groups(group, IDS)


def test_a_csv_file_names_groups(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("\ufeffgroup,id,site\nx,p1_a,1\nx,p1_b,1\ny,p2_a,1\nz,q_a,2\n", encoding="utf-8")
    assert resolve_groups(str(path), IDS)["p1_b"] == resolve_groups(path, IDS)["p1_a"] == "x"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"case,group\na,b\n", "has the columns case, group, but id and group are needed"),
        (b"", "has the columns none"),
        (b"id,group\np1_a,x\np1_a,y\n", "puts 'p1_a' in two groups"),
        (b"id,group\np1_a,x\n", r"has no group for 3 of 4 cases \(p1_b, p2_a, q_a\)"),
        (b"id,group\n\xff\xfe,x\n", "is not a CSV text file"),
    ],
)
def test_csv_files_that_do_not_name_every_group_are_refused(content, match, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=match):
        resolve_groups(path, IDS)


def test_groups_are_drawn_whole_and_parts_are_never_exceeded():
    ids = [f"g{group}_{number}" for group in range(10) for number in range(group % 3 + 1)]
    groups = {case_id: case_id.split("_")[0] for case_id in ids}
    for seed in range(20):
        cal, val, test = draw_groups(ids, groups, 7, 4, seed)
        assert sorted(cal + val + test) == sorted(ids)
        assert len(cal) <= 7
        assert len(val) <= 4
        found = [{groups[case_id] for case_id in part} for part in (cal, val, test)]
        assert sum(map(len, found)) == 10


def test_the_draw_without_groups_is_the_seeded_permutation():
    ids = [str(number) for number in range(9)]
    order = [ids[number] for number in np.random.default_rng(5).permutation(9)]
    assert draw_groups(ids, {}, 3, 2, 5) == (order[:3], order[3:5], order[5:])


def test_groups_larger_than_the_calibration_part_are_an_error():
    with pytest.raises(InputError, match="cal is 1, but the smallest group has 2 cases"):
        draw_groups(["a", "b"], {"a": "x", "b": "x"}, 1, 0, 0)
