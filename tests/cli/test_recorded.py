import argparse
import json
from pathlib import Path

from segcal.cli.recorded import settings


def test_options_are_kept_with_complete_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace(command="check", paths=[Path("a"), Path("/b")], level=0.1, output=Path("x"), workers=3)
    paths = json.dumps([{"path": str(tmp_path / "a")}, {"path": "/b"}])
    assert settings(options) == {"command": '"check"', "paths": paths, "level": "0.1"}


def test_what_decides_is_content_and_not_where_the_output_goes(tmp_path):
    (tmp_path / "cal").write_text("1")
    first = settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("a"), json=True))
    assert first == settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("b"), json=False))
    (tmp_path / "cal").write_text("2")
    assert first != settings(argparse.Namespace(calibrator=tmp_path / "cal", output=Path("a"), json=True))
