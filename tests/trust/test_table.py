"""The numbers of a table, by hand."""

import numpy as np
import pytest

from segcal.trust.sums import CaseSums, TruthSums, reference_case
from segcal.trust.table import SumTable


def sums(mask, prob, hit, truth=None, case="a", **more):
    arrays = [np.array(each, float) for each in (mask, prob, hit)]
    zeros = [np.zeros(len(mask)) for _ in range(3)]
    found = CaseSums(case, "g", 100, 0.5, "ml", *arrays, *zeros, **more)
    if truth is not None:
        tables = [np.zeros((len(mask), 66))] * 3
        found.truth = TruthSums(*(np.array(each, float) for each in truth), *tables)
    return found


def test_expected_dice_iou_precision_and_recall():
    table = SumTable.of([sums([10, 0, 0], [8, 3, 0], [6, 0, 0])])
    assert table.expected_dice[0] == pytest.approx([12 / 18, 1 / 4, 1])
    assert table.expected_iou[0, 0] == pytest.approx(6 / (10 + 8 - 6))
    assert table.precision[0, 0] == pytest.approx(0.6)
    assert np.isnan(table.precision[0, 1])
    assert table.recall[0, :2] == pytest.approx([6 / 8, 0])
    assert table.outside[0, 0] == pytest.approx(2 / 8)
    assert table.empty[0].tolist() == [False, True, True]


def test_dice_of_labels_and_of_nothing():
    table = SumTable.of([sums([10, 0, 5], [8, 3, 0], [6, 0, 0], truth=([7, 0, 0], [4, 0, 0], [9, 0, 5]))])
    assert table.dice[0] == pytest.approx([8 / 16, 1, 0])
    assert np.isnan(SumTable.of([sums([1], [1], [1])]).dice).all()


def test_rows_are_chosen_in_the_order_that_is_asked_for():
    table = SumTable.of([sums([k], [k], [k], case=str(k)) for k in range(4)])
    assert table.rows([2, 0]).ids == ("2", "0")
    assert table.rows([2, 0]).mask.tolist() == [[2], [0]]


def test_a_remembered_case_reads_back_as_a_new_one_does():
    one = sums([123456, 1], [0.123456789, 2], [1, 2], agreement=np.array([0.5, np.nan]), disagreement=3.0)
    assert reference_case(one).numbers.startswith("100 0.5 0 3 123456 0.123457 1 ")
    table = SumTable.of([one])
    assert table.agreement[0, 0] == 0.5
    assert np.isnan(table.agreement[0, 1])
    assert table.disagreement.tolist() == [3.0]
