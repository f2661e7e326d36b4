"""Commands whose cases others work on: the bytes of one process, and a run that goes on."""

import pytest

from segcal.scale import part as parts

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that Dask brings


def test_dask_gives_the_bytes_of_one_process(folders, run, tmp_path, files_of):
    pytest.importorskip("distributed", reason="needs the extra cluster")
    command = ["fit", *folders.both, "--calibrator", "ts", "--voxels", "all", "--trust-on", "none"]
    one = run(*command, "-o", tmp_path / "one")
    dask = run(*command, "-o", tmp_path / "dask", "--engine", "dask", "--workers", 2)
    assert (one.code, dask.code) == (0, 0), dask
    assert files_of(tmp_path / "dask") == files_of(tmp_path / "one")
    assert not (tmp_path / "dask.parts").exists()


def test_a_scheduler_that_is_not_there_is_one_sentence(folders, run, tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs the extra cluster")
    monkeypatch.setattr("segcal.scale.dask_engine.SECONDS", 1)
    done = run("check", *folders.both, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:9")
    assert done.code == 2
    assert "error: scheduler tcp://127.0.0.1:9 does not answer" in done.err
    assert done.err.count("\n") == 1


def test_without_the_extra_the_engine_says_how_to_get_it(folders, run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    done = run("check", *folders.both, "--engine", "dask")
    assert done.code == 2
    assert (
        "distributed is not installed, but engine dask needs it. Install it with: pip install 'segcal[cluster]'."
        in done.err
    )


def test_an_interrupted_part_goes_on(folders, run, tmp_path, monkeypatch):
    call = ["check", *folders.both, "-o", tmp_path / "part", "--num-parts", 2, "--part-id", 0]
    keep = parts.Part._keep

    def interrupted(self, about, case_id, *rest):
        if case_id == "b1":
            raise KeyboardInterrupt
        return keep(self, about, case_id, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(parts.Part, "_keep", interrupted)
        assert run(*call).code == 130
    done = []
    monkeypatch.setattr(
        parts.Part, "_keep", lambda self, about, name, *rest: done.append(name) or keep(self, about, name, *rest)
    )
    assert run(*call).code == 0
    assert done == ["b1", "c1"]
