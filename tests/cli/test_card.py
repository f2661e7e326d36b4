import json

import numpy as np
import pytest

import segcal
from segcal.cli import main


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A calibrator of five cases, and the rows of seven."""
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    for number in range(12):
        logits = 3 * rng.normal(size=(3, 8, 9))
        np.save(tmp_path / "predictions" / f"case{number:02d}.npy", logits)
        np.save(tmp_path / "labels" / f"case{number:02d}.npy", (logits + rng.gumbel(size=logits.shape)).argmax(0))
    monkeypatch.chdir(tmp_path)
    cases = segcal.open_cases("predictions", labels="labels", kind="logits")
    segcal.save(segcal.fit("ts", cases.subset(cases.ids[:5])), "calibrator")
    assert (
        run("evaluate", "predictions", "labels", "--kind", "logits", "--calibrator", "calibrator", "--csv", "c.csv")
        == 0
    )
    return tmp_path


def test_a_card_is_written_from_what_evaluate_wrote(folder, capsys):
    capsys.readouterr()
    (folder / "groups.csv").write_text("case,subgroup\ncase06,north\ncase07,north\ncase08,\n")
    assert run("card", "calibrator", "c.csv", "-o", "card.json", "--subgroups", "groups.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["subgroups"] == ["north"]
    card = json.loads((folder / "card.json").read_text())
    assert card["evaluation_data"]["cases"] == 7
    assert [each["cases"] for each in card["performance"]] == [7, 2]
    assert run("card", "calibrator", "-o", "card.md", "--not-valid-for", "night scenes") == 0
    assert "- night scenes\n" in (folder / "card.md").read_text()
    assert "fitted to 5 cases, measured on 0" in capsys.readouterr().out


def test_subgroups_without_columns_end_in_one_sentence(folder, capsys):
    (folder / "groups.csv").write_text("a,b\n1,2\n")
    assert run("card", "calibrator", "c.csv", "-o", "card.md", "--subgroups", "groups.csv") == 2
    assert "groups.csv has no columns case and subgroup, but both are needed." in capsys.readouterr().err
