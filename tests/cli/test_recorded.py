import argparse
from pathlib import Path

from segcal.cli.recorded import restored, settings


def test_options_come_back_with_complete_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace(
        command="check",
        paths=[Path("a"), Path("/b")],
        kind="logits",
        ignore=None,
        level=0.1,
        output=Path("x"),
        workers=3,
    )
    again = restored(settings(options), output=Path("y"), workers=2)
    assert again.paths == [tmp_path / "a", Path("/b")]
    assert (again.command, again.kind, again.ignore, again.level) == ("check", "logits", None, 0.1)
    assert (again.output, again.workers, again.part_id, again.engine) == (Path("y"), 2, None, "local")


def test_what_decides_is_content_and_not_where_the_output_goes(tmp_path):
    (tmp_path / "cal").write_text("1")
    first = settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("a"), json=True))
    assert first == settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("b"), json=False))
    (tmp_path / "cal").write_text("2")
    assert first != settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("a"), json=True))
