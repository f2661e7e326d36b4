"""Running a protocol: the same bytes whatever happens on the way."""

import json
import shutil
import subprocess
import sys
import time

import nibabel
import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from segcal import Calibrator, load
from segcal.atomic import MARKER, SIGNATURE
from segcal.benchmark import job as jobs
from segcal.benchmark import run as running
from segcal.benchmark.job import Job, plan, unit_digest
from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.run import JobRunner, check_folder, exclude_broken, read_checked, run_benchmark
from segcal.benchmark.tasks import EmbeddedTask
from segcal.errors import InputError
from segcal.fitting.fit import fit_to

PIPELINES = [
    {"pooling": "single", "calibrator": "identity"},
    {"pooling": "mean_logits", "calibrator": "identity"},
    {"pooling": "mean_logits", "calibrator": "ts"},
    {"pooling": "mean_logits", "calibrator": "ms"},
    {"pooling": "mean_probs", "calibrator": "ts"},
]


DOCUMENT = {
    "pipelines": PIPELINES,
    "repeats": 2,
    "split": {"cal": 4, "val": 2},
    "fit": {"lam": 1e-3, "mu": 1e-3},
    "metrics": ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "free_energy_std"],
    "bootstrap": {"replicates": 50},
}


def protocol(data, **changes):
    root, blobs, _ = data
    return parse_protocol(DOCUMENT | {"tasks": [blobs]} | changes, root)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Return the results of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    return run_benchmark(protocol(data), folder), folder


def test_every_unit_has_a_file_and_a_calibrator_and_every_test_case_a_row(whole):
    results, folder = whole
    fitted = load(folder / "calibrators" / "blobs" / "repeat_0" / "ms-mean_logits")
    header = results.repeats("blobs", "ms(mean_logits)")[0].header
    assert sorted(fitted.calibration_ids) == list(header.cal)
    assert fitted.certificate.objective == header.certificate["objective"]
    assert len(results.units) == 2 * len(PIPELINES)
    for result in results.units:
        assert tuple(row.case for row in result.rows) == result.header.test
        assert result.total.tables.likelihood.voxels == sum(row.voxels for row in result.rows)
    assert not [path for path in folder.rglob("*") if path.suffix == ".part"]
    tested = set()
    for repeat in range(2):  # one division for all pipelines, by patient, and another one in another repeat
        headers = [each.header for each in results.units if each.unit.repeat == repeat]
        ((cal, val, test),) = {(header.cal, header.val, header.test) for header in headers}
        assert (len(cal), len(val), len(test)) == (4, 2, 6)
        patients = [{case_id.split("_")[0] for case_id in part} for part in (cal, val, test)]
        assert sum(map(len, patients)) == len(set.union(*patients))
        tested.add(test)
    assert len(tested) == 2


def test_a_second_run_does_nothing(whole, data, monkeypatch):
    _, folder = whole
    before = contents(folder)
    monkeypatch.setattr("segcal.benchmark.run.run_job", lambda *_: pytest.fail("it is finished"))
    steps = []
    run_benchmark(protocol(data), folder, progress=steps.append)
    assert contents(folder) == before
    assert (steps[0].done, steps[0].total) == (10, 10)


def test_broken_off_in_the_middle_it_resumes_in_two_processes_to_the_same_bytes(whole, data, tmp_path, monkeypatch):
    written = []
    original = jobs.write_unit

    def failing(*args):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(original(*args))

    monkeypatch.setattr(jobs, "write_unit", failing)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(protocol(data), tmp_path)
    assert len(list(tmp_path.rglob("*.jsonl"))) == 4
    written[0].write_bytes(b"".join(written[0].read_bytes().splitlines(keepends=True)[:-1]))  # cut short
    monkeypatch.setattr(jobs, "write_unit", original)
    run_benchmark(protocol(data, workers=2), tmp_path)
    assert contents(tmp_path) == contents(whole[1])


