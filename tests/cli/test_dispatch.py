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
        (["--slurm", "gpu"], "--slurm is 'gpu', but KEY=VALUE is needed. Write partition=gpu or time=60."),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options, sentence, folders, run):
    done = run("check", *folders.both, *options)
    assert done.code == 2
    assert sentence in done.err


def test_cases_and_results_at_urls_are_those_of_folders(folders, run, tmp_path, files_of):
    pytest.importorskip("fsspec", reason="needs the extra cloud")
    places = [f"file://{path}" for path in (folders.predictions, folders.labels)]
    one = run("evaluate", *folders.both, "-o", tmp_path / "one")
    there = run("evaluate", *places, *folders.options, "-o", f"file://{tmp_path / 'there'}")
    assert (one.code, there.code) == (0, 0), there
    assert files_of(tmp_path / "there") == files_of(tmp_path / "one")
    again = run("evaluate", *places, *folders.options, "-o", f"file://{tmp_path / 'there'}")
    assert again.code == 2
    assert "holds results already, but nothing there is overwritten. Name a new place." in again.err
