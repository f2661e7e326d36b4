"""Rows for the board are the numbers of a summary, as they are printed."""

import msgspec
import pytest

from paper.board import Row, read_rows
from segcal.errors import InputError
from segcal.report.board import COLUMNS, board_rows, write_board
from segcal.report.paper_tables import FOLDER
from segcal.summary import Estimate, PipelineFacts, ResultRow, Summary


@pytest.fixture
def summary():
    facts = {name: PipelineFacts("mean_logits", name, "", True, keeps, True) for name, keeps in KEEPS.items()}
    metrics = {
        "nll": Estimate(0.04104, -0.00001, 0.05),
        "dice": Estimate(0.7125, None, None),
        "ece": Estimate(None, None, None),
        "flip_rate": Estimate(0.0, 0.0, 0.0),
    }
    results = (
        ResultRow("roads", "", "ts", metrics, True),
        ResultRow("roads", "fog, thick", "ms", metrics, False),
    )
    return msgspec.structs.replace(msgspec.convert(EMPTY, Summary), pipelines=facts, results=results)


KEEPS = {"ts": "order", "ms": None}
EMPTY = {
    "schema": 1, "hash": "", "repeats": 3, "bootstrap": {}, "fit": {}, "notes": [], "metrics": {}, "tasks": [],
    "groups": [], "pipelines": {}, "results": [], "comparisons": [],
}  # fmt: skip
EXPECTED = """task,method,metric,value,low,high,cases,repeats,note
roads,ts,NLL,0.0410,0.0000,0.0500,,3,
roads,ts,"DSC, %",71.2,,,,3,
"roads, tested on fog, thick",ms,NLL,0.0410,0.0000,0.0500,,3,
"roads, tested on fog, thick",ms,"DSC, %",71.2,,,,3,
"roads, tested on fog, thick",ms,"Flip, %",0.0,0.0,0.0,,3,
"roads, tested on fog, thick",ms,fit,,,,,,not fitted to its tolerance in some repeat
"""


def test_rows_are_those_of_the_board(summary, tmp_path):
    (tmp_path / FOLDER).mkdir()
    path = write_board(summary, tmp_path)
    assert path.read_text("utf-8") == EXPECTED
    assert Row.__struct_fields__ == COLUMNS
    rows = read_rows(path.stem, path.parent)  # the check of the board
    assert [(row.task, row.method, row.metric) for row in rows] == [
        (one["task"], one["method"], one["metric"]) for one in board_rows(summary)
    ]


def test_a_file_that_is_none_of_ours_is_not_replaced(summary, tmp_path):
    (tmp_path / FOLDER).mkdir()
    path = tmp_path / FOLDER / "board.csv"
    path.write_text("mine\n")
    with pytest.raises(InputError, match="board"):
        write_board(summary, tmp_path)
    assert path.read_text() == "mine\n"
    write_board(summary, tmp_path, overwrite=True)
    write_board(summary, tmp_path)
    assert path.read_text("utf-8") == EXPECTED
