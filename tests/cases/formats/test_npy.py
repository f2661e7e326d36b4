import numpy as np

from segcal.cases import open_cases


def test_the_file_is_mapped_and_not_changed_by_what_is_done_to_the_case(tmp_path, rng):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    cases = open_cases(tmp_path, kind="logits")
    assert isinstance(cases.read_member("a").values.base, np.memmap)
    cases.read("a").logits.add_(1)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)
