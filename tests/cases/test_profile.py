import binascii

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from segcal.cases import ArrayCases
from segcal.cases.decision import decision_of
from segcal.cases.parallel import map_cases
from segcal.cases.profile import (
    FEWEST,
    GRID,
    THUMBNAIL,
    Shift,
    Turn,
    agreement,
    better_numbers,
    confusion,
    digest_of,
    grid_of,
    pair_agreement,
    profile_at,
    table_agreement,
    turns_of,
)


@pytest.mark.parametrize("shape", [(), (40_000_000, 1), (9, 224, 216), (3, 0, 7), (100, 3, 400, 5)])
@pytest.mark.parametrize("most", [GRID, THUMBNAIL])
def test_a_grid_is_bounded_and_not_much_smaller_than_allowed(shape, most):
    steps = zip(shape, grid_of(shape, most), strict=True)
    count = int(np.prod([len(range(0, size, part.step)) for size, part in steps]))
    assert count <= most
    assert count >= min(int(np.prod(shape)), most / 2)


def look(logits, labels=None, **more):
    cases = ArrayCases([logits], None if labels is None else [labels], kind="logits", **more)
    return profile_at(cases.checked("0"), decision_of(None, len(logits)))


def test_turned_labels_are_compared_voxel_by_voxel(scenes):
    ((logits, labels),) = scenes(1, (300, 301))  # more than the grid
    found = look(logits, labels)
    steps = grid_of((300, 301), GRID)
    for axis in (0, 1):
        expected = agreement(np.flip(labels, axis)[steps].astype(int), logits.argmax(0)[steps], 3).kappa
        assert found.turned[Turn((0, 1), (axis,))] == pytest.approx(expected)
    assert found.thumbnail.labels.size <= THUMBNAIL


def test_voxels_outside_the_mask_count_in_no_turn(scenes):
    ((logits, labels),) = scenes(1)
    mask = np.zeros(labels.shape, bool)
    mask[:12] = True
    found = look(logits, labels, masks=[mask])
    assert found.counting == 12 * 30
    assert found.turned[Turn((0, 1), (1,))] == pytest.approx(
        agreement(np.flip(labels[:12], 1).astype(int), logits[:, :12].argmax(0), 3).kappa
    )
    assert np.isnan(found.turned[Turn((0, 1), (0,))])  # nothing lies on each other


def test_of_few_voxels_or_none_little_is_kept(scenes):
    ((logits, labels),) = scenes(1, (FEWEST - 1,))
    found = look(logits, labels)
    assert (found.turned, found.thumbnail) == ({}, None)
    assert found.agreement.voxels == found.confusion.sum() == FEWEST - 1
    assert look(logits).counting is None
    found = look(logits, np.full_like(labels, 9), ignore=9)
    assert (found.counting, found.confusion) == (0, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_digest_is_of_values_and_shape_not_of_memory(dtype):
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    moved = scores.movedim(0, -1).contiguous().movedim(-1, 0)
    assert digest_of(moved) == digest_of(scores)
    assert digest_of(scores.reshape(3, 20)) != digest_of(scores)
    sums = [binascii.crc32(bytes(plane.contiguous().view(torch.uint8).numpy())) for plane in scores]
    assert digest_of(scores) == f"(3, 4, 5) {dtype} {sums}".encode()
    scores[2, 3, 4] += 1
    assert digest_of(moved) != digest_of(scores)


def count(case):
    return case.labels.numel()


@pytest.mark.parametrize("workers", [1, 2])
def test_glances_come_with_the_results_from_any_number_of_processes(scenes, workers):
    logits, labels = zip(*scenes(3), strict=True)
    cases = ArrayCases(logits, labels)
    seen = []
    assert dict(map_cases(cases, count, workers, seen=seen.append)) == {"0": 720, "1": 720, "2": 720}
    assert [one.digest for one in seen] == [digest_of(case.logits) for case in cases]


@pytest.fixture
def maps():
    rng = np.random.default_rng(3)
    labels = rng.integers(-1, 4, (5, 300))
    return np.where(rng.random((5, 300)) < 0.6, labels, rng.integers(-1, 4, (5, 300))), labels


def test_agreement_is_kappa_of_the_places_where_both_count(maps):
    for decision, truth in zip(*maps, strict=True):
        both = (decision >= 0) & (truth >= 0)
        expected = cohen_kappa_score(decision[both], truth[both])
        found = agreement(truth, decision, 4)
        assert found.kappa == pytest.approx(expected)
        assert found.voxels == both.sum()
        assert table_agreement(confusion(truth, decision, 4)).kappa == pytest.approx(expected)
    assert np.isnan(agreement(np.array([-1, 0]), np.array([0, -1]), 2).kappa)
    assert np.isnan(agreement(np.zeros(5, int), np.zeros(5, int), 2).kappa)


def test_pairs_are_compared_like_single_maps_where_all_voxels_count(maps):
    decisions, labels = (np.where(one < 0, 0, one).astype(np.int16) for one in maps)
    found = pair_agreement(decisions[:3], labels, 4)
    for row in range(3):
        for column in range(5):
            assert found[row, column] == pytest.approx(agreement(labels[column], decisions[row], 4).kappa)


SMALL = np.diag([9000, 500, 40, 30]) + 5


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (SMALL, {}),
        (SMALL[:, [0, 1, 3, 2]], {2: 3, 3: 2}),
        (SMALL[:, [3, 0, 1, 2]], {0: 1, 1: 2, 2: 3, 3: 0}),
        ([[900, 10, 10], [5, 5, 90], [5, 5, 100]], {}),  # class 1 is mostly mistaken for 2
        ([[0, 300, 0], [0, 0, 200], [0, 0, 0]], {0: 1, 1: 2}),  # labels begin with 0 what is called 1
    ],
)
def test_numbers_that_were_exchanged_are_found_also_of_small_classes(table, expected):
    assert better_numbers(np.array(table), 0.2, 0.3, 0.75) == expected


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((7,), 2), ((4, 5), 4), ((5, 5), 8), ((1, 5), 2), ((3, 4, 4), 16), ((3, 3, 3), 48)]
)
def test_a_box_has_as_many_turns_as_symmetries_they_differ_and_their_text_is_code_that_does_it(shape, count):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    turns = turns_of(shape)
    turned = [turn(values) for turn in turns]
    assert len(turned) == len({one.tobytes() for one in turned}) == count
    assert np.array_equal(turned[0], values)
    for turn, found in zip(turns, turned, strict=True):
        assert found.shape == shape
        assert np.array_equal(eval(str(turn), {"numpy": np, "labels": values}), found)


def test_with_many_axes_only_single_ones_are_mirrored():
    assert turns_of((2, 2, 1, 2)) == [Turn((0, 1, 2, 3)), *(Turn((0, 1, 2, 3), (axis,)) for axis in (0, 1, 3))]


@pytest.mark.parametrize(
    ("shift", "text"),
    [(Shift(0, 1), "moved by +1 voxel along axis 0"), (Shift(1, -3), "moved by -3 voxels along axis 1")],
)
def test_a_shift_puts_what_stays_inside_where_it_comes_to_lie(shift, text):
    values = np.arange(6 * 7).reshape(6, 7)
    moved = np.roll(values, shift.by, shift.axis)
    assert np.array_equal(shift.onto(moved), shift.taken(values))
    assert shift.onto(values).shape == shift.taken(values).shape
    assert str(shift) == text
