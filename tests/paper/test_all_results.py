"""All folders of the page in one command: the bytes of ``segcal benchmark``, each unit once, and it goes on in time."""

from concurrent.futures import Future
from functools import partial

import pytest
from msgspec.structs import replace

from paper import all_results as script
from paper import stamp
from segcal.benchmark.protocol import parse_protocol
from segcal.demo.embedded import open_embedded
from segcal.studies.run import run as run_protocol

SIZED = "studies/calibration_size/roads/n_2/units"


@pytest.fixture(scope="module")
def protocols(tmp_path_factory):
    """Return two protocols that share a pipeline; the first has the study that fits again."""
    opener = partial(open_embedded, cache=tmp_path_factory.mktemp("cache"))

    def protocol(names, studies):
        task = {"name": "roads", "embedded": "roads", "cases": 7, "members": 2, "split": {"cal": 3, "val": 1}}
        document = {
            "tasks": [task],
            "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in names],
            "fit": {"lam": 1e-3, "mu": 1e-3, "voxels": 300},
            "bootstrap": {"replicates": 20},
            "repeats": 2,
            "studies": studies,
            "study_options": {"sizes": [2]},
        }
        return replace(parse_protocol(document), embedded=opener)

    sized = ["flips", "calibration_size"]
    return {"roads": protocol(["identity", "ts", "dc"], sized), "more": protocol(["ts", "pts"], [])}


@pytest.fixture(scope="module")
def results(protocols, tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    assert script.run_all(protocols, folder, 2, 600.0) == []
    return folder


def files_of(folder, place="units"):
    return {path.relative_to(folder): path.read_bytes() for path in sorted((folder / place).rglob("*.jsonl"))}


def test_every_folder_has_the_bytes_of_a_benchmark(protocols, results, tmp_path):
    for name, protocol in protocols.items():
        run_protocol(protocol, tmp_path / name)
        assert len(files_of(tmp_path / name)) == 2 * len(protocol.pipelines)
        assert files_of(results / name) == files_of(tmp_path / name)
        for file in ("summary.json", "protocol.json"):
            assert (results / name / file).read_bytes() == (tmp_path / name / file).read_bytes()
    assert files_of(results / "roads", SIZED) == files_of(tmp_path / "roads", SIZED) != {}
    for file in ("studies/flips.json", "studies/calibration_size.json", "tables/figure5_size_roads.md"):
        assert (results / "roads" / file).read_bytes() == (tmp_path / "roads" / file).read_bytes()


def test_a_unit_of_two_protocols_is_computed_once(protocols, tmp_path):
    todo, groups = script.plan(protocols, tmp_path)
    planned = [(piece.folder, unit.path) for piece in todo for unit in piece.job.units]
    shared = [folder.name for folder, path in planned if path.name == "ts-mean_logits.jsonl"]
    assert sorted(shared) == ["n_2", "n_2", "roads", "roads"]
    assert len(planned) == len(set(planned)) == 2 * (3 + 1) + 2  # sizes have ts alone
    assert groups["more"].needs == {"roads"}
    assert [piece.rank for piece in todo] == sorted(piece.rank for piece in todo)


def test_it_goes_on_where_it_ended(protocols, results, tmp_path):
    assert set(script.run_all(protocols, tmp_path, 1, 0.0)) == {"roads", "more", "roads calibration_size"}
    assert not list(tmp_path.rglob("*.jsonl"))
    for path in files_of(results / "roads"):
        target = tmp_path / "roads" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((results / "roads" / path).read_bytes())
    todo, _ = script.plan(protocols, tmp_path)
    assert {piece.group for piece in todo} == {"more", "roads calibration_size"}
    # In time or not, what has all its repeats has a summary.
    assert "roads" in script.run_all({"roads": protocols["roads"]}, tmp_path, 1, 0.0)
    assert (tmp_path / "roads" / "summary.json").read_bytes() == (results / "roads" / "summary.json").read_bytes()
    assert (tmp_path / "roads" / "stamp.json").is_file()


def test_what_fails_is_named_and_the_rest_goes_on(protocols, tmp_path, capsys):
    schedule = script.Schedule(protocols, tmp_path)
    total = len(schedule.todo)
    broken = Future()
    broken.set_exception(ValueError("no such thing"))
    schedule.done(*schedule.next(), broken)
    assert "failed  roads, roads: roads, repeat 1, mean_logits: " in (said := capsys.readouterr().out)
    assert said.endswith("ValueError: no such thing\n")
    fine = Future()
    fine.set_result(1.0)
    following = []
    while (each := schedule.next()) is not None:
        following.append(each)
        schedule.done(*each, fine)
    assert len(following) == total - 1  # and no end of a folder that lacks a unit
    assert not schedule.ended


def test_a_stamp_is_of_the_source_files(monkeypatch, tmp_path):
    (tmp_path / "one.py").write_text("a = 1\n")
    first = stamp.code_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("not code")
    assert stamp.code_digest(tmp_path) == first
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    second = stamp.code_digest(tmp_path)
    (tmp_path / "two.py").write_text("a = 2\n")
    assert len({first, second, stamp.code_digest(tmp_path)}) == 3
    for name in ("new", "newer", "old"):
        (tmp_path / name).mkdir()
    for name in ("new", "newer"):
        stamp.write_stamp(tmp_path / name)
    words = f"segcal {stamp.__version__}, code {(own := stamp.code_digest())}"
    assert stamp.read_stamps(tmp_path, ["new", "newer"]) == words
    assert stamp.read_stamps(tmp_path, ["new", "old"]) == (f"new: {words}; old: a segcal that left no stamp")
    monkeypatch.setattr(stamp, "code_digest", lambda: "0123456789")
    for _ in range(2):
        stamp.write_stamp(tmp_path / "newer")
    assert stamp.read_stamps(tmp_path, ["newer"]) == f"segcal {stamp.__version__}, code {own}, 0123456789"
