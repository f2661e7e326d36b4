"""Reading one case ahead: the order, the bound, and where what goes wrong appears."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.cases import open_cases
from segcal.cases.base import CaseError
from segcal.cases.parallel import ahead, behind, map_cases


def pair(name, read):
    return name, read


@given(st.lists(st.text(max_size=3), max_size=9))
def test_every_case_is_read_once_in_the_order_of_the_ids(ids):
    seen = []
    found = [outcome() for _, outcome in ahead(ids, lambda name: seen.append(name) or len(seen), pair)]
    assert seen == ids
    assert found == [(name, number + 1) for number, name in enumerate(ids)]


def test_the_next_case_is_read_while_one_is_worked_on_and_no_other():
    begun = {name: threading.Event() for name in "abcd"}

    def work(name, read):
        following = chr(ord(name) + 1)
        if following in begun:
            assert begun[following].wait(30)  # it is read meanwhile
        return sorted(each for each, event in begun.items() if event.is_set())

    found = [outcome() for _, outcome in ahead(list("abcd"), lambda name: begun[name].set(), work)]
    assert found == [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["a", "b", "c", "d"]]


def test_what_cannot_be_read_is_raised_in_its_turn_and_the_rest_goes_on():
    def read(name):
        if name == "b":
            raise ValueError(name)
        return name

    found = []
    for name, outcome in ahead(list("abc"), read, pair):
        try:
            found.append(outcome())
        except ValueError as error:
            found.append(f"{name}: {error}")
    assert found == [("a", "a"), "b: b", ("c", "c")]


def test_who_stops_early_leaves_no_thread_behind():
    before = threading.active_count()
    for _, outcome in ahead(list("abcdef"), str, pair):
        outcome()
        break
    assert threading.active_count() == before


@given(st.lists(st.text(max_size=3), max_size=9))
def test_every_case_is_finished_once_in_the_order_of_the_ids(ids):
    seen = []
    begun = ((name, lambda name=name: seen.append(name) or len(seen)) for name in ids)
    found = [(name, outcome()) for name, outcome in behind(begun)]
    assert seen == ids
    assert found == [(name, number + 1) for number, name in enumerate(ids)]


def test_a_case_is_finished_while_the_next_one_is_begun_and_no_other():
    begun = {name: threading.Event() for name in "abc"}

    def begin():
        for name in "abc":
            begun[name].set()
            yield name, lambda name=name: finish(name)

    def finish(name):
        following = chr(ord(name) + 1)
        if following in begun:
            assert begun[following].wait(30)  # it is begun meanwhile
        return sorted(each for each, event in begun.items() if event.is_set())

    assert [outcome() for _, outcome in behind(begin())] == [["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]


@pytest.mark.parametrize("first", [True, False])
def test_of_two_failures_the_one_of_the_earlier_case_is_told(first):
    def begin():
        yield "a", lambda: 1 / (0 if first else 1)
        raise ValueError("b cannot be begun")

    with pytest.raises(ZeroDivisionError if first else ValueError):
        list(behind(begin()))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("number", "other"), [(1, False), (2, True)])
def test_files_are_read_by_another_thread_where_there_is_more_than_one(number, other, npy_folder, threads, monkeypatch):
    threads(number)
    predictions, labels, written = npy_folder
    cases = open_cases(predictions, labels, kind="logits")
    cases.members[0].path("a2").write_bytes(b"nothing")
    readers, read = set(), type(cases).read
    monkeypatch.setattr(
        type(cases), "read", lambda self, name: readers.add(threading.current_thread()) or read(self, name)
    )
    failed = []
    found = dict(map_cases(cases, lambda case: case.logits, 1, failed.append))
    assert (readers == {threading.main_thread()}) is not other
    assert len(readers) == 1
    assert [error.case_id for error in failed] == ["a2"]
    assert all((found[name].numpy() == written[name]).all() for name in ("a1", "b1", "b2"))
    with pytest.raises(CaseError, match=r"case 'a2': .* cannot be read"):
        list(map_cases(cases, lambda case: case.logits, 1))
