import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from segcal.cases import ArrayCases, CaseError, StoreWriter, convert, open_cases
from segcal.errors import InputError


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 40.0, -3000.0]), gap=st.sampled_from([0.0, 1e-6, 1e-3]))
def test_near_ties_keep_their_decision_whatever_the_offset(seed, offset, gap, tmp_path_factory):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(4, 30)) + offset
    logits[2] = logits[0] + gap
    folder = tmp_path_factory.mktemp("s")
    convert(ArrayCases([logits.astype(np.float32)]), folder)
    assert np.array_equal(open_cases(folder).read("0").logits.numpy().argmax(0), logits.astype(np.float32).argmax(0))


def test_the_file_holds_what_the_page_says(tmp_path, rng):
    logits = rng.normal(size=(3, 4, 5)).astype(np.float32)
    labels = np.full((4, 5), 2)
    labels[0] = 255
    cases = ArrayCases([logits], [labels], ignore=255, ids=["a"])
    convert(cases, tmp_path)
    found = load_file(tmp_path / "a.safetensors")
    assert {key: value.dtype.name for key, value in found.items()} == {
        "log_probs": "float16",
        "free_energy": "float32",
        "prediction": "uint8",
        "labels": "int16",
    }
    np.testing.assert_allclose(found["free_energy"], np.log(np.exp(logits).sum(0)), rtol=1e-5)
    assert (found["labels"][0] == -1).all()


def test_calibrated_scores_keep_labels_and_lose_the_offset(tmp_path, rng, calibrate):
    logits = rng.normal(size=(3, 4, 5)).astype(np.float32)
    labels = rng.integers(0, 3, (4, 5))
    convert(ArrayCases([logits], [labels], ids=["a"], groups=["g"]), tmp_path / "s")
    calibrate(open_cases(tmp_path / "s"), tmp_path / "out")
    again = open_cases(tmp_path / "out")
    assert again.kind == "probs"
    assert "free_energy" not in load_file(tmp_path / "out" / "a.safetensors")
    assert np.array_equal(again.read("a").labels, labels)
    assert again.groups == {"a": "g"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 2}, "has format 'segcal-store' version 2, but 'segcal-store' version 1 is needed"),
        ({"num_classes": "three"}, r"dataset\.json has num_classes = 'three', but 2 to 1048576 are needed"),
        ({"num_classes": 10**12}, r"dataset\.json has num_classes = 1000000000000, but 2 to"),
        ({"class_names": "abc"}, "has no valid class_names and pooling"),
        ({"pooling": ["single"]}, "has no valid class_names and pooling"),
        ({"kind": "softmax"}, "no kind is named 'softmax'"),
    ],
)
def test_a_dataset_json_of_another_kind_is_refused(change, match, tmp_path):
    convert(ArrayCases([np.zeros((2, 3), np.float32)]), tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=match):
        open_cases(tmp_path, format="store")


def test_a_foreign_file_in_a_store_fails_its_case(tmp_path):
    convert(ArrayCases([np.zeros((2, 3), np.float32)]), tmp_path)
    save_file({"log_probs": np.zeros((2, 3), np.float16)}, tmp_path / "x.safetensors")
    with pytest.raises(CaseError, match=r"x\.safetensors is not a case of 'segcal-store' version 1"):
        open_cases(tmp_path).read("x")


def test_a_prediction_that_is_not_the_winner_is_damage(tmp_path):
    convert(ArrayCases([np.array([[0.0], [5.0]], np.float32)]), tmp_path)
    found = load_file(tmp_path / "0.safetensors")
    facts = json.dumps({"format": "segcal-store", "version": 1})
    for prediction, match in [([0], "would name another class"), ([7], "cannot be read"), ([1, 1], "of another shape")]:
        save_file(found | {"prediction": np.array(prediction, np.uint8)}, tmp_path / "0.safetensors", {"segcal": facts})
        with pytest.raises(CaseError, match=match):
            open_cases(tmp_path).read("0")


@pytest.mark.parametrize(
    ("facts", "spacing"),
    [({"spacing": [1, 0.5]}, (1.0, 0.5)), ({"spacing": [float("inf"), 1]}, None), ({"spacing": "12"}, None)],
)
def test_a_voxel_size_that_is_none_counts_as_unknown(facts, spacing, tmp_path):
    convert(ArrayCases([np.eye(2, 4, dtype=np.float32).reshape(2, 2, 2)], ids=["a"]), tmp_path)
    _rewrite(tmp_path / "a.safetensors", facts)
    assert open_cases(tmp_path).read("a").spacing == spacing


@pytest.mark.parametrize("text", ["[" * 100_000, '{"spacing": [1' + "0" * 400 + ", 1]}"])
def test_metadata_beyond_the_bounds_fails_its_case(text, tmp_path):
    convert(ArrayCases([np.eye(2, 4, dtype=np.float32)], ids=["a"]), tmp_path)
    _rewrite(tmp_path / "a.safetensors", text)
    with pytest.raises(CaseError, match=r"a\.safetensors cannot be read \(ValueError"):
        open_cases(tmp_path).read("a")


def _rewrite(path, facts):
    """Change what a stored case says about itself."""
    with safe_open(path, framework="np") as file:
        known = json.loads(file.metadata()["segcal"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {"segcal": facts if isinstance(facts, str) else json.dumps(known | facts)})


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
    store = pickle.loads(pickle.dumps(open_cases(tmp_path / "s")))  # as for a worker process
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


def test_a_store_of_another_collection_and_foreign_files_are_not_mixed(arrays, tmp_path):
    convert(arrays, tmp_path / "s")
    with pytest.raises(InputError, match=r"holds a store with another num_classes \(3\), but 2 is to be written"):
        StoreWriter(ArrayCases([np.zeros((2, 4))], pooling="mean_logits"), tmp_path / "s")
    with pytest.raises(InputError, match="has files that are no store"):
        StoreWriter(arrays, tmp_path)


def test_probabilities_are_stored_without_an_offset(tmp_path, rng):
    probs = rng.dirichlet([1, 1, 1], size=7).T.astype(np.float32)
    convert(ArrayCases([probs], kind="probs"), tmp_path)
    store = open_cases(tmp_path)
    assert json.loads((tmp_path / "dataset.json").read_text())["kind"] == "probs"
    assert not store.has_offset
    np.testing.assert_allclose(store.read("0").logits.exp(), probs, atol=1e-3)


def test_a_sigmoid_output_is_stored_as_two_classes(tmp_path, rng, calibrate):
    foreground = rng.random((4, 5)).astype(np.float32)
    convert(ArrayCases([foreground], kind="sigmoid"), tmp_path / "s")
    store = open_cases(tmp_path / "s")
    assert (store.kind, store.num_classes) == ("sigmoid", 2)
    case = calibrate(store, tmp_path / "out", "0")
    np.testing.assert_allclose(case.logits.exp()[1], foreground, atol=1e-3)
    assert torch.equal(open_cases(tmp_path / "out").read("0").logits.argmax(0), case.logits.argmax(0))
