"""Arguments: how texts become values, how they are explained and refused, and what is known of each."""

import argparse
import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal import ReadOptions
from segcal.cli.call import Call, check_paths, settings
from segcal.cli.commands import COMMANDS, Parser, Role, at_least_one, command_of, device, make_parser
from segcal.cli.console import option
from segcal.cli.fit import _voxels
from segcal.cli.trust import _taus
from segcal.errors import InputError


def parsed(*words):
    return make_parser().parse_args([*map(str, words)])


def test_counts_and_devices(monkeypatch):
    assert (at_least_one("12"), _voxels("all"), _voxels("300"), device("cpu")) == (12, "all", 300, "cpu")
    for text in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"{text!r} is no count, but a whole number")):
            _voxels(text)
    with pytest.raises(argparse.ArgumentTypeError, match="'gpu' names no device, but cpu or cuda is needed"):
        device("gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(argparse.ArgumentTypeError, match="'cuda:1' is not available on this machine, but cpu is"):
        device("cuda:1")


def test_tau_is_one_number_or_one_a_structure():
    titles = ("none", "liver", "a=b")
    assert _taus(["0.7"], titles) == 0.7
    assert _taus(["liver=0.9", "0.8"], titles) == {"none": 0.8, "liver": 0.9, "a=b": 0.8}
    assert _taus(["a=b=0.6"], titles) == {"a=b": 0.6}
    for wrong in ("liver", "liver=", "liver=high"):
        with pytest.raises(InputError, match=r"but a number or STRUCTURE=NUMBER is needed. Write 0.8 or liver=0.8."):
            _taus(["0.5", wrong], titles)


def test_a_refusal_is_one_sentence_and_quotes_nothing_that_a_terminal_obeys(capsys):
    parser = Parser(prog="tool")
    parser.add_argument("--number", type=int)
    for words in (["--number", "x"], ["--num", "3"], ["--other"], ["\x1b[31mred"]):
        with pytest.raises(SystemExit) as stopped:
            parser.parse_args(words)
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out) == (2, "")
        assert re.fullmatch(r"error: .*See tool --help\.\n", printed.err)
    assert printed.err == "error: unrecognized arguments: %1B[31mred. See tool --help.\n"


# Each takes a tenth of a second or more, and an evaluation without a page or a fit needs none of them.
NOT_EVALUATED = (
    "scipy.optimize", "scipy.stats", "scipy.ndimage", "matplotlib", "optuna", "pandas", "distributed",
    "segcal.benchmark.run", "segcal.report.evaluated", "segcal.studies",
)  # fmt: skip
NOT_HELPED = ("torch", "numba", "scipy", "matplotlib", "rich", "numpy", "segcal.cases", "segcal.cli.fit")
PART = ["evaluate", "p", "l", "--kind", "logits", "--num-parts", "1", "--part-id", "0", "-o", "part"]


@pytest.mark.parametrize(
    ("words", "code", "unused", "used"),
    [
        (["--help"], 0, NOT_HELPED, []),
        (["ft"], 2, NOT_HELPED, []),
        (["fit", "--help"], 0, ["segcal.studies"], ["segcal.cli.fit"]),
        (PART, 0, NOT_EVALUATED, ["segcal.cli.evaluate"]),
    ],
    ids=["help", "mistake", "help of fit", "part"],
)
def test_what_is_not_used_is_not_imported(words, code, unused, used, tmp_path):
    rng = np.random.default_rng(0)
    for name, values in {"p": rng.normal(size=(3, 5, 7)), "l": rng.integers(3, size=(5, 7)).astype("uint8")}.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", values)
    look = f"print([name for name in {[*unused, *used]!r} if name in sys.modules], file=sys.stderr)"
    script = f"import sys\nfrom segcal_command import main\ntry:\n    main()\nfinally:\n    {look}"
    call = [sys.executable, "-c", script, *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, str(used))


def test_every_declaration_can_be_given_and_none_is_there_unless_it_is(monkeypatch):
    given = {
        "kind": "probs", "pooling": "mean_logits", "format": "npy", "ignore": 255, "class_axis": 1, "key": "k",
        "label_key": "l", "label_axes": "zyx", "images": Path("i"), "groups": "(a)", "class_names": ["sky", "road"],
        "class_pattern": "p", "properties": Path("q"), "regions": {"whole": [1, 2], "core": [2]},
        "regions_class_order": [1, 2], "ignore_geometry": True, "sites": "(b)",
        "raters": "bits", "num_raters": 3, "rater_weights": [1, 2, 1],
    }  # fmt: skip
    assert set(given) == {field.name for field in fields(ReadOptions)}
    words = [word for name, value in given.items() for word in (option(name), shown(value)) if word != "True"]
    assert "--pooling" in words
    seen = []

    def opened(*folders, strict, **declared):
        seen.append(declared)
        raise InputError("enough")

    monkeypatch.setattr("segcal.cli.call.open_cases", opened)
    for more in ([], words):
        with pytest.raises(InputError, match="enough"):
            Call(parsed("evaluate", "p", "l", *more)).open([Path("p")], None)
    assert seen == [{}, given]


