"""How a cell is shown, and quartiles."""

import numpy as np

from segcal.report.cells import Cell, Column, quartiles


def test_minus_zero_is_zero():
    assert Cell(-0.0001).text(Column("d", digits=2)) == "0.00"


def test_quartiles_are_those_of_numpy():
    cell = quartiles([4.0, 1.0, None, 2.0, 10.0])
    assert (cell.value, cell.low, cell.middle, cell.high) == (4.25, 1.75, 3.0, 5.5)
    assert quartiles([None]).value is None
    assert cell.text(Column("", digits=2)) == "4.25 [1.75, 3.00, 5.50]"


def test_quartiles_of_many_numbers_agree_with_numpy():
    values = np.random.default_rng(0).normal(size=37)
    cell = quartiles(list(values))
    assert np.allclose(
        [cell.value, cell.low, cell.middle, cell.high], [values.mean(), *np.percentile(values, (25, 50, 75))]
    )


def test_texts_and_unknown_values_are_shown_as_they_are():
    assert Cell("6/3").text(Column("x")) == "6/3"
    assert Cell(None).text(Column("x")) == "—"
    assert Cell(0.5, 0.25, 0.75).text(Column("x", digits=1, scale=100)) == "50.0 [25.0, 75.0]"
