"""Files of results: written whole, read back, and refused when they are not ours."""

import json

import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import finished, read_results, read_unit, write_unit
from segcal.benchmark.units import Unit
from segcal.errors import ArtifactError, InputError

UNIT = Unit("roads", 0, Pipeline("mean_probs", "ts"))
HEADER = {"schema": 1, "digest": "d1", "unit": UNIT.to_plain(), "test": ["a"]}
ROW = {"case": "a", "metrics": {"nll": 0.5, "dice": None}}


def test_a_unit_is_read_as_it_was_written(tmp_path):
    path = write_unit(tmp_path, HEADER, [ROW], {"tables": {}})
    found = read_unit(path)
    assert found.unit == UNIT
    assert found.rows == [ROW]
    assert found.numbers("nll") == [0.5]
    assert found.numbers("dice") == [None]
    assert [each.name for each in path.parent.iterdir()] == ["ts-mean_probs.jsonl"]


def test_a_unit_is_finished_only_with_its_digest(tmp_path):
    assert not finished(tmp_path, UNIT, "d1")
    path = write_unit(tmp_path, HEADER, [ROW], {})
    assert finished(tmp_path, UNIT, "d1")
    assert not finished(tmp_path, UNIT, "d2")
    path.write_text("{", encoding="utf-8")
    assert not finished(tmp_path, UNIT, "d1")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1e", "\r"])
def test_a_name_may_hold_what_others_take_for_the_end_of_a_line(end, tmp_path):
    row = ROW | {"case": f"a{end}b"}
    path = write_unit(tmp_path, HEADER, [row], {"tables": {}})
    assert read_unit(path).rows == [row]
    assert finished(tmp_path, UNIT, "d1")


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_unit_that_is_cut_short_is_not_finished(cut, tmp_path):
    path = write_unit(tmp_path, HEADER, [ROW], {"tables": {}})
    path.write_bytes(path.read_bytes()[:-cut])
    assert not finished(tmp_path, UNIT, "d1")


def test_what_is_not_ours_is_refused(tmp_path):
    path = write_unit(tmp_path, HEADER | {"schema": 9}, [ROW], {})
    with pytest.raises(ArtifactError, match="has schema 9, but this segcal reads 1"):
        read_unit(path)
    path.write_text(json.dumps(HEADER) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="is not readable as results"):
        read_unit(path)
    with pytest.raises(InputError, match=r"has no protocol.json, but a folder written by segcal benchmark is needed"):
        read_results(tmp_path)
    (tmp_path / "protocol.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"protocol.json is not readable"):
        read_results(tmp_path)


def test_units_that_the_protocol_does_not_list_are_left_out(tmp_path):
    write_unit(tmp_path, HEADER, [ROW], {})
    other = Unit("roads", 1, UNIT.pipeline)
    write_unit(tmp_path, HEADER | {"unit": other.to_plain()}, [ROW], {})
    (tmp_path / "protocol.json").write_text(json.dumps({"units": [other.to_plain()]}), encoding="utf-8")
    assert [each.unit for each in read_results(tmp_path).units] == [other]
