import hashlib

import numpy as np
import pytest
import torch

from segcal.cases import ArrayCases, Case
from segcal.cases.agreement import Turn, agreement
from segcal.cases.glance import FEWEST, GRID, THUMBNAIL, digest_of, glance_at, grid_of
from segcal.cases.parallel import map_cases


@pytest.mark.parametrize("shape", [(), (5,), (40_000_000, 1), (9, 224, 216), (3, 0, 7), (750, 750), (100, 3, 400, 5)])
@pytest.mark.parametrize("most", [GRID, THUMBNAIL])
def test_a_grid_is_bounded_and_not_much_smaller_than_allowed(shape, most):
    count = int(
        np.prod([len(range(0, size, part.step)) for size, part in zip(shape, grid_of(shape, most), strict=True)])
    )
    assert count <= most
    assert count >= min(int(np.prod(shape)), most / 2)


def test_turned_labels_are_compared_voxel_by_voxel(scenes):
    ((logits, labels),) = scenes(1, (300, 301))  # more than the grid
    found = glance_at(Case("a", torch.from_numpy(logits), torch.from_numpy(labels.astype(np.int64))))
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
    found = glance_at(case)
    assert found.counting == 12 * 30
    assert found.turned[Turn((0, 1), (1,))] == pytest.approx(
        agreement(np.flip(labels[:12], 1).astype(int), logits[:, :12].argmax(0), 3).kappa
    )
    assert np.isnan(found.turned[Turn((0, 1), (0,))])  # nothing lies on each other


def test_of_few_voxels_only_counts_are_kept(scenes):
    ((logits, labels),) = scenes(1, (FEWEST - 1,))
    found = glance_at(next(iter(ArrayCases([logits], [labels]))))
    assert (found.turned, found.thumbnail) == ({}, None)
    assert found.agreement.voxels == FEWEST - 1
    assert found.confusion.sum() == FEWEST - 1


def test_without_labels_or_voxels_that_count_there_is_little_to_keep(scenes):
    ((logits, labels),) = scenes(1)
    assert glance_at(next(iter(ArrayCases([logits])))).counting is None
    found = glance_at(next(iter(ArrayCases([logits], [np.full_like(labels, 9)], ignore=9))))
    assert (found.counting, found.confusion) == (0, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_digest_is_of_values_and_shape_not_of_memory(dtype):
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    moved = scores.movedim(0, -1).contiguous().movedim(-1, 0)
    assert digest_of(moved) == digest_of(scores)
    assert digest_of(scores.reshape(3, 20)) != digest_of(scores)
    expected = hashlib.blake2b(f"(3, 4, 5) {dtype}".encode(), digest_size=16)
    expected.update(bytes(scores.contiguous().view(torch.uint8).numpy()))
    assert digest_of(scores) == expected.digest()


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
