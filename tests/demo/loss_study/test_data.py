import numpy as np

from segcal.studies.corruptions import corrupt
from segcal.demo.loss_study.data import FULL, SMALL, Chunk, Sizes, all_chunks, chunks, read_part, write_chunk
from segcal.demo.loss_study.shift import degrade
from segcal.demo.tasks import HELD_OUT, TRAINING, get_task

TINY = Sizes({"roads": 2, "tumour": 1, "streets": 1}, valid=1, cal=1, val=1, test=1)


def test_parts_of_the_held_out_cases_do_not_overlap():
    for sizes in (FULL, SMALL):
        parts = [
            {i for chunk in chunks("roads", part, sizes) for i in chunk.indices} for part in ("cal", "val", "test")
        ]
        assert [len(part) for part in parts] == [sizes.cal, sizes.val, sizes.test]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_every_test_case_has_a_degraded_copy_and_no_file_has_two_parts():
    tasks = ("roads", "tumour", "streets")
    for task in tasks:
        test, shifted = ([chunk.indices for chunk in chunks(task, part, FULL)] for part in ("test", "corrupted"))
        assert sum(map(len, test)) == FULL.test
        assert test == shifted
    names = [chunk.name for chunk in all_chunks(tasks, FULL)]
    assert len(set(names)) == len(names)


def test_a_degraded_volume_has_the_labels_of_the_case(tmp_path):
    for part in ("test", "corrupted"):
        for chunk in chunks("tumour", part, TINY):
            write_chunk(tmp_path, chunk)
    (case,) = read_part(tmp_path, "tumour", "test", TINY)
    (shifted,) = read_part(tmp_path, "tumour", "corrupted", TINY)
    assert case.id == shifted.id == "tumour_0002"
    np.testing.assert_array_equal(shifted.labels, case.labels)
    np.testing.assert_array_equal(shifted.image, degrade(case.image, "tumour_0002"))
    assert not np.array_equal(shifted.image, case.image)


def test_what_is_written_is_read_again(tmp_path):
    for part in ("train", "corrupted"):
        for chunk in chunks("roads", part, TINY):
            write_chunk(tmp_path, chunk)
    task = get_task("roads")
    train = read_part(tmp_path, "roads", "train", TINY)
    sample = task.sample(1, TRAINING)
    assert len(train) == 2
    np.testing.assert_array_equal(train[1].image, sample.image)
    np.testing.assert_array_equal(train[1].labels, sample.labels)
    (shifted,) = read_part(tmp_path, "roads", "corrupted", TINY)
    held_out = task.sample(2, HELD_OUT)
    assert shifted.id == "roads_0002"
    np.testing.assert_array_equal(shifted.image, corrupt(held_out.image, "roads_0002", "strong"))
    np.testing.assert_array_equal(shifted.labels, held_out.labels)
    assert not list(tmp_path.glob("*.part*"))


def test_a_file_is_named_after_its_first_case():
    assert Chunk("roads", "test", (18, 19)).name == "roads-test-018.npz"
