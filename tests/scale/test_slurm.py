"""Arrays of jobs, run by submitit as processes of this machine: it has the same interface for both."""

import json
import os
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
    with pytest.raises(InputError, match=r"^part 1 failed 2 times \(.*\), but all parts are needed. Look into"):
        run_array(itemgetter("a"), [{"a": 1}, {}], tmp_path / "logs", LOCAL, retries=1)


def test_options_that_slurm_does_not_know_are_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"^--slurm is not understood \(.*\), but options of sbatch are needed."):
        run_array(json.loads, ["1"], Path(tmp_path), {"cluster": "nowhere"})
