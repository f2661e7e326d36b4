"""Parts as the jobs of a SLURM array, by submitit; where there is no SLURM, submitit runs them as processes here.

A job that fails, or is ended by the cluster, is sent again; a part goes on where it was.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.errors import InputError, load_extra

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
    """Run a function on every part as an array, and return what it returned, in the order of the parts.

    Args:
        function: an importable function of one part.
        parts: its arguments.
        logs: a folder that all machines see, for what submitit writes.
        options: for SLURM: "partition", "time" (minutes), "mem", ...; "cluster" is "slurm" or "local".
        progress: called with the number of parts that are done, and of all.
        retries: how often a job that failed is sent again.
    """
    submitit = load_extra("submitit", "cluster", "engine slurm needs")
    given = dict(options or {})
    try:
        executor = submitit.AutoExecutor(folder=logs / "%j", cluster=given.pop("cluster", None))
        executor.update_parameters(
            name="segcal", **{_named(executor, key): _number(value) for key, value in given.items()}
        )
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        raise InputError(
            f"--slurm is not understood ({str(error).splitlines()[0][:160]}), but options of sbatch are needed. "
            "Write KEY=VALUE, such as partition=gpu or time=60."
        ) from None
    found: dict[int, Any] = {}
    for _ in range(retries + 1):
        todo = [number for number in range(len(parts)) if number not in found]
        jobs = dict(zip(todo, executor.map_array(function, [parts[number] for number in todo]), strict=True))
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
        f"part {failed[0]} failed {retries + 1} times ({reason}), but all parts are needed. Look into {logs}, "
        "and run the command again: what is done is kept."
    )


def _named(executor: Any, key: str) -> str:
    return (
        key if executor.cluster == "local" or key.startswith(("slurm_", "timeout", "mem_", "cpus_")) else f"slurm_{key}"
    )


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
