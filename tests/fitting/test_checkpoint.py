import pickle

import pytest
import torch

from segcal.errors import ArtifactError, InputError
from segcal.fitting.checkpoint import FileKeeper

IDENTITY = {"config": {"seed": 0}, "start": [1.0, 2.0]}


def test_what_was_saved_last_is_loaded(tmp_path):
    keeper = FileKeeper(tmp_path / "deep" / "trial_0.pt", IDENTITY)
    assert keeper.load() is None
    for value in (1.0, 2.0):
        keeper.save({"curve": [value], "kept": [torch.full((2,), value)]})
    found = FileKeeper(tmp_path / "deep" / "trial_0.pt", IDENTITY).load()
    assert found["curve"] == [2.0]
    assert torch.equal(found["kept"][0], torch.full((2,), 2.0))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["trial_0.pt"]


def test_a_state_of_another_fit_is_refused(tmp_path):
    FileKeeper(tmp_path / "a.pt", IDENTITY).save({})
    other = FileKeeper(tmp_path / "a.pt", IDENTITY | {"config": {"seed": 1}})
    with pytest.raises(InputError, match=r"a.pt belongs to a fit with another config, but the fit goes on only with"):
        other.load()


def test_a_file_that_is_no_checkpoint_is_refused_and_not_run(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"a.pt is not readable as a checkpoint"):
        FileKeeper(tmp_path / "a.pt", IDENTITY).load()

    class Evil:
        def __reduce__(self):
            return print, ("it ran",)

    (tmp_path / "b.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(ArtifactError, match=r"b.pt is not readable as a checkpoint"):
        FileKeeper(tmp_path / "b.pt", IDENTITY).load()
    torch.save({"version": 0}, tmp_path / "c.pt")
    with pytest.raises(ArtifactError, match=r"c.pt is no checkpoint of version 1"):
        FileKeeper(tmp_path / "c.pt", IDENTITY).load()
