"""A benchmark against the share of raters: its numbers by plain loops, its tables with what raters leave, its parts."""

import csv
import json

import numpy as np
import pytest
import scipy

from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.results import read_unit, total_tables
from segcal.benchmark.run import _usable
from segcal.cli import main
from segcal.errors import InputError
from segcal.studies.run import run

CASES, CLASSES, WEIGHTS = 14, 3, (2, 1, 1)
PIPELINES = [{"pooling": "single", "calibrator": name} for name in ("identity", "ts", "vs_ti")]
METRICS = ["nll", "brier", "dice", "ece", "ba_ece", "ace", "cece", "flip_rate", "miou"]
PROTOCOL = {"repeats": 2, "split": {"cal": 5, "val": 2}, "metrics": METRICS, "pipelines": PIPELINES}
PROTOCOL |= {"bootstrap": {"replicates": 100}, "studies": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions and the labels of raters a, b and c, who lacks case 3; voxel 0 of b does not count."""
    root, rng = tmp_path_factory.mktemp("raters"), np.random.default_rng(0)
    for name in ("p", "a", "b", "c"):
        (root / name).mkdir()
    for number in range(CASES):
        logits = rng.normal(size=(CLASSES, 9, 8 + number)).cumsum(1)
        np.save(root / "p" / f"c{number:02}.npy", (3 * logits).astype("f4"))
        for rater in "abc":
            labels = (logits + rng.gumbel(size=logits.shape)).argmax(0).astype("u1")
            labels[0, 0] = 9 if rater == "b" else labels[0, 0]
            if (rater, number) != ("c", 3):
                np.save(root / rater / f"c{number:02}.npy", labels)
    return root


def task(name="several", labels=("a", "b", "c"), **more):
    weights = {"rater_weights": list(WEIGHTS)} if len(labels) > 1 else {}
    return {"name": name, "members": ["p"], "labels": list(labels), "kind": "logits", "ignore": 9} | weights | more


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    """A task of several raters, and one of a single rater whose calibrators are also tested on the former."""
    place = tmp_path_factory.mktemp("results")
    alone = task("alone", "a", test_on=["several"])
    return place, run(parse_protocol(PROTOCOL | {"tasks": [task(), alone], "studies": ["reliability"]}, folder), place)


def votes_of(folder, case):
    """Return logits and votes ``(classes, voxels)`` of the voxels that have some."""
    logits, votes = np.load(folder / "p" / f"{case}.npy").astype(float), 0
    for rater, weight in zip("abc", WEIGHTS, strict=True):
        if (folder / rater / f"{case}.npy").exists():
            labels = np.load(folder / rater / f"{case}.npy")
            votes = votes + weight * np.stack([labels == c for c in range(CLASSES)])
    return logits.reshape(CLASSES, -1), votes.reshape(CLASSES, -1)


def test_numbers_are_those_of_a_loop(folder, done):
    place, _ = done
    unit = read_unit(place / "units" / "several" / "repeat_0" / "identity-single.jsonl")
    pooled = {"top": [], "right": [], "weight": []}
    for row in unit.rows:
        z, votes = votes_of(folder, row.case)
        q, cast = scipy.special.softmax(z, 0), votes.sum(0)
        share, top = votes / cast, q.argmax(0)
        nll, brier = -(share * np.log(q)).sum(0), (q**2).sum(0) - 2 * (share * q).sum(0) + 1
        for name, each in {
            "nll": nll,
            "brier": brier,
            "rater_entropy": scipy.special.entr(share).sum(0),
            "kl_to_share": nll - scipy.special.entr(share).sum(0),
            "brier_to_share": ((q - share) ** 2).sum(0),
        }.items():
            assert row.metrics[name] == pytest.approx((each * cast).sum() / cast.sum(), rel=1e-6), name
        right = votes[top, np.arange(len(top))]
        bins = np.ceil(q.max(0) * 50).astype(int)
        gaps = [(cast * q.max(0) - right)[bins == one].sum() for one in range(51)]
        assert row.metrics["ece"] == pytest.approx(np.abs(gaps).sum() / cast.sum(), rel=1e-5)
        assert row.voxels == cast.sum() // sum(WEIGHTS)
        for name, values in zip(pooled, (q.max(0), right, cast), strict=True):
            pooled[name].append(values)
    top, right, cast = (np.concatenate(each) for each in pooled.values())
    bins = np.ceil(top * 15).astype(int)
    gaps = [abs((cast * top - right)[bins == b].sum()) / cast[bins == b].sum() for b in np.unique(bins)]
    found = json.loads((place / "summary.json").read_text())
    own = [row for row in found["results"] if (row["task"], row["pipeline"]) == ("several", "identity(single)")]
    curve = total_tables([unit]).reliability[15]["all"]
    assert curve.count.sum() == cast.sum()
    assert curve.right.sum() == right.sum()
    assert curve.confidence.sum() == pytest.approx((cast * top).sum(), rel=1e-6)
    one = np.divide(np.abs(curve.right - curve.confidence), curve.count, where=curve.count > 0, out=np.zeros(15))
    assert one[curve.count > 0].mean() == pytest.approx(np.mean(gaps), rel=1e-5)
    assert own[0]["metrics"]["ace"]["low"] <= np.mean(gaps) * (1 + 1e-5)
    assert own[0]["metrics"]["ace"]["high"] >= np.mean(gaps) * (1 - 1e-5)


def test_what_raters_leave_stands_beside_every_number(done):
    place, finished = done
    tasks = (place / "tables" / "table1_tasks.md").read_text()
    assert "| several | 3 | 1 | 5 | 2 | 7 | 14 | 3 raters with weights 2, 1, 1 |" in tasks
    assert "| alone | 3 | 1 | 5 | 2 | 7 | 14 | — |" in tasks
    head = (place / "tables" / "table8_several.md").read_text().splitlines()[2]
    for column in ("least NLL", "Brier to share ↓", "DSC of raters", "DSC, majority ↑", "volume CRPS ↓"):
        assert f"| {column} " in head
    assert "what raters themselves leave" in (place / "tables" / "table8_several.md").read_text()
    assert "least NLL" not in (place / "tables" / "table8_alone.md").read_text()
    rows = list(csv.DictReader((place / "tables" / "board.csv").read_text().splitlines()))
    floors = {row["value"] for row in rows if (row["task"], row["metric"]) == ("several", "least NLL")}
    assert len(floors) == 1
    assert any(row["metric"] == "Brier to share" and row["low"] for row in rows)
    assert {row["task"] for row in rows if row["metric"] == "least NLL"} == {"several", "alone, tested on several"}
    for role, own in finished.studies["reliability"].tasks["several"].items():
        in_bins = [(k / 15, one, (k + 1) / 15) for k, one in enumerate(own.curve.confidence) if one is not None]
        assert all(low <= one <= high + 1e-9 for low, one, high in in_bins), role
    units = [one.header.raters for one in finished.setting.results.units if one.unit.task == "alone"]
    assert [str(one) for one in units[:2]] == ["None", "3 raters with weights 2, 1, 1"]


def test_the_digest_knows_the_raters_and_their_weights(folder):
    (one, other, third) = (
        parse_protocol(PROTOCOL | {"tasks": [each]}, folder).tasks[0].deciding()
        for each in (task(), task(rater_weights=[1, 1, 1]), task(labels="ab", rater_weights=[2, 1]))
    )
    assert one["labels"] == 3
    assert one != other != third != one
    alone = parse_protocol(PROTOCOL | {"tasks": [task(labels="a") | {"labels": "a"}]}, folder).tasks[0]
    assert alone.deciding()["labels"] is True
    assert alone.folders == ("p", "a")


def test_pipelines_and_metrics_of_one_label_are_left_out_or_refused(folder, tmp_path):
    given = PROTOCOL | {"tasks": [task()], "repeats": 1}
    with pytest.raises(InputError, match="calibrator 'lts_ti\\(single\\)' needs one label per voxel"):
        run(parse_protocol(given | {"pipelines": [{"pooling": "single", "calibrator": "lts_ti"}]}, folder), tmp_path)
    with pytest.raises(InputError, match="'hd95' compares two surfaces"):
        run(parse_protocol(given | {"metrics": ["nll", "hd95"]}, folder), tmp_path)
    protocol = parse_protocol(given | {"pipelines": "more", "metrics": ["nll"]}, folder)
    opened = {"several": {how: protocol.open(protocol.tasks[0], how).cases for how in ("mean_logits",)}}
    usable, notes = _usable(protocol, opened)
    assert "ibts(mean_logits)" not in {each.title for each in usable["several"]}
    assert any("whose labels are of several raters: " in note and "ibts(mean_logits)" in note for note in notes)


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
def test_parts_on_the_command_line_merge_to_the_same_bytes(folder, tmp_path, capsys):
    text = 'repeats = 2\nmetrics = ["nll", "ace", "dice"]\nstudies = []\nsplit = {cal = 5, val = 2}\n'
    text += 'pipelines = [{pooling = "single", calibrator = "ts"}, {pooling = "single", calibrator = "identity"}]\n'
    text += 'tasks = [{name = "t", members = ["p"], labels = ["a", "b", "c"], kind = "logits", ignore = 9}]\n'
    (tmp_path / "protocol.toml").write_text(text, "utf-8")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        assert stopped.value.code == 0, capsys.readouterr().err

    command = ["benchmark", tmp_path / "protocol.toml", "--root", folder]
    call(*command, "-o", tmp_path / "whole")
    for part in (0, 1):
        call(*command, "-o", tmp_path / f"part{part}", "--num-parts", 2, "--part-id", part)
    call("merge", tmp_path / "part0", tmp_path / "part1", "-o", tmp_path / "merged", "--", *command)
    for name in ("summary.json", "tables/board.csv", "units/t/repeat_1/ts-single.jsonl"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    call("report", tmp_path / "whole", "-o", tmp_path / "page.html")
    assert '"rater_entropy"' in (tmp_path / "page.html").read_text("utf-8")
