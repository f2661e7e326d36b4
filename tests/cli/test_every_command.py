"""What holds for every command: exit codes, one JSON document, one sentence, and the whole path in several formats."""

import subprocess
import sys

import numpy as np
import pytest

ON_CASES = ("check", "fit", "apply", "evaluate", "audit", "convert")


def arguments(command, folders, calibrator, out):
    """Return a complete call of a command."""
    return {
        "check": ["check", *folders.both],
        "fit": ["fit", *folders.both, "-o", out, "--calibrator", "ts"],
        "apply": ["apply", calibrator, folders.predictions, *folders.options, "-o", out],
        "evaluate": ["evaluate", *folders.both, "--calibrator", calibrator],
        "audit": ["audit", calibrator, folders.predictions, *folders.options],
        "convert": ["convert", folders.predictions, *folders.options, "--labels", folders.labels, "-o", out],
    }[command]


@pytest.mark.parametrize("name", ["nifti", "nnunet", "store"])
def test_the_whole_path_from_a_folder_to_a_calibrated_one(name, make_folders, run, tmp_path):
    folders = make_folders("npy" if name == "store" else name)
    if name == "store":
        made = run("convert", folders.predictions, *folders.options, "--labels", folders.labels, "-o", tmp_path / "st")
        assert made.code == 0
        assert "6 cases written" in made.out
        folders = folders._replace(predictions=tmp_path / "st", options=[])
    checked = run("check", *folders.both)
    assert checked.code == 0, checked
    assert f"format {name}" in checked.out
    fitted = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    assert fitted.code == 0, fitted
    measured = run("evaluate", *folders.both, "--calibrator", tmp_path / "cal", "--json")
    assert measured.document["after"]["nll"]["value"] < 0.9 * measured.document["before"]["nll"]["value"]
    applied = run("apply", tmp_path / "cal", folders.predictions, *folders.options, "-o", tmp_path / "out")
    assert applied.code == 0, applied
    assert "0 of 720 voxels changed their class" in applied.out
    again = run("evaluate", tmp_path / "out", folders.labels, *folders.options, "--json", "--metrics", "nll,dice")
    assert again.document["before"]["nll"]["value"] == pytest.approx(
        measured.document["after"]["nll"]["value"], rel=2e-3
    )
    audited = run("audit", tmp_path / "cal", folders.predictions, *folders.options)
    assert audited.code == 0
    assert "every promise holds" in audited.out


@pytest.mark.parametrize("command", ON_CASES)
def test_a_command_prints_one_document_and_lists_cases_that_failed(command, folders, calibrator, run, tmp_path):
    def call(name, *options):
        return run(*arguments(command, folders, calibrator, tmp_path / name), *options)

    done = call("whole", "--json")
    assert (done.code, done.err, done.document["failed"]) == (0, "", {})  # in a pipe nothing says how far it is
    assert "\x1b" not in done.out
    whole = {path: path.read_bytes() for path in folders.predictions.iterdir()}
    one = folders.predictions / "b1.npy"
    one.write_bytes(whole[one][:200])
    done = call("out", "--json")
    assert done.code == 3, done
    if command == "check":
        assert [problem["case_id"] for problem in done.document["problems"] if problem["severity"] == "error"] == ["b1"]
    else:
        assert list(done.document["failed"]) == ["b1"]
        assert "1 case failed:\n  b1: " in done.err
    assert "cut off or damaged" in done.out
    strict = call("strict", "--strict")
    assert strict.code == 2
    assert "b1" in strict.err
    for path, content in whole.items():
        path.write_bytes(content[:200])
    none = call("none")
    assert (none.code, len(none.err.splitlines())) == (2, 1)
    assert "cut off or damaged" in none.err


