"""Parts put together in a program: in any number and any order, the result of one process."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segcal
from segcal.errors import InputError


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(4)
    logits = [(3 * rng.normal(size=(3, 4 + number, 5))).astype(np.float32) for number in range(9)]
    labels = [(each / 2 + rng.gumbel(size=each.shape)).argmax(0) for each in logits]
    return segcal.ArrayCases(logits, labels, ids=[f"c{number}" for number in (4, 2, 8, 0, 1, 7, 3, 5, 6)])


@pytest.fixture(scope="module")
def alone(cases):
    return repr(segcal.evaluate(cases, segcal.make_calibrator("ts", 3), replicates=20).to_plain())


@settings(max_examples=4)
@given(st.permutations(range(7)), st.sampled_from([1, 2, 7]))
def test_parts_in_any_order_give_what_one_process_gives(cases, alone, tmp_path_factory, order, of):
    place, calibrator = tmp_path_factory.mktemp("parts"), segcal.make_calibrator("ts", 3)
    folders = []
    for number in [number for number in order if number < of]:
        with segcal.Part(place / str(number), [cases], number, of) as part:
            segcal.evaluate(part.take(cases), calibrator, workers=part, replicates=1)
        folders.insert(len(folders) // 2, place / str(number))
    merged = segcal.merge(folders, cases)
    assert repr(segcal.evaluate(cases, calibrator, workers=merged, replicates=20).to_plain()) == alone


def test_no_parts_are_no_result():
    with pytest.raises(InputError, match="parts is empty, but at least one part is needed"):
        segcal.merge([])
