"""Commands in parts, by other engines, and with results for a URL: the bytes that one process writes."""

import json
import sys

import numpy as np
import pytest

from segcal.cli.dispatch import naming
from segcal.errors import InputError
from segcal.scale.part import FACTS, FOLDER

# What a user types besides the folder of results.
COMMANDS = {
    "evaluate": lambda f, cal: ["evaluate", *f.both, "--calibrator", cal],
    "check": lambda f, cal: ["check", *f.both],
    "audit": lambda f, cal: ["audit", cal, f.predictions, *f.options],
    "apply": lambda f, cal: ["apply", cal, f.predictions, *f.options, "--confidence-map"],
    "decide": lambda f, cal: ["decide", cal, f.predictions, *f.options, "--rule", "recall=0.6"],
    "trust": lambda f, cal: ["trust", cal, f.predictions, *f.options, "--level", "0.6", "--masks"],
    "fit": lambda f, cal: ["fit", *f.both, "--test-share", "0.2", "--trust-on", "none"],
}


@pytest.fixture
def learned(folders, fit_once):
    """A calibrator with reference cases, for trust."""
    return fit_once(folders)[0]


@pytest.fixture
def parts(run, tmp_path):
    """Make the parts of a command; return their folders, the last one first."""

    def make(command, of, code=0):
        made = [tmp_path / f"{command[0]}-{number}-of-{of}" for number in reversed(range(of))]
        for number, place in zip(reversed(range(of)), made, strict=True):
            done = run(*command, "-o", place, "--num-parts", of, "--part-id", number)
            assert done.code == code, done
        return made

    return make


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_parts_give_the_bytes_of_one_process(command, folders, run, tmp_path, parts, learned, files_of):
    call = COMMANDS[command](folders, learned)
    one = run(*call, "-o", tmp_path / "one")
    assert one.code == 0, one
    expected = files_of(tmp_path / "one")
    assert expected
    for of in (1, 5):
        merged = run("merge", *parts(call, of), "-o", tmp_path / f"merged-{of}", "--", *call)
        assert merged.code == 0, merged
        assert files_of(tmp_path / f"merged-{of}") == expected


