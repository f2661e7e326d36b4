import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from segcal.errors import InputError
from segcal.statistics.additive import FIXED, PER_CASE, AdditiveTable, FreeEnergy, total_of


@dataclass(frozen=True)
class Inner(AdditiveTable):
    count: np.ndarray


@dataclass(frozen=True)
class Outer(AdditiveTable):
    size: Annotated[int, FIXED]
    total: float
    inner: dict[int, dict[str, Inner]]
    maybe: Inner | None = None
    own: Annotated[Inner | None, PER_CASE] = None


def make(number, maybe=True):
    inner = Inner(np.array([[0, number], [3, 0]]))
    return Outer(2, 0.1 * number, {50: {"all": inner}}, inner if maybe else None, inner)


def test_tables_add_field_by_field():
    total = make(1) + make(2)
    assert total.size == 2
    assert total.total == 0.1 + 0.2
    assert total.inner[50]["all"].count.tolist() == [[0, 3], [6, 0]]


def test_what_one_of_two_lacks_and_what_belongs_to_one_case_is_none_in_the_sum():
    assert (make(1) + make(2, maybe=False)).maybe is None
    assert (make(1) + make(2)).maybe is not None
    assert (make(1) + make(2)).own is None


def test_tables_that_count_different_things_do_not_add():
    other = Outer(3, 0.0, {}, None)
    with pytest.raises(InputError, match=r"tables with size = 2 and size = 3 are added, but both must count the same"):
        make(1) + other
    with pytest.raises(TypeError):
        make(1) + Inner(np.zeros(1))


def test_plain_data_survives_json_to_the_last_bit():
    table = make(7)
    again = Outer.from_plain(json.loads(json.dumps(table.to_plain())))
    assert again.total == table.total
    assert again.maybe.count.dtype == np.int64
    np.testing.assert_array_equal(again.inner[50]["all"].count, table.inner[50]["all"].count)


def test_the_order_of_addition_is_that_of_the_ids_whatever_order_they_come_in():
    rng = np.random.default_rng(0)
    tables = {f"case{i}": make(i) for i in rng.permutation(30)}
    sums = [total_of({key: tables[key] for key in rng.permutation(list(tables))}).total for _ in range(5)]
    assert len(set(sums)) == 1


def test_the_total_of_nothing_is_refused():
    with pytest.raises(InputError, match="tables is empty, but at least one case is needed"):
        total_of({})


def test_moments_of_parts_merge_to_those_of_the_whole():
    values = np.random.default_rng(0).normal(1e6, 1e-2, size=90)
    pieces = values[:10], values[10:70], values[70:]
    parts = [FreeEnergy(p.size, p.mean(), ((p - p.mean()) ** 2).sum()) for p in pieces]
    total = parts[0] + FreeEnergy(0, 0.0, 0.0) + parts[1] + parts[2]
    assert total.voxels == 90
    assert total.deviation / 90 == pytest.approx(values.var(), rel=1e-6)
