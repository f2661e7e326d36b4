import json
import pickle

import numpy as np
import pytest
import torch

from segcal.cases import ArrayCases, CaseWriter, StoreWriter, convert, open_cases
from segcal.errors import InputError


@pytest.fixture
def arrays(rng):
    logits = [(rng.normal(size=(3, 4, 5)) * 4 + 30).astype(np.float32) for _ in range(3)]
    labels = [rng.integers(0, 3, (4, 5)) for _ in range(3)]
    masks = [rng.random((4, 5)) > 0.3 for _ in range(3)]
    return ArrayCases(
        logits, labels, ids=["a", "b", "c"], masks=masks, spacing=[(1.0, 2.0)] * 3, groups=["x", "x", "y"],
        pooling="mean_logits", class_names=["p", "q", "r"],
    )  # fmt: skip


def test_a_converted_collection_reads_back_as_it_was(arrays, tmp_path):
    assert convert(arrays, tmp_path / "s").written == ["a", "b", "c"]
    store = open_cases(tmp_path / "s")
    assert (store.kind, store.pooling, store.class_names) == ("logits", "mean_logits", ("p", "q", "r"))
    assert store.groups == arrays.groups
    assert store.has_offset
    for before, after in zip(arrays, store, strict=True):
        assert torch.equal(before.labels, after.labels)
        assert torch.equal(before.mask, after.mask)
        assert after.spacing == (1.0, 2.0)
        np.testing.assert_allclose(after.logits, before.logits, atol=1e-2)
        assert torch.equal(after.logits.argmax(0), before.logits.argmax(0))
        energy = [torch.logsumexp(case.logits, 0) for case in (before, after)]
        np.testing.assert_allclose(energy[0], energy[1], atol=2e-3)


def test_what_is_complete_is_not_written_again(arrays, tmp_path):
    convert(arrays, tmp_path)
    stamp = (tmp_path / "b.safetensors").stat().st_mtime_ns
    (tmp_path / "c.safetensors").unlink()
    convert(arrays, tmp_path)
    assert (tmp_path / "b.safetensors").stat().st_mtime_ns == stamp
    assert (tmp_path / "c.safetensors").exists()
    assert [path.name for path in tmp_path.glob(".*")] == [".segcal"]


def test_a_store_of_another_collection_is_not_mixed(arrays, tmp_path):
    convert(arrays, tmp_path)
    with pytest.raises(InputError, match=r"holds a store with another num_classes \(3\), but 2 is to be written"):
        StoreWriter(ArrayCases([np.zeros((2, 4))], pooling="mean_logits"), tmp_path)


def test_foreign_files_are_not_mixed(arrays, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="has files that are no store"):
        StoreWriter(arrays, tmp_path)


def test_probabilities_are_stored_without_an_offset(tmp_path, rng):
    probs = rng.dirichlet([1, 1, 1], size=7).T.astype(np.float32)
    convert(ArrayCases([probs], kind="probs"), tmp_path)
    store = open_cases(tmp_path)
    assert json.loads((tmp_path / "dataset.json").read_text())["kind"] == "probs"
    assert not store.has_offset
    np.testing.assert_allclose(store.read("0").logits.exp(), probs, atol=1e-3)


def test_a_sigmoid_output_is_stored_as_two_classes(tmp_path, rng):
    foreground = rng.random((4, 5)).astype(np.float32)
    convert(ArrayCases([foreground], kind="sigmoid"), tmp_path / "s")
    store = open_cases(tmp_path / "s")
    assert (store.kind, store.num_classes) == ("sigmoid", 2)
    case = store.read("0")
    np.testing.assert_allclose(case.logits.exp()[1], foreground, atol=1e-3)
    CaseWriter(store, tmp_path / "out").write("0", torch.log_softmax(case.logits / 2, 0), case.logits.argmax(0))
    assert torch.equal(open_cases(tmp_path / "out").read("0").logits.argmax(0), case.logits.argmax(0))


def test_file_cases_survive_a_process_border(arrays, tmp_path):
    convert(arrays, tmp_path)
    again = pickle.loads(pickle.dumps(open_cases(tmp_path)))
    assert again.read("b").id == "b"
