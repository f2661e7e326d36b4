"""Commands as arrays of jobs, and results that go to a URL."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of submitit and fsspec


def test_an_array_of_parts_gives_the_bytes_of_one_process(folders, run, tmp_path, files_of):
    pytest.importorskip("submitit", reason="needs the extra cluster")
    command = ["check", *folders.both]
    one = run(*command, "-o", tmp_path / "one")
    array = run(*command, "-o", tmp_path / "all", "--engine", "slurm", "--num-parts", 2, "--slurm", "cluster=local")
    assert (one.code, array.code) == (0, 0), array
    assert files_of(tmp_path / "all") == files_of(tmp_path / "one")
    assert not (tmp_path / "all.parts").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "slurm"], "--engine is slurm, but it needs --num-parts and -o, and no --part-id."),
        (
            ["--engine", "dask", "--num-parts", 2, "--part-id", 0, "-o", "part"],
            "--part-id is given with --engine dask, but one process does a part. Leave one of the two out; --workers "
            "helps with a part.",
        ),
        (["--slurm", "gpu"], "--slurm is 'gpu', but KEY=VALUE is needed. Write partition=gpu or time=60."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options, sentence, folders, run):
    done = run("check", *folders.both, *options)
    assert done.code == 2
    assert sentence in done.err


@pytest.mark.parametrize("options", [[], ["--slurm", "cluster=slurm"]])
def test_where_there_is_no_slurm_nothing_is_run_and_said_why(options, folders, run, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra cluster")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("check", *folders.both, "-o", tmp_path / "all", "--engine", "slurm", "--num-parts", 2, *options)
    assert done.code == 2
    assert (
        "error: --engine is slurm, but there is no SLURM here: sbatch is not found. Run it where jobs are sent from; or"
        " use --engine local, or --slurm cluster=local to have the jobs run as processes of this machine.\n"
    ) in done.err
    assert not (tmp_path / "all").exists()


def test_a_url_of_an_unknown_kind_is_one_sentence(folders, run):
    for words in ((folders.predictions, "sftp://host/labels"), (*folders.both[:2], "-o", "sftp://host/labels")):
        done = run("evaluate", *words, *folders.options)
        assert done.code == 2
        assert done.err == (
            "error: sftp://host/labels is a URL of an unknown kind, but one of s3, gs, gcs, http, https, file, memory, "
            "abfs, az is needed. Use one of these, or copy the folder to this machine.\n"
        )


def test_cases_and_results_at_urls_are_those_of_folders(folders, run, tmp_path, files_of):
    pytest.importorskip("fsspec", reason="needs the extra cloud")
    places = [f"file://{path}" for path in (folders.predictions, folders.labels)]
    one = run("evaluate", *folders.both, "-o", tmp_path / "one")
    there = run("evaluate", *places, *folders.options, "-o", f"file://{tmp_path / 'there'}")
    assert (one.code, there.code) == (0, 0), there
    assert files_of(tmp_path / "there") == files_of(tmp_path / "one")
    part = run("check", *places, *folders.options, "-o", f"file://{tmp_path}/p", "--num-parts", 1, "--part-id", 0)
    assert f"written to file://{tmp_path}/p: next comes segcal merge" in part.out
    again = run("evaluate", *places, *folders.options, "-o", f"file://{tmp_path / 'there'}")
    assert again.code == 2
    assert "holds results already, but nothing there is overwritten. Name a new place." in again.err
