"""Parts: every case in exactly one, and a run that was interrupted goes on where it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segcal
from segcal.errors import InputError
from segcal.scale.part import Part, check_part


class Counted:
    """Squares the length of an id, counts its calls, and is interrupted at one id if asked."""

    def __init__(self, stop=None):
        self.calls, self.stop = [], stop

    def __call__(self, case_id):
        if case_id == self.stop:
            raise KeyboardInterrupt
        self.calls.append(case_id)
        return len(case_id) ** 2


def collection(number):
    return segcal.ArrayCases(
        [np.full((2, 3), float(i)) for i in range(number)], ids=[f"c{i:03}" for i in range(number)]
    )


def finish(part, ids, work):
    return [(case_id, outcome()) for case_id, outcome in part.outcomes(ids, work, "square")]


@given(st.integers(1, 40), st.data())
def test_every_case_is_in_exactly_one_part(cases, data):
    of = data.draw(st.integers(1, cases))
    parts = [Part("nowhere", [collection(cases)], number, of).ids for number in range(of)]
    assert sorted(case_id for part in parts for case_id in part) == list(collection(cases).ids)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_interrupted_part_goes_on_with_what_is_missing(tmp_path):
    cases = collection(7)
    work = Counted(stop="c004")
    with pytest.raises(KeyboardInterrupt), Part(tmp_path / "p", [cases], 0, 2) as part:
        finish(part, cases.ids, work)
    assert work.calls == ["c000", "c002"]
    rest = Counted()
    with Part(tmp_path / "p", [cases], 0, 2) as part:
        assert finish(part, cases.ids, rest) == [(f"c00{i}", 16) for i in (0, 2, 4, 6)]
    assert rest.calls == ["c004", "c006"]


def test_a_case_that_changed_is_done_again(tmp_path):
    cases = collection(3)
    with Part(tmp_path, [cases]) as part:
        finish(part, cases.ids, Counted())
    other = segcal.ArrayCases([np.full((2, 3), float(i if i != 1 else 9)) for i in range(3)], ids=list(cases.ids))
    work = Counted()
    with Part(tmp_path, [other]) as part:
        finish(part, cases.ids, work)
    assert work.calls == ["c001"]


def test_two_processes_do_not_share_a_part(tmp_path):
    cases = collection(3)
    with (
        Part(tmp_path, [cases]),
        pytest.raises(InputError, match="is being written to by another segcal"),
        Part(tmp_path, [cases]),
    ):
        pass


@pytest.mark.parametrize(("number", "of", "cases"), [(2, 2, 5), (-1, 2, 5), (0, 0, 5), (0, 6, 5)])
def test_parts_that_are_not_there_are_refused(number, of, cases):
    with pytest.raises(InputError, match="but"):
        check_part(number, of, cases)
    check_part(0, 1, 1)
