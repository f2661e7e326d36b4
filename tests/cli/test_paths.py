"""What commands read and write: every path of every command is known, and those that go together are let through."""

import argparse
from pathlib import Path

import pytest

from segcal.cli.commands import COMMANDS, make_parser
from segcal.cli.paths import CASES, FILES, FOLDERS, MORE_CASES, NEITHER, check_paths
from segcal.errors import InputError

# Options with paths that are read and are no folders of cases.
READ = {"calibrator", "model", "subgroups", "protocol", "parts", "margins", "segments"}


def path_options(command):
    parser = make_parser()._subparsers._group_actions[0].choices[command].declare()
    return {action.dest for action in parser._actions if action.type is Path}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_path_of_every_command_is_known(command):
    written = {*FILES.get(command, ()), *FOLDERS.get(command, ("output",))}
    found = path_options(command)
    assert found <= written | READ | {*CASES, *MORE_CASES, *NEITHER}
    assert written <= found | {"output"}


def given(command, **options):
    return argparse.Namespace(command=command, **options)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("p", "l", "cal", "c.zarr", "p/c.zarr"):
        Path(name).mkdir()
    for name in ("p/a.npy", "l/a.npy", "cal/calibrator.json", "cal/card.md"):
        Path(name).write_text("x")


@pytest.mark.parametrize(
    "args",
    [
        given("apply", calibrator=Path("cal"), paths=[Path("p")], output=Path("p/calibrated")),
        given("apply", calibrator=Path("cal"), paths=[Path("p")], output=Path()),
        given("apply", calibrator=Path("cal"), paths=[Path("s3://bucket/p")], output=Path("s3://bucket/out")),
        given("evaluate", paths=[Path("p"), Path("l")], output=Path("out"), csv=Path("out/cases.csv")),
        given("evaluate", paths=[Path("p"), Path("l")], output=Path("out"), report=Path("out/report.html")),
        given("card", calibrator=Path("cal"), output=Path("cal/card.md")),
        given("report", results=Path("r"), paths=[], output=Path("r/report.html"), figures=Path("r")),
        given("benchmark", protocol=Path("p/a.npy"), root=Path(), output=Path("results")),
    ],
)
def test_paths_that_go_together_are_let_through(args, folders):
    before = vars(args).copy()
    check_paths(args)
    assert vars(args) == before


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            given("view", paths=[Path("p")], output=Path("p/c.zarr/maps")),
            "is among the files of p, which are read, but",
        ),
        (
            given("view", paths=[Path("p")], output=Path("l"), series=Path("./p/../l")),
            "l is one of the inputs, but they",
        ),
        (
            given("card", calibrator=Path("s3://b/c"), output=Path("x.md")),
            "s3://b/c is a URL, but only predictions, lab",
        ),
        (
            given("demo", out=Path("gs://b/c")),
            "gs://b/c is a URL, but a path of this machine is needed there. Name one",
        ),
        (
            given("evaluate", paths=[], csv=Path("x"), report=Path("./x")),
            "x is named for two results (csv and report), ",
        ),
    ],
)
def test_others_are_one_sentence(args, text, folders):
    with pytest.raises(InputError) as refused:
        check_paths(args)
    assert text in str(refused.value)


def test_a_named_link_becomes_what_it_leads_to(folders):
    Path("link").symlink_to("real/cases.csv")
    args = given("evaluate", paths=[Path("p")], csv=Path("link"), output=None)
    check_paths(args)
    assert args.csv == Path("real/cases.csv").resolve()
