"""Rows of new objects: numbers, places, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import segcal
from segcal.fitting.object_reference import ObjectRule
from segcal.trust.components import find_objects
from segcal.trust.object_model import features_of, structure_models
from segcal.trust.objects import _world


@pytest.fixture(scope="module")
def learned(fitted, make_cases):
    return segcal.learn_objects(fitted, make_cases(30, seed=2, prefix="ref"))


def test_rows_are_those_of_the_model(learned, make_cases):
    cases = make_cases(4, seed=5, prefix="new")
    found = segcal.objects(learned, cases, level=0.8, fdr=0.2)
    models, members = structure_models(learned.objects, 0.8, 0.2)
    assert members
    start = 0
    for case_id in cases.ids:
        own = find_objects(learned.calibrator, cases.with_disagreement().checked(case_id), (1, 2), ObjectRule())
        for model, structure in zip(models, (1, 2), strict=True):
            table = own.table[own.table[:, 0] == structure]
            part = found.rows[start : start + len(table)]
            start += len(table)
            chance = model.chance(features_of(table, True))
            assert [row.p_real for row in part] == pytest.approx(chance)
            assert [row.listed for row in part] == (chance >= model.least).tolist()
            for row, own_row in zip(part, table, strict=True):
                wrong = model.spread * (1 + own_row[1] * (1 - own_row[2]))
                assert (row.size_low, row.size_high) == pytest.approx((max(1, own_row[1] - wrong), own_row[1] + wrong))
                assert (row.case, row.unit, row.size) == (case_id, "voxels", own_row[1])
                assert (row.real, row.dice) == (bool(own_row[7]), pytest.approx(own_row[8]))
                assert (row.world, row.world_box) == (None, None)
    assert start == len(found.rows)
    assert [row.objects for row in found.cases] == [
        sum((r.case, r.structure) == (row.case, row.structure) for r in found.rows) for row in found.cases
    ]
    assert "groups" not in found.promise
    assert "not proved: the model of objects was learned on the same cases" in found.promise
    assert "This is proved" in segcal.objects(learned, cases, proved=True).promise


def test_new_cases_need_no_labels(learned, make_cases):
    with_labels, without = (make_cases(3, seed=5, prefix="new", labelled=each) for each in (True, False))
    one, other = (segcal.objects(learned, each) for each in (with_labels, without))
    assert [row[:18] for row in one.rows] == [row[:18] for row in other.rows]
    assert {row.real for row in other.rows} == {None}
    assert {(row.truths, row.missed) for row in other.cases} == {(None, None)}


def test_world_coordinates_are_those_of_each_corner():
    affine = np.array([[0, 2, -1, 5], [3, 0, 0, -7], [0, 0, 1.5, 1.0]])
    world, box = _world(affine, np.array([1.0, 2.0, 0.5]), np.array([0, 1, 0, 2, 4, 3]))
    assert world == pytest.approx([2 * 2 - 0.5 + 5, 3 - 7, 0.75 + 1])
    corners = [affine[:, :3] @ [i, j, k] + affine[:, 3] for i in (0, 1) for j in (1, 3) for k in (0, 2)]
    assert box == pytest.approx([*np.min(corners, 0), *np.max(corners, 0)])


def test_what_is_missing_is_said(learned, fitted, make_cases):
    cases = make_cases(3, seed=5, prefix="new")
    with pytest.raises(segcal.InputError, match=r"remembers no objects, .* Fit again with segcal fit --objects"):
        segcal.objects(fitted, cases)
    other = replace(learned, objects=msgspec.structs.replace(learned.objects, calibrator="x"))
    with pytest.raises(segcal.InputError, match="the objects belong to another calibrator"):
        segcal.objects(other, cases)
    with pytest.raises(segcal.InputError, match="fdr is 1, but a share between 0 and 1 is needed"):
        segcal.objects(learned, cases, fdr=1.0)
    with pytest.raises(segcal.InputError, match="has no members that could disagree"):
        segcal.objects(learned, make_cases(3, seed=5, members=1, prefix="new"), ignore_pooling=True)
    with pytest.raises(segcal.InputError, match="cases is empty"):
        segcal.objects(learned, cases.subset([]))
