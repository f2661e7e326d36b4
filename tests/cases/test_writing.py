import numpy as np
import pytest
import torch

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.errors import InputError


def save(folder, **arrays):
    folder.mkdir()
    for case_id, array in arrays.items():
        np.save(folder / f"{case_id}.npy", array)
    return folder


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5)])
def test_a_sigmoid_output_keeps_its_shape_and_its_side_of_one_half(shape, tmp_path, rng):
    foreground = rng.random(shape).astype(np.float16)
    foreground.reshape(-1)[:3] = [0.5, np.nextafter(np.float16(0.5), np.float16(1)), 1]
    cases = open_cases(save(tmp_path / "p", a=foreground), kind="sigmoid")
    case = cases.read("a")
    flat = torch.log_softmax(case.logits / 1e4, dim=0)
    CaseWriter(cases, tmp_path / "out").write("a", flat, case.logits.argmax(0))
    written = np.load(tmp_path / "out" / "a.npy")
    assert written.shape == shape
    assert written.dtype == np.float16
    assert np.array_equal(written > 0.5, foreground > 0.5)


def test_logits_can_be_written_as_probabilities(npy_folder, tmp_path):
    cases = open_cases(npy_folder[0], kind="logits")
    case = cases.read("a1")
    CaseWriter(cases, tmp_path / "out", kind="probs").write(
        "a1", torch.log_softmax(case.logits, 0), case.logits.argmax(0)
    )
    np.testing.assert_allclose(np.load(tmp_path / "out" / "a1.npy").sum(0), 1, atol=1e-6)


def test_log_probabilities_below_the_range_of_half_precision_stay_finite(tmp_path):
    cases = open_cases(save(tmp_path / "p", a=np.zeros((2, 3), np.float16)), kind="logits")
    extreme = torch.tensor([[0.0] * 3, [-1e6] * 3])
    CaseWriter(cases, tmp_path / "out").write("a", extreme, torch.zeros(3, dtype=torch.int64))
    assert np.isfinite(np.load(tmp_path / "out" / "a.npy")).all()


def test_axis_order_byte_order_and_memory_order_are_those_of_the_input(tmp_path, rng):
    array = np.asfortranarray(rng.normal(size=(4, 5, 3)).astype(">f4"))
    cases = open_cases(save(tmp_path / "p", a=array), kind="logits", class_axis=2)
    case = cases.read("a")
    CaseWriter(cases, tmp_path / "out").write("a", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    written = np.load(tmp_path / "out" / "a.npy")
    assert written.dtype == array.dtype
    assert written.flags.f_contiguous
    assert np.array_equal(written.argmax(2), array.argmax(2))


def test_the_shape_must_stay(npy_folder, tmp_path):
    writer = CaseWriter(open_cases(npy_folder[0], kind="logits"), tmp_path / "out")
    with pytest.raises(
        CaseError, match=r"case 'a1': calibrated scores .* have shape \(3, 4\), but the input has \(3, 4, 5\)"
    ):
        writer.write("a1", torch.zeros(3, 4))


def test_a_kind_of_another_shape_is_refused(npy_folder, tmp_path):
    with pytest.raises(InputError, match="kind is 'sigmoid', but 'logits' came in and has another shape"):
        CaseWriter(open_cases(npy_folder[0], kind="logits"), tmp_path / "out", kind="sigmoid")


def test_a_file_that_reads_back_differently_is_not_put_in_place(npy_folder, tmp_path, monkeypatch):
    cases = open_cases(npy_folder[0], kind="logits")
    case = cases.read("a1")
    writer = CaseWriter(cases, tmp_path / "out")
    monkeypatch.setattr(np, "save", lambda file, array: file.write((npy_folder[0] / "b1.npy").read_bytes()))
    with pytest.raises(CaseError, match="read back has another winning class in some voxels"):
        writer.write("a1", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    assert list((tmp_path / "out").iterdir()) == []


def test_what_an_interrupted_run_left_does_not_disturb(npy_folder, tmp_path):
    cases = open_cases(npy_folder[0], kind="logits")
    left = tmp_path / "out" / ".segcal-0123456789abcdef"
    left.mkdir(parents=True)
    (left / "a1.npy").write_bytes(b"half")
    case = cases.read("a1")
    writer = CaseWriter(cases, tmp_path / "out")
    assert not writer.done("a1")
    assert writer.write("a1", torch.log_softmax(case.logits, 0)) == (tmp_path / "out" / "a1.npy",)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".segcal", left.name, "a1.npy"]
