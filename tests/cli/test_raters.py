"""Several raters on the command line."""

import json
import re

import numpy as np
import pytest

from segcal.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("p", "a", "b"):
        (tmp_path / name).mkdir()
    for number in range(12):
        logits = 2 * rng.normal(size=(3, 16, 14 + number))
        np.save(tmp_path / "p" / f"case{number}.npy", logits.astype("f4"))
        for rater in "ab":
            labels = (logits + rng.gumbel(size=logits.shape)).argmax(0).astype("u1")
            np.save(tmp_path / rater / f"case{number}.npy", labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words, code=0):
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == code


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
def test_a_calibrator_of_raters_is_fitted_measured_and_shown(folder, capsys):
    run("check p --labels a b --kind logits --json")
    assert json.loads(capsys.readouterr().out)["usable"]
    run("fit p --labels a b --kind logits --calibrator ts -o cal --val-share 0.3 --seed 1 --json")
    assert json.loads(capsys.readouterr().out)["calibrator"] == "cal"
    run("evaluate p --labels a b --kind logits --calibrator cal --report page.html --json --quiet")
    found = json.loads(capsys.readouterr().out)
    assert "rater_entropy" in str(found)
    assert found["raters"] == "labels of 2 raters: every vote counts once"
    run("evaluate p a --kind logits --calibrator cal --metrics nll")
    assert "the calibrator was fitted to labels of 2 raters" in capsys.readouterr().out
    run("audit cal")
    assert "for pooling single; labels of 2 raters" in capsys.readouterr().out
    run("audit cal --json")
    assert json.loads(capsys.readouterr().out)["raters"] == {"form": "maps", "weights": [1, 1]}
    run("card cal -o card.md")
    assert "labels of 2 raters" in (folder / "card.md").read_text("utf-8")
    capsys.readouterr()
    page = (folder / "page.html").read_text("utf-8")
    assert "Where experts disagree" in page
    assert re.search(r'"raters":\s*\{"png"', page)
    run("report cal p --labels a b --kind logits -o other.html --json --quiet")
    capsys.readouterr()


def test_what_needs_one_label_refuses(folder, capsys):
    np.save(folder / "a" / "case0.npy", np.zeros((16, 14), "u1"))
    run("fit p --labels a b --kind logits --calibrator lts -o cal", 2)
    assert "needs one label per voxel" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
def test_parts_give_what_one_run_gives(folder, capsys):
    command = "evaluate p --labels a b --kind logits --quiet"
    for part in (0, 1):
        run(f"{command} -o part{part} --num-parts 2 --part-id {part}")
    run(f"merge part0 part1 -o merged -- {command}")
    run(f"{command} -o whole")
    capsys.readouterr()
    assert (folder / "merged" / "cases.csv").read_bytes() == (folder / "whole" / "cases.csv").read_bytes()
