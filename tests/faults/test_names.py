"""Names that no one would choose: every command takes them, and nothing that they hold reaches a terminal as it is."""

import csv
import json
import os
import warnings

import numpy as np
import pytest

import segcal
from segcal.cli import main

NAMES = {
    "not UTF-8": (os.fsdecode(b"caf\xe9"), "caf%E9"),
    "escape sequence": ("red\x1b[31m", "red%1B[31m"),
    "line separator": ("two\u2028lines\x85", "two%E2%80%A8lines%C2%85"),
    "formula": ("=1+1", "=1+1"),
}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    streams = capsys.readouterr()
    streams.out.encode("utf-8")
    return ended.value.code, streams.out, streams.err


@pytest.fixture
def folders(tmp_path):
    """Return a function that makes predictions and labels, some with these stems."""
    rng = np.random.default_rng(0)

    def make(*names, ending=".npy"):
        (tmp_path / "p").mkdir()
        (tmp_path / "y").mkdir()
        for name in (*names, "b", "c", "d", "e"):
            logits = 3 * rng.normal(size=(3, 6, 7)).astype(np.float32)
            labels = np.where(rng.random((6, 7)) < 0.3, 0, logits.argmax(0)).astype(np.uint8)
            for folder, values in (("p", logits), ("y", labels)):
                with (tmp_path / folder / f"{name}{ending}").open("wb") as file:
                    np.save(file, values)
        return tmp_path / "p", tmp_path / "y"

    return make


def test_every_command_takes_hostile_names(folders, tmp_path, capsys):
    names, shown = zip(*NAMES.values(), strict=True)
    scores, labels = folders(*names)
    code, out, _ = run(capsys, "check", scores, labels, "--kind", "logits", "--json")
    assert code == 0
    assert {*shown} < {row["id"] for row in json.loads(out)["rows"]}
    assert run(capsys, "fit", scores, labels, "--kind", "logits", "--calibrator", "ts", "-o", tmp_path / "cal")[0] == 0
    fitted = segcal.load(tmp_path / "cal")
    assert {*shown} < {*fitted.calibration_ids, *fitted.validation_ids}
    more = ["--kind", "logits", "--calibrator", tmp_path / "cal", "--csv", tmp_path / "rows.csv"]
    code, out, err = run(capsys, "evaluate", scores, labels, *more, "--report", tmp_path / "page.html")
    assert code == 0
    assert not any(letter in out + err for letter in "\x1b\u2028\x85")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        cells = {row["case"] for row in csv.DictReader(file)}
    assert {*shown} - {"=1+1"} | {"'=1+1"} < cells
    assert run(capsys, "apply", tmp_path / "cal", scores, "--kind", "logits", "-o", tmp_path / "out")[0] == 0
    assert all((tmp_path / "out" / f"{name}.npy").is_file() for name in names)
    assert run(capsys, "convert", scores, "--kind", "logits", "-o", tmp_path / "store")[0] == 0
    assert all((tmp_path / "store" / f"{name}.safetensors").is_file() for name in shown)


def test_a_failure_of_such_a_case_is_one_clean_line(folders, capsys):
    scores, labels = folders("red\x1b[31m")
    (scores / "red\x1b[31m.npy").write_bytes(b"damaged")
    for flag in ([], ["--json"]):
        code, out, err = run(capsys, "check", scores, labels, "--kind", "logits", *flag)
        assert code == 3
        assert "\x1b" not in out + err
        assert "red%1B[31m" in out


def test_a_benchmark_takes_hostile_names(folders, tmp_path, capsys):
    scores, labels = folders(NAMES["not UTF-8"][0], NAMES["line separator"][0])
    (scores / "d.npy").write_bytes(b"damaged")
    (tmp_path / "protocol.toml").write_text(
        'repeats = 1\nmetrics = ["nll"]\nstudies = []\nsplit = {cal = 2, val = 1}\n'
        'pipelines = [{pooling = "single", calibrator = "ts"}]\nbootstrap = {replicates = 10}\n'
        f'[[tasks]]\nname = "t"\nmembers = ["{scores}"]\nlabels = "{labels}"\nkind = "logits"\n'
    )
    for _ in range(2):
        code, _, err = run(capsys, "benchmark", tmp_path / "protocol.toml", "-o", tmp_path / "results")
        assert code == 3, err


def test_a_name_that_is_too_long_fails_alone(folders, tmp_path, capsys):
    scores, _ = folders("x" * 240, "y" * 250)
    code, _, err = run(capsys, "convert", scores, "--kind", "logits", "-o", tmp_path / "store")
    assert code == 3
    assert "its file would have a name of 262 bytes, but 255 can be. Rename it." in err
    written = {path.name for path in (tmp_path / "store").glob("*.safetensors")}
    assert written == {f"{name}.safetensors" for name in ("x" * 240, *"bcde")}


@pytest.mark.parametrize("ending", [".NPY", ".Npy"])
def test_endings_in_capitals_are_read_and_written_alike(ending, folders, tmp_path, capsys):
    scores, labels = folders("CASE", ending=ending)
    assert run(capsys, "check", scores, labels, "--kind", "logits")[0] == 0
    assert run(capsys, "fit", scores, labels, "--kind", "logits", "--calibrator", "ts", "-o", tmp_path / "cal")[0] == 0
    for said in ("5 cases written", "5 were there already"):
        code, out, _ = run(capsys, "apply", tmp_path / "cal", scores, "--kind", "logits", "-o", tmp_path / "out")
        assert code == 0
        assert said in out
    assert np.load(tmp_path / "out" / f"CASE{ending}").shape == (3, 6, 7)


def test_class_names_are_clean_too():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = segcal.ArrayCases([np.eye(2)], kind="logits", class_names=["a\x1b", "\ud800"])
    assert cases.class_names == ("a%1B", "%ED%A0%80")


def test_a_message_quotes_at_most_so_much_of_a_file(folders, tmp_path, capsys):
    scores, labels = folders("a")
    table, long = tmp_path / "groups.csv", "x" * 5000
    for content in (f"{long},{long}\n", f"id,group\n{long},1\n{long},2\n"):
        table.write_text(content)
        code, _, err = run(capsys, "check", scores, labels, "--kind", "logits", "--groups", table)
        assert code == 2
        assert "x" * 80 in err
        assert "x" * 81 not in err
    code, _, err = run(capsys, "check", scores, labels, "--format", long)
    assert code == 2
    assert "invalid choice: 'xxx" in err
    assert len(err) < 1100
