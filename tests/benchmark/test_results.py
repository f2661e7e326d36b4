"""Files of results: written whole, read back, and refused when they are not ours."""

import json

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from msgspec.structs import replace

from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.results import (
    CaseResult,
    FlipBands,
    Totals,
    Unit,
    UnitHeader,
    finished,
    read_results,
    read_unit,
    write_unit,
)
from segcal.errors import ArtifactError, InputError
from segcal.statistics import count_logits

UNIT = Unit(task="roads", repeat=0, pipeline=Pipeline("mean_probs", "ts"))
HEADER = UnitHeader(
    schema=1,
    digest="d1",
    segcal="0",
    unit=UNIT,
    title=UNIT.pipeline.title,
    translation_invariant=True,
    preserves="order",
    parameters=1,
    identifiable=1,
    num_classes=2,
    class_names=None,
    background=True,
    certificate={"converged": True},
    cal=("b",),
    val=(),
    test=("a",),
)
ROW = CaseResult("a", None, 9, 0, {"nll": 0.5, "dice": None}, {}, {})
SCORES, LABELS = torch.tensor([[[2.0, -1, 0]], [[0, 1, 3]]]), torch.tensor([[0, 1, 0]])
TOTAL = Totals(count_logits(SCORES, LABELS).tables, FlipBands(np.array([3, 0]), np.zeros((2, 3), int)), {})


def test_a_unit_is_read_as_it_was_written(tmp_path):
    path = write_unit(tmp_path, HEADER, [ROW], TOTAL)
    found = read_unit(path)
    assert (found.header, found.rows) == (HEADER, (ROW,))
    assert found.total.to_plain() == TOTAL.to_plain()
    assert found.unit == UNIT
    assert found.numbers("nll") == [0.5]
    assert found.numbers("dice") == [None]
    assert found.column("nll").tolist() == [0.5]
    assert np.isnan(found.column("dice")).all()
    assert [each.name for each in path.parent.iterdir()] == ["ts-mean_probs.jsonl"]


def test_a_unit_is_finished_only_with_its_digest(tmp_path):
    assert not finished(tmp_path, UNIT, "d1")
    path = write_unit(tmp_path, HEADER, [ROW], TOTAL)
    assert finished(tmp_path, UNIT, "d1")
    assert not finished(tmp_path, UNIT, "d2")
    whole = path.read_bytes()
    for content in (b"{", whole[:-1], whole[:-40]):
        path.write_bytes(content)
        assert not finished(tmp_path, UNIT, "d1")


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\r"])
def test_a_name_may_hold_what_others_take_for_the_end_of_a_line(end, tmp_path):
    row = replace(ROW, case=f"a{end}b")
    path = write_unit(tmp_path, HEADER, [row], TOTAL)
    assert read_unit(path).rows == (row,)
    assert finished(tmp_path, UNIT, "d1")


def test_a_file_that_is_not_ours_is_not_replaced_unasked(tmp_path):
    path = write_unit(tmp_path, HEADER, [ROW], TOTAL)
    path.write_text("what the user knows\n")
    with pytest.raises(InputError, match=r"exists and was not written by a benchmark, but it would be lost. Move it"):
        finished(tmp_path, UNIT, "d1")
    assert not finished(tmp_path, UNIT, "d1", overwrite=True)
    path.write_bytes(b"")
    assert not finished(tmp_path, UNIT, "d1")


def test_what_is_not_ours_is_refused(tmp_path):
    path = write_unit(tmp_path, replace(HEADER, schema=9), [ROW], TOTAL)
    with pytest.raises(ArtifactError, match="has schema 9, but this segcal reads 1"):
        read_unit(path)
    path.write_text(json.dumps(to_builtins(HEADER)) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="is not readable as results"):
        read_unit(path)
    with pytest.raises(InputError, match=r"has no protocol.json, but a folder written by segcal benchmark is needed"):
        read_results(tmp_path)
    (tmp_path / "protocol.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"protocol.json is not readable"):
        read_results(tmp_path)


def test_units_that_the_protocol_does_not_list_are_left_out(tmp_path):
    write_unit(tmp_path, HEADER, [ROW], TOTAL)
    other = replace(UNIT, repeat=1)
    write_unit(tmp_path, replace(HEADER, unit=other), [ROW], TOTAL)
    (tmp_path / "protocol.json").write_text(json.dumps({"units": [to_builtins(other)]}), encoding="utf-8")
    assert [each.unit for each in read_results(tmp_path).units] == [other]