def test_what_a_killed_run_had_begun_to_write_is_removed_and_nothing_else(whole, data, tmp_path):
    place = tmp_path / "results"
    shutil.copytree(whole[1], place)
    for part in ("", "units/blobs/repeat_0", "calibrators/blobs", "calibrators/blobs/repeat_0"):
        begun = place / part / ".segcal-0123456789abcdef"
        begun.mkdir()
        (begun / MARKER).write_bytes(SIGNATURE)
        (begun / "half").write_text("{", encoding="utf-8")
    mine = [".git/config", ".cache/x", ".notes.part", "calibrators/.git/config", "calibrators/blobs/repeat_0/.x/y"]
    mine += ["units/blobs/.a.part", "units/.segcal-0123456789abcdee/x"]
    for name in mine:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("precious")
    run_benchmark(protocol(data), place)
    for name in mine:
        assert (place / name).read_text() == "precious"
        (place / name).unlink()
    assert contents(place) == contents(whole[1])


@pytest.mark.parametrize("name", ["protocol.json", "report.html", "units", "tables"])
def test_files_of_something_else_are_not_overwritten(name, data, tmp_path):
    (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("{}")
    match = rf"holds {name}, but no protocol\.json that says that it is of a benchmark\. Name a new folder, or"
    with pytest.raises(InputError, match=match):
        run_benchmark(protocol(data), tmp_path)
    check_folder(tmp_path, overwrite=True)


@pytest.mark.parametrize("part", ["", "units", "tables"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(part, overwrite, tmp_path):
    place = tmp_path / "file" if not part else tmp_path
    (place / part).touch()
    with pytest.raises(InputError, match=r"cannot be written to, but results go there\. Name another folder"):
        check_folder(place, overwrite)


WORKING = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from segcal.benchmark import run

def wait(job, protocol, place):
    (place / str(os.getpid())).touch()
    time.sleep(1000)

if __name__ == "__main__":
    run.run_job = wait
    run._run([1, 2], SimpleNamespace(workers=2), Path(sys.argv[1]), run.Step(0, 2, ""), print)
"""


def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "run.py").write_text(WORKING, encoding="utf-8")
    (tmp_path / "pids").mkdir()
    process = subprocess.Popen([sys.executable, "run.py", str(tmp_path / "pids")], cwd=tmp_path)
    deadline = time.monotonic() + 200
    while len(list((tmp_path / "pids").iterdir())) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [psutil.Process(int(path.name)) for path in (tmp_path / "pids").iterdir()]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for each in alive:
        each.kill()
    assert len(workers) == 2
    assert not alive


def test_a_new_pipeline_leaves_finished_units_alone(whole, data, tmp_path):
    few = protocol(data, pipelines=PIPELINES[1:3])
    run_benchmark(few, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    results = run_benchmark(protocol(data, pipelines=PIPELINES[1:4]), tmp_path)
    assert len(results.units) == 6
    assert all(path.stat().st_mtime_ns == then for path, then in times.items())


def test_another_seed_or_other_files_make_a_unit_new(whole, data):
    one = protocol(data)
    prints = {("blobs", pipeline.pooling): "x" for pipeline in one.pipelines}
    unit, digest = next(iter(plan(one, {"blobs": one.pipelines}, prints)[0].units.items()))
    assert digest == unit_digest(unit, replace(one, workers=5, pipelines=one.pipelines[:1]), prints)
    assert digest != unit_digest(unit, replace(one, seed=1), prints)
    assert digest != unit_digest(unit, one, dict.fromkeys(prints, "y"))


def test_a_task_is_tested_on_another_and_on_a_changed_copy_of_itself(data, tmp_path):
    _, blobs, others = data
    copy = {**blobs, "name": "copy", "test_only": True}
    tasks = [{**blobs, "test_on": ["others", "copy"]}, {**others, "test_only": True}, copy]
    results = run_benchmark(protocol(data, tasks=tasks, pipelines=PIPELINES[2:3], repeats=1), tmp_path)
    own, copied, other = (results.repeats("blobs", "ts(mean_logits)", on)[0] for on in ("", "copy", "others"))
    assert copied.header.test == own.header.test
    assert copied.numbers("nll") == own.numbers("nll")
    seen = {*own.header.cal, *own.header.val}
    assert set(other.header.test) == {f"p{i}_v{j}" for i in range(3) for j in range(2)} - seen
    assert other.numbers("nll") != own.numbers("nll")[: len(other.rows)]


def test_the_papers_list_leaves_out_what_probabilities_cannot_have(data, tmp_path):
    root, blobs, _ = data
    folder = tmp_path / "probs"
    for member in range(2):
        (folder / f"member_{member}").mkdir(parents=True)
        for path in sorted((root / "blobs" / f"member_{member}").iterdir()):
            z = np.exp(np.load(path))
            np.save(folder / f"member_{member}" / path.name, z / z.sum(0))
    task = {**blobs, "name": "probs", "kind": "probs", "labels": str(root / "blobs" / "labels")}
    task["members"] = [f"probs/member_{member}" for member in range(2)]
    document = {"tasks": [task], "split": {"cal": 4, "val": 2}, "repeats": 1, "fit": {"lam": 1e-3, "mu": 1e-3}}

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_benchmark(parse_protocol(document, tmp_path), tmp_path / "out", progress=stop)
    notes = json.loads((tmp_path / "out" / "protocol.json").read_text("utf-8"))["notes"]
    assert "left out for probs, whose predictions have no offset: ms(mean_logits)" in notes[-1]
    named = parse_protocol(document | {"pipelines": [PIPELINES[3]]}, tmp_path)
    with pytest.raises(InputError, match="depends on the offset of the logits"):
        run_benchmark(named, tmp_path / "out")


def test_other_class_counts_are_refused_before_anything_is_computed(data, tmp_path):
    _, blobs, _ = data
    folder = tmp_path / "two"
    (folder / "m").mkdir(parents=True)
    (folder / "labels").mkdir()
    for number in range(8):
        np.save(folder / "m" / f"{number}.npy", np.zeros((2, 5, 4), np.float32))
        np.save(folder / "labels" / f"{number}.npy", np.zeros((5, 4), np.uint8))
    two = {"name": "two", "members": [str(folder / "m")], "labels": str(folder / "labels"), "kind": "logits"}
    tasks = [{**blobs, "test_on": ["two"]}, {**two, "test_only": True}]
    with pytest.raises(InputError, match="task 'blobs' has 3 classes, but 'two' in its test_on has 2"):
        run_benchmark(protocol(data, tasks=tasks, pipelines=PIPELINES[2:3]), tmp_path / "out")


def test_fits_are_made_on_the_device_that_was_asked_for(data, tmp_path, monkeypatch):
    asked = []

    def recorded(calibrator, voxels, config, device=None):
        asked.append(device)
        return fit_to(calibrator, voxels, config)

    monkeypatch.setattr("segcal.benchmark.job.fit_to", recorded)
    monkeypatch.setattr(Calibrator, "to", lambda self, device: self)  # where they are measured
    run_benchmark(replace(protocol(data, pipelines=PIPELINES[2:3], repeats=1), device="cuda"), tmp_path)
    assert asked == ["cuda"]
    with pytest.raises(InputError, match="is an embedded one, but this run was given no embedded tasks"):
        run_benchmark(protocol(data, tasks=[{"name": "x", "embedded": "roads"}]), tmp_path)


@pytest.fixture
def broken(data, tmp_path):
    """Return a copy of the task with one case of which the second member is not a number."""
    root, blobs, _ = data
    shutil.copytree(root / "blobs", tmp_path / "blobs")
    path = tmp_path / "blobs" / "member_1" / "p3_v1.npy"
    whole = np.load(path)
    np.save(path, np.full_like(whole, np.nan))
    return tmp_path, blobs, path, whole


def document(task):
    tasks = [task, {"name": "drawn", "embedded": "roads"}]
    return DOCUMENT | {"tasks": tasks, "pipelines": PIPELINES[:3:2], "repeats": 1, "metrics": ["nll", "ece", "ace"]}


def test_a_broken_case_is_left_out_for_all_pipelines_and_named(broken, tmp_path):
    root, task, path, _ = broken
    failures = []
    protocol = exclude_broken(parse_protocol(document(task), root), tmp_path / "out", failures.append)
    assert [failure.case_id for failure in failures] == ["blobs/p3_v1"]
    assert str(path) in failures[0].reason
    assert [each.exclude for each in protocol.tasks] == [("p3_v1",), ()]
    alone = parse_protocol(document(task) | {"tasks": [task]}, root)
    results = run_benchmark(exclude_broken(alone, tmp_path / "out", failures.append), tmp_path / "out")
    for unit in results.units:
        used = [*unit.header.cal, *unit.header.val, *unit.header.test]
        assert len(used) == 11
        assert "p3_v1" not in used


def test_what_was_read_well_is_not_read_again_and_a_repaired_case_comes_back(broken, tmp_path, monkeypatch):
    root, task, path, whole = broken
    protocol = parse_protocol(document(task), root)
    steps = []
    exclude_broken(protocol, tmp_path / "out", lambda failure: None, steps.append)
    assert steps[-1].total == 12
    read = []
    original = running.map_cases
    monkeypatch.setattr(running, "map_cases", lambda cases, *rest: [read.append(cases.ids), *original(cases, *rest)])
    failures = []
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ("p3_v1",)
    assert len(failures) == 1
    np.save(path, whole)
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ()
    assert exclude_broken(protocol, tmp_path / "out", failures.append).tasks[0].exclude == ()
    assert read == [("p3_v1",), ("p3_v1",), ()]
    assert len(failures) == 1
    np.save(path, whole[:, :-1])  # other files are all read again
    exclude_broken(protocol, tmp_path / "out", failures.append)
    assert "Members of one ensemble must agree" in failures[1].reason
    (tmp_path / "out" / "checked.json").write_text("[")
    exclude_broken(protocol, tmp_path / "out", failures.append)
    assert json.loads((tmp_path / "out" / "checked.json").read_text())["blobs"]["broken"].keys() == {"p3_v1"}
    for each in (root / "blobs" / "member_1").iterdir():
        np.save(each, np.full((3, 13, 11), np.nan, np.float32))
    with pytest.raises(InputError, match="task 'blobs' has 12 cases and none can be used, but some are needed"):
        exclude_broken(protocol, tmp_path / "out", failures.append)


@pytest.mark.parametrize("content", ["[1]", '{"t": [1]}', '{"t": {"fingerprint": "x"}}', "[" * 100_000])
def test_a_record_that_holds_something_else_counts_as_none(content, tmp_path):
    (tmp_path / "checked.json").write_text(content)
    assert read_checked(tmp_path / "checked.json") == {}


def test_jobs_are_known_by_what_decides_their_units(tmp_path):
    def runner(*digests):
        task = EmbeddedTask(name="roads", embedded="roads", cases=3)
        return JobRunner([Job(task, n, "single", {n: digest}) for n, digest in enumerate(digests)], [], None, tmp_path)

    first, changed = runner("a", "b"), runner("a", "c")
    assert first.ids == ("roads, repeat 1, single", "roads, repeat 2, single")
    assert first.identity(first.ids[0]) != first.identity(first.ids[1])
    assert changed.identity(first.ids[0]) == first.identity(first.ids[0])
    assert changed.identity(first.ids[1]) != first.identity(first.ids[1])


def test_a_broken_case_is_told_which_key_of_the_protocol_mends_it(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "labels").mkdir()
    np.save(tmp_path / "m" / "a.npy", np.zeros((3, 4, 3, 2), np.float32))
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.uint8), np.eye(4)), tmp_path / "labels" / "a.nii.gz")
    task = {"name": "turned", "members": ["m"], "labels": "labels", "kind": "logits"}
    plan = parse_protocol(DOCUMENT | {"tasks": [task]}, tmp_path)
    with pytest.raises(InputError, match=r"Pass label_axes = 'zyx' if the label map and the scores are of one case"):
        exclude_broken(plan, tmp_path / "out", lambda failure: None)


def test_progress_says_what_is_finished(data, tmp_path):
    steps = []
    run_benchmark(protocol(data, pipelines=PIPELINES[2:3], repeats=1), tmp_path / "out", steps.append)
    assert steps[-1] == (1, 1, "units finished")
