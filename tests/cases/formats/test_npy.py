import numpy as np
import torch

from segcal.cases import CaseWriter, open_cases


def test_the_file_is_mapped_and_not_changed_by_what_is_done_to_the_case(tmp_path, rng):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    cases = open_cases(tmp_path, kind="logits")
    assert isinstance(cases.read_member("a").values.base, np.memmap)
    cases.read("a").logits.add_(1)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


def test_other_arrays_of_the_file_are_kept(tmp_path, rng):
    (tmp_path / "p").mkdir()
    array = rng.normal(size=(4, 5, 3)).astype(np.float16)
    np.savez(tmp_path / "p" / "a.npz", scores=array, spacing=np.array([1.0, 2.0]))
    cases = open_cases(tmp_path / "p", kind="logits", key="scores", class_axis=-1)
    case = cases.read("a")
    CaseWriter(cases, tmp_path / "out").write("a", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    written = np.load(tmp_path / "out" / "a.npz")
    assert written["spacing"].tolist() == [1.0, 2.0]
    assert written["scores"].dtype == np.float16
    assert np.array_equal(written["scores"].argmax(-1), array.argmax(-1))