def test_parts_of_regions_give_the_bytes_of_one_process(run, parts, files_of, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for number in range(4):
        depth = rng.normal(size=(16, 18)).cumsum(0).cumsum(1) / 4
        cuts = np.array([0.0, 1.0, 2.0])[:, None, None]
        truth = (depth[None] + rng.logistic(size=(1, 16, 18)) > cuts).sum(0)
        np.save(tmp_path / "predictions" / f"c{number}.npy", (2.5 * (depth[None] - cuts)).astype(np.float32))
        np.save(tmp_path / "labels" / f"c{number}.npy", truth.astype(np.int16))
    declared = ["--kind", "logits", "--regions", "whole=1+2+3,core=2+3,enh=3"]
    both = [tmp_path / "predictions", tmp_path / "labels", *declared]
    fit = ["fit", *both, "--calibrator", "ts", "--trust-on", "none"]
    measure = ["evaluate", *both, "--calibrator", tmp_path / "fit", "--metrics", "nll,ece,ece_equal_mass"]
    for call, names in ((fit, ["weights.safetensors"]), (measure, ["evaluate.json", "cases.csv", "summary.json"])):
        one, merged = tmp_path / call[0], tmp_path / f"{call[0]}-merged"
        assert run(*call, "-o", one).code == 0
        assert run("merge", *parts(call, 2), "-o", merged, "--", *call).code == 0
        assert [files_of(merged)[name] for name in names] == [files_of(one)[name] for name in names]


def test_a_part_says_what_it_is_and_what_comes_next(folders, run, tmp_path, learned):
    call = [*COMMANDS["audit"](folders, learned), "-o", tmp_path / "part", "--num-parts", 4, "--part-id", 3]
    expected = {"part": 3, "of": 4, "cases": 1, "output": str(tmp_path / "part"), "failed": {}}
    assert run(*call, "--json").document == expected
    assert "shard 3 of 4, 1 case, written to" in run(*call).out
    facts = json.loads((tmp_path / "part" / FOLDER / FACTS).read_text())
    assert (facts["part"], facts["of"], facts["cases"], facts["finished"]) == (3, 4, 6, True)


def test_a_case_that_failed_in_its_part_is_listed_by_merge(folders, run, tmp_path, parts, learned):
    (folders.predictions / "b1.npy").write_bytes(b"nothing")
    call = COMMANDS["evaluate"](folders, learned)
    merged = run("merge", *parts(call, 1, code=3), "-o", tmp_path / "merged", "--json", "--", *call)
    assert merged.code == 3
    assert list(merged.document["failed"]) == ["b1"]
    assert list(json.loads((tmp_path / "merged" / "evaluate.json").read_text())["failed"]) == ["b1"]


def test_what_is_not_the_parts_of_one_run_is_refused_by_name(folders, run, tmp_path, parts, learned):
    call = COMMANDS["audit"](folders, learned)
    first, second = parts(call, 2)
    (other,) = parts(COMMANDS["evaluate"](folders, learned), 1)
    for given, said in {
        (first,): "error: of 2 shards 1 is missing (0), but all are needed. Run them, and name their folders.\n",
        (first, second, first): f"{first} and {first} are both shard 1, but each is needed once.",
        (first, other): f"{other} is of another run than {first}: it has another number of shards (1, not 2)",
        (first, folders.labels): f"{folders.labels} is not a shard of a run, but one is needed.",
    }.items():
        refused = run("merge", *given, "-o", tmp_path / "out", "--", *call)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert said in refused.err
    inside = run("merge", first, second, "-o", first / "x", "--", *call)
    assert "is one of the shards, but the result needs a folder of its own" in inside.err
    assert not (tmp_path / "out").exists()


def test_parts_of_other_options_and_versions_are_refused(folders, run, tmp_path, parts, learned):
    call = COMMANDS["evaluate"](folders, learned)
    first, other = parts(call, 2)[1], tmp_path / "other"
    run(*call, "-o", other, "--num-parts", 2, "--part-id", 1, "--seed", 7)
    end = [other, "-o", tmp_path / "out", "--", *call]
    assert f"{other} is of another run than {first}: it has another seed (7, not 0)" in run("merge", first, *end).err
    path = first / FOLDER / FACTS
    path.write_text(path.read_text().replace('"segcal": "', '"segcal": "0.0.0+'))
    old = run("merge", first, *end)
    assert f"error: {first} was made by segcal 0.0.0+" in old.err
    assert "Use the version that made the shards, or run them again." in old.err


def test_a_part_that_did_not_finish_is_damaged_or_stale_is_refused(folders, run, tmp_path, parts, learned):
    call = COMMANDS["evaluate"](folders, learned)
    first, second = parts(call, 2)
    end = [first, second, "-o", tmp_path / "out", "--", *call]
    path = first / FOLDER / FACTS
    path.write_text(path.read_text().replace('"finished": true', '"finished": false'))
    said = f"{first} did not finish, but whole shards are needed. Run the command of shard 1 of 2 again."
    assert said in run("merge", *end).err
    path.write_text(path.read_text().replace('"finished": false', '"finished": true'))
    block = next((first / FOLDER).glob("*.results"))
    content = block.read_bytes()
    block.write_bytes(content[:-3])
    assert f"{block} is damaged (its results are cut off), but results of a shard are" in run("merge", *end).err
    block.write_bytes(content)
    scores = np.load(folders.predictions / "b2.npy")
    np.save(folders.predictions / "b2.npy", scores + 1)
    assert "is stale: case 'b2' has changed since" in run("merge", *end).err
    np.save(folders.predictions / "d1.npy", scores)
    said = "is stale: it is a shard of 6 cases, but there are 7 cases now. Run the shards again."
    assert said in run("merge", *end).err


NO_DASK = (
    "--part-id is given with --engine dask, but one process does a shard. Leave one of the two out; --workers helps "
    "with a shard."
)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--num-parts", 2], "--num-parts is given without --part-id, but a shard needs both."),
        (["--part-id", 0], "--part-id is given without --num-parts, but a shard needs both."),
        (["--num-parts", 2, "--part-id", 2], "part_id is 2 and num_parts 2, but shards are numbered from 0"),
        (["--engine", "slurm"], "--engine is slurm, but it needs --num-parts and -o, and no --part-id."),
        (["--engine", "dask", "--num-parts", 2, "--part-id", 0], NO_DASK),
        (["--slurm", "gpu"], "--slurm is 'gpu', but KEY=VALUE is needed. Write partition=gpu or time=60."),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(options, sentence, folders, run, tmp_path):
    refused = run("check", *folders.both, "-o", tmp_path / "part", *options)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert sentence in refused.err
    assert not (tmp_path / "part").exists()


def test_a_part_needs_a_folder_of_its_own(folders, run, tmp_path):
    part = ["--num-parts", 2, "--part-id", 0]
    without = run("check", *folders.both, *part)
    assert "--part-id is given without -o, but a shard is a folder." in without.err
    with_csv = run("evaluate", *folders.both, "-o", tmp_path / "p", *part, "--csv", "x.csv")
    assert "--csv is given with --part-id, but a shard has no such file." in with_csv.err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    taken = run("check", *folders.both, "-o", tmp_path / "mine", *part)
    assert f"{tmp_path / 'mine'} holds notes, but a shard needs a folder of its own." in taken.err
    run("check", *folders.both, "-o", tmp_path / "part", *part)
    mixed = run("check", *folders.both, "-o", tmp_path / "part", "--num-parts", 3, "--part-id", 0)
    assert "holds shard 0 of 2 with another number of shards (2, not 3), but results would be mixed." in mixed.err


@pytest.mark.filterwarnings("ignore")  # of submitit, fsspec, and libraries that Dask brings
class TestElsewhere:
    def test_dask_gives_the_bytes_of_one_process(self, folders, run, tmp_path, files_of):
        pytest.importorskip("distributed", reason="needs the extra cluster")
        command = ["fit", *folders.both, "--calibrator", "ts", "--voxels", "all", "--trust-on", "none"]
        one = run(*command, "-o", tmp_path / "one")
        dask = run(*command, "-o", tmp_path / "dask", "--engine", "dask", "--workers", 2)
        assert (one.code, dask.code) == (0, 0), dask
        assert files_of(tmp_path / "dask") == files_of(tmp_path / "one")
        assert not (tmp_path / "dask.parts").exists()

    def test_a_scheduler_that_is_not_there_is_one_sentence(self, folders, run, monkeypatch):
        pytest.importorskip("distributed", reason="needs the extra cluster")
        monkeypatch.setattr("segcal.scale.dask_engine.SECONDS", 1)
        done = run("check", *folders.both, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:9")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "error: scheduler tcp://127.0.0.1:9 does not answer" in done.err

    def test_without_the_extra_the_engine_says_how_to_get_it(self, folders, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        done = run("check", *folders.both, "--engine", "dask")
        assert done.code == 2
        said = "distributed is not installed, but engine dask needs it. Install it with: pip install 'segcal[cluster]'."
        assert said in done.err

    def test_an_array_of_parts_gives_the_bytes_of_one_process(self, folders, run, tmp_path, files_of):
        pytest.importorskip("submitit", reason="needs the extra cluster")
        command = ["check", *folders.both]
        one = run(*command, "-o", tmp_path / "one")
        array = run(*command, "-o", tmp_path / "all", "--engine", "slurm", "--num-parts", 2, "--slurm", "cluster=local")
        assert (one.code, array.code) == (0, 0), array
        assert files_of(tmp_path / "all") == files_of(tmp_path / "one")
        assert not (tmp_path / "all.parts").exists()
        (tmp_path / "new.parts").mkdir()
        (tmp_path / "new.parts" / "notes").touch()
        foreign = run(*command, "-o", tmp_path / "new", "--engine", "slurm", "--num-parts", 2)
        assert "new.parts holds notes, but the shards need a folder of their own. Move it away." in foreign.err

    @pytest.mark.parametrize("options", [[], ["--slurm", "cluster=slurm"]])
    def test_where_there_is_no_slurm_nothing_is_run_and_said_why(self, options, folders, run, tmp_path, monkeypatch):
        pytest.importorskip("submitit", reason="needs the extra cluster")
        monkeypatch.setenv("PATH", str(tmp_path))
        done = run("check", *folders.both, "-o", tmp_path / "all", "--engine", "slurm", "--num-parts", 2, *options)
        assert done.code == 2
        assert (
            "error: --engine is slurm, but there is no SLURM here: sbatch is not found. Run it where jobs are sent "
            "from; or use --engine local, or --slurm cluster=local to have the jobs run as processes of this machine.\n"
        ) in done.err
        assert not (tmp_path / "all").exists()

    def test_cases_and_results_at_urls_are_those_of_folders(self, folders, run, tmp_path, files_of):
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
        assert "holds results already, but nothing there is overwritten. Name a new target." in again.err


def test_a_url_of_an_unknown_kind_is_one_sentence(folders, run):
    for words in ((folders.predictions, "sftp://host/labels"), (*folders.both[:2], "-o", "sftp://host/labels")):
        done = run("evaluate", *words, *folders.options)
        assert done.code == 2
        assert done.err == (
            "error: sftp://host/labels is a URL of an unknown kind, but one of s3, gs, gcs, http, https, file, memory, "
            "abfs, az is needed. Use one of these, or copy the folder to this machine.\n"
        )


def test_what_is_printed_or_raised_names_the_url(capsys):
    with naming("/tmp/a/results", "s3://b/c"):
        print("written to /tmp/a/results/x.json and /tmp/a/results")
        print("/tmp/a/results is odd", file=sys.stderr)
    print("/tmp/a/results")
    assert capsys.readouterr() == ("written to s3://b/c/x.json and s3://b/c\n/tmp/a/results\n", "s3://b/c is odd\n")
    for text, said in {
        "/tmp/a/x holds y.": r"^s3://b/c/x holds y\.$",
        "labels are odd.": r"^labels are odd\.$",
    }.items():
        with pytest.raises(InputError, match=said), naming("/tmp/a", "s3://b/c"):
            raise InputError(text)
    with pytest.raises(KeyError), naming("/tmp/a", "s3://b/c"):
        raise KeyError


@pytest.mark.parametrize("command", ["apply", "decide"])
def test_a_part_without_a_result_or_without_a_file_does_the_case_again(
    command, folders, run, tmp_path, learned, files_of
):
    call, part = COMMANDS[command](folders, learned), tmp_path / "part"
    again = [*call, "-o", part, "--num-parts", 1, "--part-id", 0]
    assert run(*again).code == 0
    for kept in (part / FOLDER).glob("*.results"):
        kept.unlink()  # files of cases are there, and what is known of them is not
    assert run(*again).code == 0
    written = next(path for path in part.rglob("a*") if path.is_file() and not path.name.endswith(".json"))
    written.unlink()  # and the other way round
    assert run(*again).code == 0
    assert run("merge", part, "-o", tmp_path / "merged", "--", *call).code == 0
    assert run(*call, "-o", tmp_path / "one").code == 0
    assert files_of(tmp_path / "merged") == files_of(tmp_path / "one")
