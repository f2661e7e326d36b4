from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from segcal.cases import CaseWriter, open_cases
from segcal.cases.formats.safetensors import numpy_dtype, write_tensors
from segcal.errors import InputError


def test_other_tensors_and_metadata_are_kept(tmp_path):
    (tmp_path / "p").mkdir()
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    save_file({"scores": scores.bfloat16(), "extra": torch.ones(2)}, tmp_path / "p" / "a.safetensors", {"note": "x"})
    cases = open_cases(tmp_path / "p", kind="logits", key="scores")
    case = cases.read("a")
    assert torch.equal(case.logits, scores.bfloat16().float())
    CaseWriter(cases, tmp_path / "out").write("a", torch.log_softmax(case.logits, 0), case.logits.argmax(0))
    written = load_file(tmp_path / "out" / "a.safetensors")
    assert written["scores"].dtype == torch.float32
    with safe_open(tmp_path / "out" / "a.safetensors", "pt") as file:
        assert file.metadata() == {"note": "x"}
    assert torch.equal(written["extra"], torch.ones(2))


def test_several_tensors_need_a_key(tmp_path):
    save_file({"x": torch.zeros(2, 3), "y": torch.zeros(2, 3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"has 2 tensors \(x, y\), but one is needed"):
        open_cases(tmp_path, kind="logits")
    with pytest.raises(InputError, match="has the tensors x, y, but 'z' is needed"):
        open_cases(tmp_path, kind="logits", key="z")


def test_unusual_types_are_refused():
    assert numpy_dtype("U16", Path("a")) == np.uint16
    with pytest.raises(InputError, match=r"a\.safetensors has dtype F8_E4M3, but plain numbers are needed"):
        numpy_dtype("F8_E4M3", Path("a.safetensors"))


def test_files_have_the_mode_that_other_files_have(tmp_path):
    write_tensors({"a": torch.zeros(2)}, tmp_path / "a.safetensors", None)
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "plain"]


def test_a_file_that_cannot_be_written_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match=r"a\.safetensors could not be written"):
        write_tensors({"a": torch.zeros(2)}, tmp_path / "nowhere" / "a.safetensors", None)
