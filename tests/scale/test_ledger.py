import numpy as np
import pytest

from segcal.cases.base import CaseError
from segcal.errors import InputError
from segcal.scale import ledger as ledgers
from segcal.scale.ledger import Ledger


def test_results_and_failures_are_found_again_the_last_of_several(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_RESULTS", 2)
    ledger = Ledger(tmp_path)
    ledger.add("sum", "a", "1", 0.1)
    assert not list(tmp_path.iterdir())
    ledger.add("sum", "b", "2", CaseError("b", "it is broken"))
    ledger.add("sum", "a", "3", np.arange(3))
    ledger.flush()
    ledger.flush()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000000.results", "000001.results"]
    again = Ledger(tmp_path)
    assert {key: entry.line.key for key, entry in again.entries.items()} == {("sum", "a"): "3", ("sum", "b"): "2"}
    assert again.read("sum", "a").tolist() == [0, 1, 2]
    with pytest.raises(CaseError, match="case 'b': it is broken"):
        again.read("sum", "b")


def test_every_cut_of_a_block_is_noticed(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add("sum", "a", "1", 0.1)
    ledger.flush()
    path = tmp_path / "000000.results"
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"000000\.results is damaged"):
            Ledger(tmp_path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match="is damaged"):
        Ledger(tmp_path).read("sum", "a")
