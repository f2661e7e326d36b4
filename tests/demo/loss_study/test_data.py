import numpy as np

from segcal.benchmark.corruptions import corrupt
from segcal.demo.loss_study.data import FULL, SMALL, Chunk, Sizes, all_chunks, chunks, read_part, write_chunk
from segcal.demo.tasks import HELD_OUT, TRAINING, get_task

TINY = Sizes({"roads": 2, "tumour": 1, "streets": 1}, valid=1, cal=1, val=1, test=1)


def test_parts_of_the_held_out_cases_do_not_overlap():
    for sizes in (FULL, SMALL):
        parts = [
            {i for chunk in chunks("roads", part, sizes) for i in chunk.indices} for part in ("cal", "val", "test")
        ]
        assert [len(part) for part in parts] == [sizes.cal, sizes.val, sizes.test]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_a_volume_has_no_corrupted_copies():
    assert not chunks("tumour", "corrupted", FULL)
    assert len({chunk.name for chunk in all_chunks(("roads", "tumour", "streets"), FULL)}) == len(
        list(all_chunks(("roads", "tumour", "streets"), FULL))
    )


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
