"""The study of the default: what it measures is what a plain computation gives, and its rows count what they say."""

import json

import numpy as np
import pytest

from paper import choice as study
from paper.choice_rows import choice
from segcal import ArrayCases
from segcal.fitting.sample import SampledVoxels


def nll(logits, labels):
    log_probs = logits - np.log(np.exp(logits).sum(0))
    return -np.take_along_axis(log_probs, labels[None], 0).mean()


def test_a_division_is_measured_on_the_cases_that_it_leaves_out():
    rng = np.random.default_rng(0)
    logits = [4 * rng.normal(size=(3, 20, 25)).astype("float32") for _ in range(9)]
    labels = [(z / 3 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    pools = {}
    for pooling in study.POOLINGS:
        cases = ArrayCases(logits, labels, pooling=pooling)
        pools[pooling] = study.Pool(cases, SampledVoxels(cases, 1000, 0, lambda: None))
    (division,) = study.divisions(pools["mean_probs"].cases, [6], range(3, 4), by=False)
    assert len(division.cal) == 6
    assert sorted(division.cal + division.test) == [str(k) for k in range(9)]
    row = study.run(division, pools)
    assert row["new"].startswith("ts")
    expected = np.mean([nll(logits[int(i)].astype(float), labels[int(i)]) for i in division.test])
    assert row["nll"]["identity(mean_logits)"] == pytest.approx(expected, rel=1e-5)
    gap = row["differences"]["new - identity(mean_logits)"]["mean"]
    assert gap == pytest.approx(row["nll"]["new"] - expected, abs=1e-6)
    assert row["nll"]["new"] < expected
    assert json.loads(json.dumps(row)) == row


def test_places_are_tested_on_cases_of_none_of_the_others():
    cases = ArrayCases([np.zeros((2, 3), "float32")] * 9, groups=list("aaabbbccc"))
    found = list(study.divisions(cases, [2, 4], range(2), by=True))
    assert len(found) == 3 * 2 * 2
    for division in found:
        assert {cases.groups[i] for i in division.test} == {division.place}
        assert division.place not in {cases.groups[i] for i in division.cal}
        assert len(division.cal) == division.size


def row(size, seed, new, change, error):
    difference = {"mean": change, "error": error}
    keys = [f"{n}({p})" for n in ("ts", "identity") for p in ("mean_probs", "mean_logits")]
    return {
        "size": size, "seed": seed, "place": "", "new": new, "old": new, "groups": 3,
        "stated": {"ts": 0.01, "identity": 0.5},
        "nll": dict.fromkeys([*keys, "new", "old"], 0.5),
        "ece": dict.fromkeys([*keys, "new", "old"], 0.25),
        "differences": {f"{rule} - {key}": difference for rule in ("new", "old") for key in keys},
    }  # fmt: skip


def test_the_rows_count_what_is_worse_beyond_two_standard_errors(tmp_path):
    rows = [row(3, 0, "ts (mean_probs)", 0.1, 0.04), row(3, 1, "ts (mean_probs)", 0.1, 0.06)]
    rows += [row(6, 0, "cms_ap (mean_logits)", -0.1, 0.01), row(10, 0, "identity (mean_probs)", 0.2, None)]
    rows[3]["stated"]["ts"] = None  # one group
    (tmp_path / "roads.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    rows = {(row.task, row.method, row.metric): row for row in choice(tmp_path)}

    def counts(task, method, *metrics):
        return [rows[task, method, metric].value for metric in metrics]

    either = "divisions worse than ts or nothing"
    metrics = ("divisions", f"{either} beyond noise", "divisions with cases of one group", either)
    assert counts("all tasks", "default", *metrics) == [4, 1, 1, 2]
    assert counts("all tasks", "default before", either) == [2]
    assert counts("all tasks", "default", "divisions worse than nothing") == [2]
    assert str(rows["all tasks", "default", "largest loss against nothing, NLL"].value) == "0.2000"
    roads = "roads, every picture a group"
    for size, worse, beyond, chosen in ((3, 1, 1, "ts(mean_probs)"), (6, 0, 0, "cms_ap(mean_logits)")):
        own = [f"divisions worse than {other}, {size} cases" for other in ("ts", "nothing")]
        assert counts(roads, "default", *own) == [worse, worse]
        assert counts(roads, "default", f"divisions worse than ts beyond noise, {size} cases") == [beyond]
        assert (roads, "default", f"chosen: {chosen}, {size} cases") in rows
    gap = rows[roads, "default against ts(mean_probs)", "ECE, 10 cases"]
    assert [str(end) for end in (gap.value, gap.low, gap.high)] == ["0.0000"] * 3
