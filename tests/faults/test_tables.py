"""Tables that commands print fit 80 columns: nothing is cut short, and no number is broken."""

import re
from collections import Counter
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from segcal.cli import main
from segcal.cli.console import Output
from segcal.report.table import Cell, Column, Group, Row, Table

NAMES = "background,left_ventricle_of_the_heart,myocardium,right_ventricle_cavity"
NUMBER = re.compile(r"[-+]?\d[\d.,]*")


def rendered(table, width):
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()


def check_fits(table):
    narrow, wide = rendered(table, 80), rendered(table, 400)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert Counter(NUMBER.findall(narrow)) == Counter(NUMBER.findall(wide))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two members and labels of cases with long names, in the working folder."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "labels"):
        (tmp_path / name).mkdir()
    for letter in "abcdefghijkl":
        logits = 4 * rng.normal(size=(4, 12, 11)).astype("float32")
        case = f"a_rather_long_name_of_the_acquisition_{letter}.npy"
        np.save(tmp_path / "one" / case, logits)
        np.save(tmp_path / "two" / case, logits + rng.normal(size=logits.shape).astype("float32"))
        np.save(tmp_path / "labels" / case, (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0))


@pytest.fixture
def tables(monkeypatch):
    """The tables that are printed."""
    found = []
    say = Output.say

    def kept(self, *texts):
        found.extend(text for text in texts if not isinstance(text, str))
        say(self, *texts)

    monkeypatch.setattr(Output, "say", kept)
    return found


@pytest.mark.usefixtures("folders")
@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
def test_tables_of_commands_fit(tables, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    predictions, declared = ["one", "two"], ["--kind", "logits", "--class-names", NAMES]
    for words in (
        ["check", *predictions, "labels", *declared, "--pooling", "mean_probs"],
        ["fit", *predictions, "labels", *declared, "-o", "fitted"],
        ["evaluate", *predictions, "labels", *declared, "--calibrator", "fitted"],
        ["evaluate", "one", "labels", *declared],
        ["trust", "fitted", *predictions, *declared, "-o", "trust", "--level", "0.8"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0, capsys.readouterr().err
        assert tables, words
        for table in tables:
            check_fits(table)
        printed = [line for line in capsys.readouterr().out.splitlines() if "──" in line]
        assert printed
        assert max(map(len, printed)) <= 80
        tables.clear()


def test_a_table_with_many_columns_goes_on_below():
    columns = [Column(f"column {letter}", digits=4) for letter in "abcdefghijkl"]
    rows = [
        Row(name, tuple(Cell(k + 0.1234) for k in range(12))) for name in ("identity(mean_probs)", "ts(mean_logits)")
    ]
    table = Table("Results", "Pipeline", tuple(columns), (Group("", tuple(rows)),), notes=("A note.",))
    check_fits(table)
    assert rendered(table, 80).count("identity(mean_probs)") == 3
    assert rendered(table, 80).count("Results") == rendered(table, 80).count("A note.") == 1
    assert rendered(table, 400).count("identity(mean_probs)") == 1
