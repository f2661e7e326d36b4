from segcal.benchmark.runner import Jobs

from segcal.benchmark.job import Job
from segcal.benchmark.tasks import EmbeddedTask


def test_jobs_are_known_by_what_decides_their_units():
    def jobs(*digests):
        task = EmbeddedTask(name="roads", embedded="roads", cases=3)
        return Jobs([Job(task, number, "single", {number: digest}) for number, digest in enumerate(digests)])

    first = jobs("a", "b")
    assert first.ids == ("roads, repeat 1, single", "roads, repeat 2, single")
    assert first.identity(first.ids[0]) != first.identity(first.ids[1])
    changed = jobs("a", "c")
    assert changed.identity(first.ids[0]) == first.identity(first.ids[0])
    assert changed.identity(first.ids[1]) != first.identity(first.ids[1])
