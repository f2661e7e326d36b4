"""Shards as the jobs of a SLURM array, by submitit; it also runs them as processes here, if it is asked to.

A job that fails, or is ended by the cluster, is sent again; a shard goes on where it was.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.errors import InputError, load_extra

# What submitit calls alike for every kind of cluster; anything else is an option of sbatch.
SHARED = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout")
RETRIES = 2
SECONDS = 0.5


def run_array(
    function: Callable[[Any], Any],
    parts: Sequence[Any],
    logs: Path,
    options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    retries: int = RETRIES,
) -> list[Any]:
    """Run a function on every shard as an array, and return what it returned, in the order of the shards.

    Args:
        function: an importable function of one shard.
        parts: its arguments.
        logs: a folder that all machines see, for what submitit writes.
        options: for SLURM: "partition", "time" (minutes), "mem", ...; "cluster" is "slurm", or "local" for processes
            of this machine.
        progress: called with the number of shards that are done, and of all.
        retries: how often a job that failed is sent again.
    """
    submitit = load_extra("submitit", "cluster", "engine slurm needs")
    given = dict(options or {})
    cluster = given.pop("cluster", "slurm")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise InputError(
            "--engine is slurm, but there is no SLURM here: sbatch is not found. Run it where jobs are sent from; or "
            "use --engine local, or --slurm cluster=local to have the jobs run as processes of this machine."
        )
    try:
        executor = submitit.AutoExecutor(folder=logs / "%j", cluster=cluster)
        named = {key if key in SHARED else f"slurm_{key.removeprefix('slurm_')}": key for key in given}
        executor.update_parameters(name="segcal", **{name: _number(given[key]) for name, key in named.items()})
    except (RuntimeError, ValueError, NotImplementedError, TypeError, NameError, AssertionError) as error:
        raise InputError(
            f"--slurm is not understood ({str(error).splitlines()[0][:160]}), but options of sbatch are needed. "
            "Write KEY=VALUE, such as partition=gpu or time=60."
        ) from None
    found: dict[int, Any] = {}
    for _ in range(retries + 1):
        todo = [number for number in range(len(parts)) if number not in found]
        try:
            jobs = dict(zip(todo, executor.map_array(function, [parts[number] for number in todo]), strict=True))
        except submitit.core.utils.FailedJobError as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1][:160]
            raise InputError(
                f"sbatch does not take the jobs ({reason}), but they are to be sent to it. Check the options --slurm."
            ) from None
        while any(not job.done() for job in jobs.values()):
            progress(len(found) + sum(job.done() for job in jobs.values()), len(parts))
            time.sleep(SECONDS)
        failures = {number: job.exception() for number, job in jobs.items()}
        found |= {number: jobs[number].result() for number, failure in failures.items() if failure is None}
        failed = [number for number, failure in failures.items() if failure is not None]
        progress(len(found), len(parts))
        if not failed:
            return [found[number] for number in range(len(parts))]
    reason = str(failures[failed[0]]).strip().splitlines()[-1][:200]
    raise InputError(
        f"shard {failed[0]} failed {retries + 1} times ({reason}), but all shards are needed. Look into {logs}, "
        "and run the command again: what is done is kept."
    )


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
