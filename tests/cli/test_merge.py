"""Parts of every command over cases, put together in any order: the bytes that one process writes."""

import json
from pathlib import Path

import numpy as np
import pytest

from segcal.scale.part import FACTS, FOLDER

# What a user types besides the folder of results.
COMMANDS = {
    "evaluate": lambda f, cal: ["evaluate", *f.both, "--calibrator", cal],
    "check": lambda f, cal: ["check", *f.both],
    "audit": lambda f, cal: ["audit", cal, f.predictions, *f.options],
    "apply": lambda f, cal: ["apply", cal, f.predictions, *f.options, "--confidence-map"],
    "trust": lambda f, cal: ["trust", cal, f.predictions, *f.options, "--level", "0.6", "--masks"],
    "fit": lambda f, cal: ["fit", *f.both, "--test-share", "0.2", "--trust-on", "none"],
}


def files_of(folder):
    """Return the bytes of every file in a folder by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


@pytest.fixture
def learned(folders, run, tmp_path):
    """A calibrator with reference cases, for trust."""
    done = run("fit", *folders.both, "-o", tmp_path / "learned", "--calibrator", "ts")
    assert done.code == 0, done
    return tmp_path / "learned"


@pytest.fixture
def parts(folders, run, tmp_path, learned):
    """Make the parts of a command; return their folders, the last one first."""

    def make(command, of, **more):
        made = []
        for number in reversed(range(of)):
            place = tmp_path / f"{command}-{number}-of-{of}"
            options = [*COMMANDS[command](folders, learned), "-o", place, "--num-parts", of, "--part-id", number]
            done = run(*options, *more.get("options", ()))
            assert done.code == more.get("code", 0), done
            made.append(place)
        return made

    return make


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_parts_give_the_bytes_of_one_process(command, folders, run, tmp_path, parts, learned):
    one = run(*COMMANDS[command](folders, learned), "-o", tmp_path / "one")
    assert one.code == 0, one
    expected = files_of(tmp_path / "one")
    assert expected
    for of in (1, 2, 5):
        call = COMMANDS[command](folders, learned)
        merged = run("merge", *parts(command, of), "-o", tmp_path / f"merged-{of}", "--", *call)
        assert merged.code == 0, merged
        assert files_of(tmp_path / f"merged-{of}") == expected


def test_a_part_says_what_it_is_and_what_comes_next(folders, run, tmp_path, learned):
    call = [*COMMANDS["audit"](folders, learned), "-o", tmp_path / "part", "--num-parts", 4, "--part-id", 3]
    assert run(*call, "--json").document == {
        "part": 3,
        "of": 4,
        "cases": 1,
        "output": str(tmp_path / "part"),
        "failed": {},
    }
    assert "part 3 of 4, 1 case, written to" in run(*call).out
    facts = json.loads((tmp_path / "part" / FOLDER / FACTS).read_text())
    assert (facts["part"], facts["of"], facts["cases"], facts["finished"]) == (3, 4, 6, True)


def test_a_case_that_failed_in_its_part_is_listed_by_merge(folders, run, tmp_path, parts):
    (folders.predictions / "b1.npy").write_bytes(b"nothing")
    made = parts("evaluate", 1, code=3)
    call = COMMANDS["evaluate"](folders, tmp_path / "learned")
    merged = run("merge", *made, "-o", tmp_path / "merged", "--json", "--", *call)
    assert merged.code == 3
    assert list(merged.document["failed"]) == ["b1"]
    assert list(json.loads((tmp_path / "merged" / "evaluate.json").read_text())["failed"]) == ["b1"]


def test_what_is_not_the_parts_of_one_run_is_refused_by_name(folders, run, tmp_path, parts, learned):
    first, second = parts("audit", 2)
    end = ["-o", tmp_path / "out", "--", *COMMANDS["audit"](folders, learned)]
    missing = run("merge", first, *end)
    assert missing.code == 2
    assert missing.err == (
        "error: of 2 parts 1 is missing (0), but all are needed. Run them, and name their folders.\n"
    )
    double = run("merge", first, second, first, *end)
    assert f"{first} and {first} are both part 1, but each is needed once." in double.err
    (other,) = parts("evaluate", 1)
    foreign = run("merge", first, other, *end)
    assert f"{other} is of another run than {first}: it has another number of parts (1, not 2)" in foreign.err
    nothing = run("merge", first, folders.labels, *end)
    assert f"{folders.labels} is not a part of a run, but one is needed." in nothing.err
    assert not (tmp_path / "out").exists()


def test_parts_of_other_options_and_versions_are_refused(folders, run, tmp_path, parts, learned):
    first = parts("evaluate", 2)[1]
    call = COMMANDS["evaluate"](folders, learned)
    run(*call, "-o", tmp_path / "other", "--num-parts", 2, "--part-id", 1, "--seed", 7)
    end = ["-o", tmp_path / "out", "--", *call]
    refused = run("merge", first, tmp_path / "other", *end)
    assert f"{tmp_path / 'other'} is of another run than {first}: it has another seed (7, not 0)" in refused.err
    path = first / FOLDER / FACTS
    path.write_text(path.read_text().replace('"segcal": "', '"segcal": "0.0.0+'))
    old = run("merge", first, tmp_path / "other", *end)
    assert f"error: {first} was made by segcal 0.0.0+" in old.err
    assert "Use the version that made the parts, or run them again." in old.err


def test_a_part_that_did_not_finish_or_is_stale_is_refused(folders, run, tmp_path, parts):
    first, second = parts("evaluate", 2)
    path = first / FOLDER / FACTS
    path.write_text(path.read_text().replace('"finished": true', '"finished": false'))
    end = ["-o", tmp_path / "out", "--", *COMMANDS["evaluate"](folders, tmp_path / "learned")]
    unfinished = run("merge", first, second, *end)
    assert (
        f"{first} did not finish, but whole parts are needed. Run the command of part 1 of 2 again." in unfinished.err
    )
    path.write_text(path.read_text().replace('"finished": false', '"finished": true'))
    scores = np.load(folders.predictions / "b2.npy")
    np.save(folders.predictions / "b2.npy", scores + 1)
    stale = run("merge", first, second, *end)
    assert stale.code == 2
    assert "is stale: case 'b2' has changed since" in stale.err
    np.save(folders.predictions / "d1.npy", scores)
    more = run("merge", first, second, *end)
    assert "is stale: it is a part of 6 cases, but there are 7 cases now. Run the parts again." in more.err


def test_a_damaged_part_is_refused(folders, run, tmp_path, parts, learned):
    (part,) = parts("audit", 1)
    block = next((part / FOLDER).glob("*.results"))
    block.write_bytes(block.read_bytes()[:-3])
    refused = run("merge", part, "-o", tmp_path / "out", "--", *COMMANDS["audit"](folders, learned))
    assert refused.code == 2
    assert f"{block} is damaged (its results are cut off), but results of a part are needed." in refused.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--num-parts", 2], "--num-parts is given without --part-id, but a part needs both."),
        (["--part-id", 0], "--part-id is given without --num-parts, but a part needs both."),
        (["--num-parts", 2, "--part-id", 2], "part_id is 2 and num_parts 2, but parts are numbered from 0"),
        (["--num-parts", 2, "--part-id", -1], "part_id is -1 and num_parts 2, but parts are numbered from 0"),
        (["--num-parts", 7, "--part-id", 0], "num_parts is 7, but there are 6 cases. Use at most 6 parts."),
    ],
)
def test_part_options_that_make_no_sense_are_one_sentence(options, sentence, folders, run, tmp_path):
    refused = run("check", *folders.both, "-o", tmp_path / "part", *options)
    assert refused.code == 2
    assert sentence in refused.err
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "part").exists()


def test_a_part_needs_a_folder_of_its_own(folders, run, tmp_path):
    without = run("check", *folders.both, "--num-parts", 2, "--part-id", 0)
    assert "--part-id is given without -o, but a part is a folder." in without.err
    with_csv = run("evaluate", *folders.both, "-o", tmp_path / "p", "--num-parts", 2, "--part-id", 0, "--csv", "x.csv")
    assert "--csv is given with --part-id, but a part has no such file." in with_csv.err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    taken = run("check", *folders.both, "-o", tmp_path / "mine", "--num-parts", 2, "--part-id", 0)
    assert f"{tmp_path / 'mine'} holds notes, but a part needs a folder of its own." in taken.err
    run("check", *folders.both, "-o", tmp_path / "part", "--num-parts", 2, "--part-id", 0)
    mixed = run("check", *folders.both, "-o", tmp_path / "part", "--num-parts", 3, "--part-id", 0)
    assert "holds part 0 of 2 with another number of parts (2, not 3), but results would be mixed." in mixed.err


REGIONS = ["--kind", "logits", "--regions", "whole=1+2+3,core=2+3,enh=3"]


@pytest.fixture
def region_folders(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for number in range(4):
        depth = rng.normal(size=(16, 18)).cumsum(0).cumsum(1) / 4
        cuts = np.array([0.0, 1.0, 2.0])[:, None, None]
        truth = (depth[None] + rng.logistic(size=(1, 16, 18)) > cuts).sum(0)
        np.save(tmp_path / "predictions" / f"c{number}.npy", (2.5 * (depth[None] - cuts)).astype(np.float32))
        np.save(tmp_path / "labels" / f"c{number}.npy", truth.astype(np.int16))
    return [tmp_path / "predictions", tmp_path / "labels", *REGIONS]


def in_parts(run, tmp_path, command, call):
    for number in (0, 1):
        done = run(command, *call, "--num-parts", 2, "--part-id", number, "-o", tmp_path / f"{command}{number}")
        assert done.code == 0, done
    made, target = [tmp_path / f"{command}{number}" for number in (0, 1)], tmp_path / f"{command}-merged"
    merged = run("merge", *made, "-o", target, "--", command, *call)
    assert merged.code == 0, merged
    return tmp_path / f"{command}-merged"


def test_fits_and_measurements_of_parts_are_those_of_one_process(region_folders, run, files_of, tmp_path):
    fit = [*region_folders, "--calibrator", "ts", "--trust-on", "none"]
    assert run("fit", *fit, "-o", tmp_path / "fit").code == 0
    merged = in_parts(run, tmp_path, "fit", fit)
    assert files_of(merged)["weights.safetensors"] == files_of(tmp_path / "fit")["weights.safetensors"]
    measure = [*region_folders, "--calibrator", tmp_path / "fit", "--metrics", "nll,ece,ece_equal_mass"]
    assert run("evaluate", *measure, "-o", tmp_path / "evaluate").code == 0
    assert files_of(in_parts(run, tmp_path, "evaluate", measure)) == files_of(tmp_path / "evaluate")


def test_a_result_does_not_go_into_a_part(region_folders, run, tmp_path):
    check = [*region_folders]
    in_parts(run, tmp_path, "check", check)
    made = [tmp_path / "check0", tmp_path / "check1"]
    refused = run("merge", *made, "-o", tmp_path / "check0" / "x", "--", "check", *check)
    assert refused.code == 2
    assert "is one of the parts, but the result needs a folder of its own" in refused.err
