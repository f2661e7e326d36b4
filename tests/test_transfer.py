"""The study of the default elsewhere: who is calibrated where, what is starved, and the rows made of its lines."""

import json

import numpy as np
import pytest

from paper import transfer, transfer_rows
from segcal import ArrayCases
from segcal.fitting import choice
from segcal.fitting.sample import SampledVoxels


@pytest.fixture(scope="module")
def pools():
    rng = np.random.default_rng(0)
    ids = [f"patient{number:03d}_frame0{k}" for number in (51, 52, 53, 61, 62, 63, 81, 82) for k in (1, 2)]
    found = {}
    for pooling in transfer.POOLINGS:
        logits = [3 * rng.normal(size=(4, 40)) - 2 * np.eye(4)[:, 3:] * (k % 3) for k, _ in enumerate(ids)]
        labels = [(z / 2 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
        cases = ArrayCases(logits, labels, ids=ids, groups=[i[:10] for i in ids], pooling=pooling)
        found[pooling] = transfer.Pool(cases, SampledVoxels(cases, 100, 0, lambda: None))
    return found


def test_sites_are_apart_and_a_starved_set_is_the_half_with_least_of_a_class(pools):
    pool = pools["mean_probs"]
    found = {one.name: one for one in transfer.divisions(transfer.TASKS["cardiac"], pool, least=1)}
    assert set(found) >= {"MINF", "NOR", "RV", "MINF+NOR", "MINF+RV", "NOR+RV", "MINF, class 3 starved"}
    sites = transfer.disease(pool.cases)
    for one in found.values():
        assert not {sites[i] for i in one.cal} & {sites[i] for i in one.test}
        assert {i[:10] for i in one.cal}.isdisjoint({i[:10] for i in one.test})
    whole, poor = found["MINF+NOR"], found["MINF+NOR, class 3 starved"]
    assert poor.test == whole.test
    assert len({i[:10] for i in poor.cal}) == 3
    rest = [i for i in whole.cal if i not in poor.cal]

    def share(ids):
        return np.mean([float((pool.cases.read(i).labels == 3).float().mean()) for i in ids])

    assert share(poor.cal) < share(rest)


def test_a_rule_changes_nothing_for_the_next(pools):
    before = choice.MATTERS, transfer.RULES["new"].patches()
    old = transfer.choose(transfer.RULES["old"], ["identity", "ts"], pools, list(pools["mean_probs"].cases.ids))
    assert (choice.MATTERS, transfer.RULES["new"].patches()) == before == (choice.MATTERS, {})
    assert old.config.evidence == 0
    assert not old.config.outliers


def test_a_line_has_what_the_rows_need(pools, monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "candidates", lambda classes: ["identity", "ts"])
    division = next(transfer.divisions(transfer.TASKS["cardiac"], pools["mean_probs"]))
    rows = [transfer.run((division, rule), pools) for rule in ("new", "old")]
    assert rows[0]["against"]["ts"]["nll"][0] == pytest.approx(
        rows[0]["means"]["default"][0] - rows[0]["means"]["ts"][0]
    )
    (tmp_path / "cardiac.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lost = [transfer.regret((division, "new"), pools)]
    (tmp_path / "regret.jsonl").write_text(json.dumps(lost[0]) + "\n")
    found = {(row.task, row.method, row.metric): row.value for row in transfer_rows.transfer(tmp_path)}
    where = "cardiac, by disease"
    assert found[where, "default", "divisions"] == found[where, "default before", "divisions"] == 1
    assert float(found[where, "default", "NLL"]) == pytest.approx(rows[0]["means"]["default"][0], abs=5.1e-5)
    found = {(row.task, row.method, row.metric): row.value for row in transfer_rows.parts(tmp_path)}
    regret = found["cardiac, 20 cases", "default", "regret, largest"]
    assert float(regret) == pytest.approx(lost[0]["regret"], abs=5.1e-5)
    assert list(transfer_rows.transfer(tmp_path / "absent")) == []


def test_rules_are_compared_in_the_divisions_that_all_of_them_have(pools, monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "candidates", lambda classes: ["identity", "ts"])
    division = next(transfer.divisions(transfer.TASKS["cardiac"], pools["mean_probs"]))
    new, old = (transfer.run((division, rule), pools) for rule in ("new", "old"))
    alone = new | {"division": "of one rule alone"}
    (tmp_path / "cardiac.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (new, old, alone)))
    every, own = (
        [row.value for row in rows if (row.method, row.metric) == ("default", "divisions")]
        for rows in (transfer_rows.parts(tmp_path), transfer_rows.transfer(tmp_path))
    )
    assert (every, own) == ([1], [2])