def test_an_option_of_an_older_name_is_taken_with_a_warning(capsys):
    for words in (["--pool", "mean_probs"], ["--pool=mean_probs"], ["--pooling", "mean_probs"]):
        assert parsed("check", "p", "l", *words).pooling == "mean_probs"
        warned = capsys.readouterr().err
        assert warned == ("" if words[0] == "--pooling" else "warning: --pool is deprecated. Write --pooling.\n")


def shown(value):
    if isinstance(value, dict):
        return ",".join(f"{name}={'+'.join(map(str, labels))}" for name, labels in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_a_part_keeps_what_decides_results_with_complete_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ["evaluate", "p", "/l", "--seed", 3, "-o", "x", "--workers", 3, "--csv", "c.csv", "--json"]
    found = settings(parsed(*call))
    assert json.loads(found["paths"]) == [{"path": str(tmp_path / "p")}, {"path": "/l"}]
    assert (found["command"], found["seed"]) == ('"evaluate"', "3")
    where = {"output", "csv", "summary", "report", "overwrite"}
    how = {"workers", "json", "quiet", "num_parts", "part_id", "engine"}
    assert not (where | how) & {*found}
    assert {"strict", "device", "metrics", "kind", "sites", "calibrator_class"} <= {*found}


def test_of_a_calibrator_the_content_decides(tmp_path):
    def kept(*more):
        return settings(parsed("audit", tmp_path / "cal", *more))

    (tmp_path / "cal").write_text("1")
    first = kept("-o", "a")
    assert first == kept("-o", "b")
    (tmp_path / "cal").write_text("2")
    assert {name for name, text in kept().items() if text != first[name]} == {"calibrator content"}


# Options that the file of a command takes care of; every other goes to the function of the command, by its name.
HANDLED = {
    "check": {"no_labels"}, "apply": set(), "audit": set(), "view": set(), "card": set(), "convert": {"labels"},
    "decide": {"all_classes"}, "monitor": {"all_classes"}, "adapt": {"overwrite"}, "export": {"logits"},
    "objects": {"labels", "maps", "series", "overwrite"},
    "trust": {"all_classes", "biomarker", "masks", "series", "seg", "segments", "description", "overwrite"},
}  # fmt: skip


@pytest.mark.parametrize("command", HANDLED)
def test_every_option_reaches_the_function_of_its_command(command):
    own = {one.dest for one in command_of(command).arguments}
    own -= {"calibrator", "paths", "output", "calibrator_class", "json", "quiet"}
    assert own - {*inspect.signature(getattr(segcal, command)).parameters} == HANDLED[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_every_path_names_is_known(command):
    neither = {"benchmark": {"root"}}.get(command, set())
    for one in command_of(command).all_arguments:
        is_path = one.declared.get("type") is Path and one.dest not in neither
        assert is_path == (one.role not in (None, Role.TABLE)), one


@pytest.fixture
def folders_of_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("p", "l", "cal", "c.zarr", "p/c.zarr"):
        Path(name).mkdir()
    for name in ("p/a.npy", "l/a.npy", "cal/calibrator.json", "cal/card.md", "s.csv"):
        Path(name).write_text("x")


@pytest.mark.parametrize(
    "words",
    [
        "apply cal p -o p/calibrated", "apply cal p -o .", "apply cal s3://bucket/p -o s3://bucket/out",
        "evaluate p l -o out --csv out/cases.csv", "evaluate p l -o out --report out/report.html",
        "card cal -o cal/card.md", "report r -o r/report.html --figures r", "benchmark p/a.npy --root . -o results",
        "margins fit p --labels l -o m.json", "nnunet fit -d 1 -c 2d --calibrator new", "demo",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("folders_of_paths")
def test_paths_that_go_together_are_let_through(words):
    args = parsed(*words.split())
    before = vars(args).copy()
    check_paths(args)
    assert vars(args) == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("view cal p -o p/c.zarr/maps", "is among the files of p, which are read, but"),
        ("view cal p -o l --series ./p/../l", "l is one of the inputs, but they"),
        ("evaluate p l --sites s.csv --csv ./s.csv", "s.csv is one of the inputs, but they"),
        ("card s3://b/c -o x.md", "s3://b/c is a URL, but only predictions, lab"),
        ("demo --out gs://b/c", "gs://b/c is a URL, but a path of this machine is needed there. Name one"),
        ("evaluate p l --csv x --report ./x", "x is named for two results (csv and report), "),
        ("evaluate p l -o out --csv out/summary.json", "out/summary.json is named for two results (csv and output)"),
    ],
)
@pytest.mark.usefixtures("folders_of_paths")
def test_others_are_one_sentence(words, text):
    with pytest.raises(InputError) as refused:
        check_paths(parsed(*words.split()))
    assert text in str(refused.value)
