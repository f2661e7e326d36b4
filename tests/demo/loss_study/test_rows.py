import zipfile
from pathlib import Path

import numpy as np
import pytest

from segcal.demo.loss_study.rows import pack, read_arrays, read_rows, unpack, write_arrays, write_failure, write_row
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