REFUSED = {
    "missing folder": (["check", "nowhere", "{labels}", "--kind", "logits"], "predictions nowhere is not a folder"),
    "missing labels": (["check", "{predictions}", "nowhere", "--kind", "logits"], "labels nowhere is not a folder"),
    "kind not declared": (["check", "{predictions}", "{labels}"], "Pass --kind logits, --kind probs or --kind sigmoid"),
    "unknown kind": (["check", "{predictions}", "--kind", "odds"], "invalid choice: 'odds'"),
    "unknown command": (["chekc"], "invalid choice: 'chekc'"),
    "no command": ([], "COMMAND"),
    "unknown option": (["check", "{predictions}", "--knid", "logits"], "--knid logits. See segcal check --help."),
    "unknown device": (["check", "{predictions}", "--device", "gpu"], "'gpu' names no device"),
    "no workers": (["check", "{predictions}", "--workers", "0"], "'0' is no count"),
    "wrong kind": (["evaluate", "{predictions}", "{labels}", "--kind", "probs"], "declare --kind logits."),
    "labels not named": (["fit", "{predictions}", "--kind", "logits", "-o", "x"], "Name the folder of labels last"),
    "unknown metric": (
        ["evaluate", "{predictions}", "{labels}", "--kind", "logits", "--metrics", "nll,niceness"],
        "no metric is named 'niceness'",
    ),
    "unknown calibrator": (
        ["fit", "{predictions}", "{labels}", "--kind", "logits", "-o", "x", "--calibrator", "magic"],
        "invalid choice: 'magic'",
    ),
    "no calibrator": (["apply", "{labels}", "{predictions}", "--kind", "logits", "-o", "x"], "has no calibrator.json"),
    "no class": (["audit", "{cal}", "--calibrator-class", "no:X"], "is no:X, but it cannot be imported"),
    "nothing to merge": (["merge", "{cal}", "-o", "x"], "nothing is after --, but the command that made the shards is"),
    "not to merge": (["merge", "{cal}", "-o", "x", "--", "demo"], "'demo' is after --, but the command"),
    "labels": (["check", "{predictions}", "--regions", "a=x"], "'x' are no labels, but whole numbers are needed"),
    "regions": (["check", "{predictions}", "--regions", "a=1,a=2"], "names a region twice, but each has one"),
    "members without pooling": (
        ["evaluate", "{predictions}", "{labels}", "{labels}", "--kind", "logits"],
        "Declare how members are pooled: --pooling mean_logits or --pooling mean_probs",
    ),
    "output is a file": (
        ["apply", "{cal}", "{predictions}", "--kind", "logits", "-o", __file__],
        "is a file, but a folder is needed",
    ),
    "offset": (
        ["fit", "{predictions}", "{labels}", "--kind", "probs", "-o", "x", "--calibrator", "vs"],
        "'vs' depends on the offset of the logits, but kind is 'probs', so the offset is gone",
    ),
    "offset in a comparison": (
        ["fit", "{predictions}", "{labels}", "--kind", "probs", "-o", "x", "--preserve", "none",
         "--allow-offset-dependent"],
        "depends on the offset of the logits, but kind is 'probs', so the offset is gone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_mistake_is_one_sentence_with_exit_code_2(what, folders, saved, run):
    call, expected = REFUSED[what]
    names = {"predictions": folders.predictions, "labels": folders.labels, "cal": saved("ts")}
    done = run(*(argument.format(**names) for argument in call))
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert done.err.startswith("error: ")
    assert expected in done.err


def test_folders_with_nothing_in_common_are_one_sentence(make_folders, run, tmp_path):
    folders = make_folders(ids=("x1", "x2"))
    other = make_folders(ids=("y1", "y2"), folder="other")
    for path in folders.labels.glob("x*"):
        path.unlink()
    done = run("evaluate", folders.predictions, folders.labels, *folders.options)
    assert done.code == 2
    assert "have no case in common (such as x1 and y1)" in done.err
    assert run("evaluate", other.predictions, folders.labels, *folders.options).code == 0


def test_cases_with_labels_of_another_shape_or_none_fail_alone(folders, run):
    np.save(folders.labels / "a2.npy", np.zeros((4, 5, 7), np.uint8))
    (folders.labels / "c2.npy").unlink()
    done = run("evaluate", *folders.both, "--metrics", "nll", "--json")
    assert (done.code, done.document["cases"], [*done.document["failed"]]) == (3, 4, ["a2", "c2"])
    assert "has space (4, 5, 7), but its logits have (4, 5, 6)" in done.err
    strict = run("evaluate", *folders.both, "--strict")
    assert strict.code == 2
    assert "lacks case c2" in strict.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt, 130, "interrupted: what is written is complete; run the command again to go on\n"),
        (MemoryError, 2, "error: the memory of this machine is not enough. Use a larger one, or smaller cases.\n"),
    ],
)
def test_an_interruption_and_too_little_memory_are_one_line(error, code, said, folders, run, monkeypatch):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr("segcal.check", stop)
    done = run("check", *folders.both)
    assert (done.code, done.err) == (code, said)


def test_a_reader_that_has_seen_enough_is_no_error(folders):
    script = f"from segcal.cli import main; main({[str(part) for part in ['check', *folders.both]]!r})"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as `head` does when it has its lines
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 0
    assert err == ""


def test_two_processes_give_the_same_bytes_as_one(folders, calibrator, run, files_of, tmp_path):
    reading = [folders.predictions, *folders.options]
    printed = {}
    for workers in (1, 2):
        own = tmp_path / str(workers)
        own.mkdir()
        many = ["--workers", workers]
        run("fit", *folders.both, "-o", own / "cal", "--calibrator", "ts", "--voxels", 50, *many)
        run("apply", calibrator, *reading, "-o", own / "out", "--confidence-map", *many)
        measured = run("evaluate", *folders.both, "--csv", own / "cases.csv", *many)
        printed[workers] = measured.out.replace(str(own), "")
    one, two = files_of(tmp_path / "1"), files_of(tmp_path / "2")
    assert len(one) == len(["calibrator.json", "weights", "calibration.json", "csv"]) + 3 * len(folders.scores)
    assert one == two
    assert printed[1] == printed[2]
