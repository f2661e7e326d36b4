"""Arrays of jobs, run by submitit as processes of this machine: it has the same interface for both."""

import json
import os
import warnings
from operator import itemgetter
from pathlib import Path

import pytest

from segcal.errors import InputError
from segcal.scale.slurm import run_array

pytest.importorskip("submitit", reason="needs the extra cluster")
pytestmark = pytest.mark.filterwarnings("ignore")  # of submitit

LOCAL = {"cluster": "local"}


def test_every_part_is_run_and_results_come_in_their_order(tmp_path):
    seen = []
    done = run_array(json.loads, ["[1]", "2"], tmp_path, LOCAL, lambda *how_far: seen.append(how_far))
    assert done == [[1], 2]
    assert seen[-1] == (2, 2)


def test_a_job_that_fails_is_sent_again_and_in_the_end_named(tmp_path):
    flag = tmp_path / "was here"
    assert run_array(os.mkdir, [flag], tmp_path / "logs", LOCAL) == [None]
    with pytest.raises(InputError, match=r"^shard 1 failed 2 times \(.*\), but all shards are needed. Look into"):
        run_array(itemgetter("a"), [{"a": 1}, {}], tmp_path / "logs", LOCAL, retries=1)


def test_options_that_slurm_does_not_know_are_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"^--slurm is not understood \(.*\), but options of sbatch are needed."):
        run_array(json.loads, ["1"], Path(tmp_path), {"cluster": "nowhere"})
    with pytest.raises(InputError, match=r"^--slurm is not understood \(Unknown argument 'nonsense' for executor"):
        run_array(json.loads, ["1"], Path(tmp_path), {**LOCAL, "nonsense": "1"})


def test_options_reach_sbatch_under_the_names_that_submitit_has_for_them(tmp_path, monkeypatch):
    """A program named sbatch takes the script, and nothing is warned of."""
    script = tmp_path / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ncat "$1" > {tmp_path}/sent\necho invalid partition >&2\nexit 1\n', encoding="utf-8")
    for name in ("sbatch", "srun"):
        (script.parent / name).write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
        (script.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    options = {"partition": "cpu", "time": "120", "slurm_account": "me", "cpus_per_task": "2"}
    refused = r"^sbatch does not take the jobs \(invalid partition\), but they are to be sent to it\. Check the options"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(InputError, match=refused):
            run_array(json.loads, ["1"], tmp_path / "logs", options)
    sent = (tmp_path / "sent").read_text(encoding="utf-8")
    for line in ("--partition=cpu", "--time=120", "--account=me", "--cpus-per-task=2"):
        assert f"#SBATCH {line}\n" in sent
    assert not [each for each in seen if "deprecated" in str(each.message)]
