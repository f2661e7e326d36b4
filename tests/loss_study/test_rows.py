import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from paper.loss_study.network import make_network
from paper.loss_study.plan import Unit
from paper.loss_study.rows import (
    pack,
    read_arrays,
    read_rows,
    read_weights,
    unpack,
    write_arrays,
    write_failure,
    write_row,
    write_weights,
)
from segcal.errors import ArtifactError


def test_rows_and_arrays_survive_the_archive(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_row(folder, "b", {"value": 2})
    write_row(folder, "a", {"value": 1})
    write_row(folder, "facts", {"device": "cpu"})
    write_arrays(folder, "a", {"mask": np.arange(6).reshape(2, 3)})
    (folder / ".c.part").write_text("half")
    archive = tmp_path / "out" / "all.zip"
    assert pack(folder, archive) == 4
    assert [row["value"] for row in read_rows([archive])] == [1, 2]
    np.testing.assert_array_equal(read_arrays([archive], "a")["mask"], [[0, 1, 2], [3, 4, 5]])
    assert read_arrays([archive], "b") is None


def test_the_same_results_are_the_same_bytes(tmp_path):
    write_row(tmp_path, "a", {"value": 1})
    for name in ("one.zip", "two.zip"):
        pack(tmp_path, tmp_path / "out" / name)
    assert (tmp_path / "out" / "one.zip").read_bytes() == (tmp_path / "out" / "two.zip").read_bytes()


def test_a_study_goes_on_from_an_archive(tmp_path):
    (tmp_path / "old").mkdir()
    write_row(tmp_path / "old", "a", {"value": 1})
    pack(tmp_path / "old", tmp_path / "all.zip")
    new = tmp_path / "new"
    new.mkdir()
    write_row(new, "b", {"value": 2})
    unpack(tmp_path / "all.zip", new)
    assert {path.name for path in new.iterdir()} == {"a.json", "b.json"}


def test_the_first_archive_wins(tmp_path):
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_row(folder, "a", {"value": number})
        pack(folder, tmp_path / f"{number}.zip")
    assert [row["value"] for row in read_rows([tmp_path / "1.zip", tmp_path / "2.zip"])] == [1]


def test_another_schema_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "old.zip", "w") as archive:
        archive.writestr("a.json", '{"schema": 0}')
    with pytest.raises(ArtifactError, match=r"a\.json in .*old\.zip is not of schema 1"):
        read_rows([tmp_path / "old.zip"])


def failure(text):
    """An exception that was raised, with the place where it was."""
    try:
        raise ArithmeticError(text)
    except ArithmeticError as error:
        return error


def test_a_failure_leaves_its_text_and_is_said(tmp_path, capfd):
    write_failure(tmp_path, "a", failure("loss is nan"))
    text = (tmp_path / "a.error.txt").read_text()
    assert text.startswith("Traceback")
    assert "in failure" in text
    assert text.endswith("ArithmeticError: loss is nan\n")
    assert capfd.readouterr().err == "a failed: ArithmeticError('loss is nan')\n"
    pack(tmp_path, tmp_path / "out" / "all.zip")
    assert zipfile.ZipFile(tmp_path / "out" / "all.zip").namelist() == ["a.error.txt"]
    assert read_rows([tmp_path / "out" / "all.zip"]) == []


def test_a_row_that_is_written_later_takes_the_place_of_a_failure(tmp_path):
    write_failure(tmp_path, "a", failure("loss is nan"))
    write_failure(tmp_path, "b", failure("loss is inf"))
    write_row(tmp_path, "a", {"value": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "b.error.txt"}


def test_a_failure_that_goes_while_results_are_packed_is_left_out(tmp_path, monkeypatch):
    write_failure(tmp_path, "a", failure("loss is nan"))
    write_row(tmp_path, "b", {"value": 2})
    read = Path.read_bytes

    def other_process(path):
        write_row(tmp_path, "a", {"value": 1})
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", other_process)
    assert pack(tmp_path, tmp_path / "out" / "all.zip") == 1
    assert [row["value"] for row in read_rows([tmp_path / "out" / "all.zip"])] == [2]


RECORD = {"best_dice": 0.25, "best_epoch": 3, "history": [[1, 0.5, None]], "logit_histograms": {"1": [0, 2]}}


def made_up(unit, seed):
    """A network with weights that need more than 16 bits, and with statistics larger than float16 can hold."""
    torch.manual_seed(seed)
    network = make_network(unit)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.running_mean.normal_()
            module.running_var.uniform_(1e5, 1e6)
            module.num_batches_tracked.fill_(123456)
    return network


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_a_network_comes_back_with_float16_weights_and_float32_statistics(tmp_path, task):
    unit = Unit(task, "ce", 0)
    network, other = made_up(unit, 0), made_up(unit, 1)
    write_weights(tmp_path / "a.safetensors", network, RECORD)
    read_weights(tmp_path / "a.safetensors", other)
    found = other.state_dict()
    changed = 0
    for name, value in network.state_dict().items():
        own, its = value.detach().numpy(), found[name].numpy()
        assert its.dtype == own.dtype
        if name.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked"):
            np.testing.assert_array_equal(its, own)
        else:
            np.testing.assert_array_equal(its, own.astype(np.float16).astype(np.float32))
            changed += (its != own).sum()
    assert changed > 100


def test_the_file_is_half_as_large_where_it_may_be(tmp_path):
    write_weights(tmp_path / "a.safetensors", made_up(Unit("roads", "ce", 0), 0), {})
    kinds = {name.split(".")[-1]: value.dtype for name, value in load_file(tmp_path / "a.safetensors").items()}
    assert kinds == {
        "weight": torch.float16,
        "bias": torch.float16,
        "running_mean": torch.float32,
        "running_var": torch.float32,
        "num_batches_tracked": torch.int64,
    }


def test_the_record_comes_back(tmp_path):
    unit = Unit("roads", "ce", 0)
    write_weights(tmp_path / "a.safetensors", make_network(unit), RECORD)
    assert read_weights(tmp_path / "a.safetensors", make_network(unit)) == RECORD


def test_a_second_network_takes_the_place_of_the_first_and_nothing_is_left_beside_it(tmp_path):
    unit = Unit("roads", "ce", 0)
    for number in (1, 2):
        write_weights(tmp_path / "a.safetensors", make_network(unit), {"number": number})
    assert read_weights(tmp_path / "a.safetensors", make_network(unit)) == {"number": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_weights_of_another_backbone_are_refused(tmp_path):
    write_weights(tmp_path / "a.safetensors", make_network(Unit("streets", "ce_dice", 0)), {})
    with pytest.raises(RuntimeError, match="Missing key"):
        read_weights(tmp_path / "a.safetensors", make_network(Unit("streets", "ce_dice", 0, "unet_plus_plus")))


def test_a_damaged_file_is_removed_so_that_it_is_made_again(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"was not readable as weights .* and is removed\. Run the study again"):
        read_weights(path, nn.Linear(2, 2))
    assert not path.exists()
