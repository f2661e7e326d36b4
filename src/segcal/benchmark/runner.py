"""The jobs of a protocol as an engine sees cases: by name, each with a digest of what decides its results."""

from collections.abc import Sequence
from pathlib import Path

from segcal.benchmark.job import Job, run_job
from segcal.benchmark.protocol import Protocol, digest


class Jobs:
    """The jobs of a protocol by name, each known by the digests of its units, as an engine sees cases."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._digests = {job.name: digest(sorted(job.units.values())) for job in jobs}
        self.ids = tuple(self._digests)

    def identity(self, name: str) -> str:
        """Return the digest of what decides the results of a job."""
        return self._digests[name]


class JobRunner:
    """Runs jobs by name and returns their files; picklable, for an engine."""

    def __init__(self, jobs: Sequence[Job], protocol: Protocol, folder: Path) -> None:
        self.jobs = {job.name: job for job in jobs}
        self._protocol, self._folder = protocol, folder

    def __call__(self, name: str) -> tuple[Path, ...]:
        """Run one job."""
        job = self.jobs[name]
        run_job(job, self._protocol, self._folder)
        return tuple(path for path in self.places(name) if path.exists())

    def places(self, name: str) -> list[Path]:
        """Return where the results of a job go."""
        units = self.jobs[name].units
        return [self._folder / path for path in dict.fromkeys(p for u in units for p in (u.path, u.calibrator_path))]
