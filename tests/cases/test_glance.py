import binascii

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from segcal.cases import ArrayCases, Case
from segcal.cases.decision import decision_of
from segcal.cases.glance import (
    FEWEST,
    GRID,
    THUMBNAIL,
    Turn,
    agreement,
    better_numbers,
    confusion,
    digest_of,
    glance_at,
    grid_of,
    pair_agreement,
    table_agreement,
    turns_of,
)
from segcal.cases.parallel import map_cases


@pytest.mark.parametrize("shape", [(), (5,), (40_000_000, 1), (9, 224, 216), (3, 0, 7), (750, 750), (100, 3, 400, 5)])
@pytest.mark.parametrize("most", [GRID, THUMBNAIL])
def test_a_grid_is_bounded_and_not_much_smaller_than_allowed(shape, most):
    count = int(
        np.prod([len(range(0, size, part.step)) for size, part in zip(shape, grid_of(shape, most), strict=True)])
    )
    assert count <= most
    assert count >= min(int(np.prod(shape)), most / 2)


def look(case):
    return glance_at(case, decision_of(None, len(case.logits)))


def test_turned_labels_are_compared_voxel_by_voxel(scenes):
    ((logits, labels),) = scenes(1, (300, 301))  # more than the grid
    found = look(Case("a", torch.from_numpy(logits), torch.from_numpy(labels.astype(np.int64))))
    steps = grid_of((300, 301), GRID)
    for axis in (0, 1):
        expected = agreement(np.flip(labels, axis)[steps].astype(int), logits.argmax(0)[steps], 3).kappa
        assert found.turned[Turn((0, 1), (axis,))] == pytest.approx(expected)
    assert found.thumbnail.labels.size <= THUMBNAIL


def test_voxels_outside_the_mask_count_in_no_turn(scenes):
    ((logits, labels),) = scenes(1)
    mask = np.zeros(labels.shape, bool)
    mask[:12] = True
    case = next(iter(ArrayCases([logits], [labels], masks=[mask], kind="logits")))
    found = look(case)
    assert found.counting == 12 * 30
    assert found.turned[Turn((0, 1), (1,))] == pytest.approx(
        agreement(np.flip(labels[:12], 1).astype(int), logits[:, :12].argmax(0), 3).kappa
    )
    assert np.isnan(found.turned[Turn((0, 1), (0,))])  # nothing lies on each other


def test_of_few_voxels_only_counts_are_kept(scenes):
    ((logits, labels),) = scenes(1, (FEWEST - 1,))
    found = look(next(iter(ArrayCases([logits], [labels]))))
    assert (found.turned, found.thumbnail) == ({}, None)
    assert found.agreement.voxels == FEWEST - 1
    assert found.confusion.sum() == FEWEST - 1


def test_without_labels_or_voxels_that_count_there_is_little_to_keep(scenes):
    ((logits, labels),) = scenes(1)
    assert look(next(iter(ArrayCases([logits])))).counting is None
    found = look(next(iter(ArrayCases([logits], [np.full_like(labels, 9)], ignore=9))))
    assert (found.counting, found.confusion) == (0, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
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
    drawn = scenes(3)
    cases = ArrayCases([logits for logits, _ in drawn], [labels for _, labels in drawn])
    seen = []
    assert dict(map_cases(cases, count, workers, seen=seen.append)) == {"0": 720, "1": 720, "2": 720}
    assert [one.digest for one in seen] == [digest_of(case.logits) for case in cases]
    assert dict(map_cases(cases, count)) == {"0": 720, "1": 720, "2": 720}


@pytest.fixture
def maps():
    rng = np.random.default_rng(3)
    labels = rng.integers(-1, 4, (5, 300))
    return np.where(rng.random((5, 300)) < 0.6, labels, rng.integers(-1, 4, (5, 300))), labels


def test_agreement_is_kappa_of_the_places_where_both_count(maps):
    decisions, labels = maps
    for decision, truth in zip(decisions, labels, strict=True):
        both = (decision >= 0) & (truth >= 0)
        expected = cohen_kappa_score(decision[both], truth[both])
        found = agreement(truth, decision, 4)
        assert found.kappa == pytest.approx(expected)
        assert found.voxels == both.sum()
        assert table_agreement(confusion(truth, decision, 4)).kappa == pytest.approx(expected)


def test_of_nothing_and_of_one_class_agreement_is_undefined():
    assert np.isnan(agreement(np.array([-1, 0]), np.array([0, -1]), 2).kappa)
    assert np.isnan(agreement(np.zeros(5, int), np.zeros(5, int), 2).kappa)


def test_pairs_are_compared_like_single_maps_where_all_voxels_count(maps):
    decisions, labels = (np.where(one < 0, 0, one).astype(np.int16) for one in maps)
    found = pair_agreement(decisions[:3], labels, 4)
    for row in range(3):
        for column in range(5):
            assert found[row, column] == pytest.approx(agreement(labels[column], decisions[row], 4).kappa)


def test_numbers_that_were_exchanged_are_found_also_of_small_classes():
    table = np.diag([9000, 500, 40, 30]) + 5
    assert better_numbers(table, 0.2, 0.3, 0.75) == {}
    assert better_numbers(table[:, [0, 1, 3, 2]], 0.2, 0.3, 0.75) == {2: 3, 3: 2}
    assert better_numbers(table[:, [3, 0, 1, 2]], 0.2, 0.3, 0.75) == {0: 1, 1: 2, 2: 3, 3: 0}


def test_a_class_that_is_mistaken_for_another_is_not_renumbered():
    table = np.array([[900, 10, 10], [5, 5, 90], [5, 5, 100]])  # class 1 is mostly called 2
    assert better_numbers(table, 0.2, 0.3, 0.75) == {}


def test_labels_that_lack_a_class_may_be_renumbered_too():
    table = np.array([[0, 300, 0], [0, 0, 200], [0, 0, 0]])  # labels begin with 0 what is called 1
    assert better_numbers(table, 0.2, 0.3, 0.75) == {0: 1, 1: 2}


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((7,), 2), ((4, 5), 4), ((5, 5), 8), ((1, 5), 2), ((3, 4, 4), 16), ((3, 3, 3), 48)]
)
def test_a_box_has_as_many_turns_as_symmetries_and_they_differ(shape, count):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    turned = [turn(values) for turn in turns_of(shape)]
    assert len(turned) == count
    assert np.array_equal(turned[0], values)
    assert all(one.shape == shape for one in turned)
    assert len({one.tobytes() for one in turned}) == count


def test_with_many_axes_only_single_ones_are_mirrored():
    assert turns_of((2, 2, 1, 2)) == [Turn((0, 1, 2, 3)), *(Turn((0, 1, 2, 3), (axis,)) for axis in (0, 1, 3))]


@pytest.mark.parametrize("turn", turns_of((4, 4, 4)), ids=str)
def test_the_text_is_code_that_does_it(turn):
    labels = np.arange(64).reshape(4, 4, 4)
    assert np.array_equal(eval(str(turn), {"numpy": np, "labels": labels}), turn(labels))
