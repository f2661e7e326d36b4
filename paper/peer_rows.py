"""Recent calibrators of others beside ours, on real ensembles, at random and across sites: rows of the board.

    python -m paper.peer_rows measure ROOT RESULTS [--tasks cardiac roads camvid] [--repeats 3] [--voxels 1000]
    python -m paper.peer_rows rows RESULTS [-o docs/board]

At random, 40 % of the cases by whole groups are for the fits and the others for the test, once per repeat. Across sites
the cases of one site are for the fits and all others for the test, once per site; sites are those of
``paper/transfer.py``, groups those of ``paper/protocols``. Every calibrator sees the mean of the members'
probabilities. Ours see so many voxels per case, more often from where it is hard, with weights, as in every fit. The
methods of others (``paper/recent.py``) see four times as many, each as likely as any. `default` is what
``segcal.choose`` chooses on the same cases. The test cases are measured once, whole; with ``--tests``, about so many of
each division.

RESULTS gets one file of lines per task, one line per division and calibrator, with the numbers of every test case; a
file that has lines already is continued. ROOT holds ``predictions/TASK/member_M/CASE.npy`` and ``TASK/labels``.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import segcal
from paper.board import FOLDER, Row, measured, number, write_code, write_rows
from paper.recent import Map, recent
from paper.stamp import read_stamps, write_stamp
from paper.transfer import TASKS
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.cases.base import Cases
from segcal.errors import InputError
from segcal.evaluation.case_counter import Counter
from segcal.fitting.division import divide, group_names
from segcal.metrics import METRICS
from segcal.resample import Draws
from segcal.statistics import BandCache
from segcal.summary import difference, estimate
from segcal.types import IGNORED

STUDY, TEST_SHARE, POOLING = "peers_recent", 0.6, "mean_probs"
MORE = 4  # times as many voxels as ours for the methods of others: they cannot use weights, and ours are the hard ones
COUNTED = {
    "nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE per case", "dice": "DSC, %", "flip_rate": "Flip, %",
}  # fmt: skip
SHOWN = {name: replace(METRICS[name], pooled=False) for name in COUNTED}
OURS = ("ts", "default")


def open_cases(root: Path, task: str) -> Cases:
    """Return the cases of a task with the groups of its protocol, pooled once."""
    protocol = load_protocol(Path(__file__).parent / "protocols" / f"{task}.toml", root)
    return in_memory(open_task(protocol.tasks[0], POOLING, root, None).cases)


def divisions(task: str, cases: Cases, repeats: int) -> Iterator[tuple[str, Cases, Cases]]:
    """Yield the name of each division, the cases for the fits, and those for the test."""
    for seed in range(repeats):
        found = divide(cases, 0.0, TEST_SHARE, seed)
        yield f"random {seed}", found.cal, found.test
    sites = TASKS[task].sites(cases)
    for site in sorted(set(sites.values())):
        own = [i for i in cases.ids if sites[i] == site]
        yield f"from {site}", cases.subset(own), cases.subset([i for i in cases.ids if sites[i] != site])


def in_memory(cases: Cases) -> Cases:
    """Return the same cases, pooled once."""
    every = [cases.checked(case_id) for case_id in cases.ids]
    groups = {case_id: group for case_id, group in cases.groups.items() if group}
    return segcal.ArrayCases(
        [case.logits for case in every], [case.labels for case in every], ignore=IGNORED, ids=cases.ids,
        groups=groups or None, kind="logits", pooling=POOLING,
    )  # fmt: skip


def drawn(cases: Cases, voxels: int) -> tuple[Tensor, Tensor]:
    """Return logits ``(n, C)`` and labels of so many voxels of each case, every one as likely."""
    logits, labels = [], []
    for place, case_id in enumerate(cases.ids):
        case = cases.checked(case_id)
        truth = torch.as_tensor(case.labels).reshape(-1)
        valid = torch.nonzero(truth >= 0)[:, 0].numpy()
        rng = np.random.default_rng([0, place])
        chosen = torch.from_numpy(np.sort(rng.choice(valid, min(voxels, len(valid)), replace=False)))
        logits.append(case.logits.reshape(case.logits.shape[0], -1)[:, chosen].T)
        labels.append(truth[chosen].long())
    return torch.cat(logits), torch.cat(labels)


def whole(found: Map) -> Any:
    """Return a map of whole images."""

    @torch.no_grad()
    def image(given: Tensor, _: Any = None) -> Tensor:
        _, classes, *space = given.shape
        return found(given[0].reshape(classes, -1).T).T.reshape(1, classes, *space)

    return image


def fits(cal: Cases, voxels: int) -> Iterator[dict[str, Any]]:
    """Yield what is fitted together, by name: ours, then the recent ones."""
    config = segcal.FitConfig(voxels=voxels)
    yield {"ts": segcal.fit("ts", cal, config=config).calibrator}
    yield {"default": segcal.choose(cal, config=config).calibrator}
    sample = drawn(cal, MORE * voxels)
    for fit in recent(cal.num_classes):
        yield {name: whole(found) for name, found in fit(*sample).items()}


def measure(root: Path, task: str, path: Path, repeats: int, voxels: int, tests: int | None, only: str) -> None:
    """Fit and measure the divisions of a task that are not in its file."""
    cases = open_cases(root, task)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    known, counter = {line["division"] for line in lines}, Counter(SHOWN, BandCache())
    for title, cal, every in divisions(task, cases, repeats):
        if title in known or not title.startswith(only):
            continue
        test = every.subset(every.ids[:: max(1, round(len(every) / (tests or len(every))))])
        maps, facts, start = {}, {"nothing": ("", 0.0)}, time.process_time()
        for found in fits(cal, voxels):
            spent = round(time.process_time() - start, 2)
            facts |= {name: (one.name if name == "default" else "", spent) for name, one in found.items()}
            maps, start = maps | found, time.process_time()
        values: dict[str, dict[str, list[float | None]]] = {name: {metric: [] for metric in SHOWN} for name in facts}
        for case_id in test.ids:
            before, after = counter.count_each(test.checked(case_id), maps)
            for name, counted in {"nothing": before, **after}.items():
                for metric, one in SHOWN.items():
                    value = one(counted.tables)
                    values[name][metric].append(None if value is None else round(value, 6))
        groups = list(group_names(test, test.ids))
        with path.open("a", encoding="utf-8") as file:
            for name, (chosen, seconds) in facts.items():
                line = {"division": title, "method": name, "chosen": chosen, "seconds": seconds}
                file.write(json.dumps({**line, "cal": len(cal), "groups": groups, "values": values[name]}) + "\n")
        print(f"{task}, {title}: {facts}", flush=True)


def rows(folder: Path) -> Iterator[Row]:
    """Yield the mean of every calibrator, and its differences to `default` and `ts`."""
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for where, start in (("at random", "random"), ("across sites", "from")):
            own: dict[str, list[dict[str, Any]]] = {}
            for line in lines:
                if line["division"].startswith(start):
                    own.setdefault(line["method"], []).append(line)
            if own:
                yield from _of_place(f"{path.stem}, {where}", own)


def _of_place(task: str, own: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    for lines in own.values():
        lines.sort(key=lambda line: line["division"])
    groups = [line["groups"] for line in own["ts"]]
    draws, sizes = Draws(groups), (sum(map(len, groups)), len(groups))
    _refuse_others(task, own, groups)
    for name, lines in own.items():
        for metric in COUNTED:
            if metric == "flip_rate" and name == "nothing":
                continue
            for row in _compared(task, name, metric, own, draws):
                yield Row(row.task, row.method, row.metric, row.value, row.low, row.high, *sizes, row.note)
        if name != "nothing":
            spent = float(np.mean([line["seconds"] for line in lines]))
            yield Row(task, name, "fit, CPU s", number(spent, ".1f"), repeats=sizes[1])
        if chosen := ", ".join(line["chosen"] for line in lines if line["chosen"]):
            yield Row(task, name, "chosen", note=chosen)


def _refuse_others(task: str, own: dict[str, list[dict[str, Any]]], groups: list[list[str]]) -> None:
    for name, lines in own.items():
        if [line["groups"] for line in lines] != groups:
            raise InputError(f"{task} has other cases for {name} than for ts, but pairs are needed. Measure it anew.")


def _compared(task: str, name: str, metric: str, own: dict[str, list[dict[str, Any]]], draws: Draws) -> Iterator[Row]:
    """Yield the mean of a metric, and its differences to `default` and `ts`."""
    title, values = COUNTED[metric], _column(own[name], metric)
    scale, form = (100.0, ".2f") if title.endswith("%") else (1.0, ".4f")
    yield from measured(task, name, title, estimate(values, draws), form, scale)
    for other in ("default", "ts"):
        if name != other and metric != "flip_rate":
            gap = difference(_column(own[other], metric), values, draws, SHOWN[metric].better)
            note = f"better in {gap.better}, worse in {gap.worse} cases"
            yield from measured(task, f"{name} against {other}", title, gap, form, scale, note)


def _column(lines: list[dict[str, Any]], metric: str) -> list[np.ndarray]:
    return [np.array([np.nan if v is None else v for v in line["values"][metric]], float) for line in lines]


def main() -> None:
    """Measure, or write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    first, second = steps.add_parser("measure"), steps.add_parser("rows")
    first.add_argument("root", type=Path, metavar="ROOT")
    for step in (first, second):
        step.add_argument("results", type=Path, metavar="RESULTS")
    first.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="NAME")
    first.add_argument("--repeats", type=int, default=3, metavar="N")
    first.add_argument("--voxels", type=int, default=1000, metavar="N", help="of each case, to fit to")
    first.add_argument("--tests", type=int, metavar="N", help="about so many test cases a division; default: all")
    first.add_argument("--only", default="", metavar="START", help='of divisions: "random", "from", or a whole name')
    second.add_argument("-o", "--output", type=Path, default=FOLDER, help="the folder of the board")
    given = parser.parse_args()
    if given.step == "rows":
        write_rows(STUDY, rows(given.results), given.output)
        write_code(STUDY, read_stamps(given.results.parent, [given.results.name]), given.output)
        return
    torch.set_num_threads(1)
    given.results.mkdir(parents=True, exist_ok=True)
    write_stamp(given.results)
    for task in given.tasks:
        path = given.results / f"{task}.jsonl"
        measure(given.root, task, path, given.repeats, given.voxels, given.tests, given.only)


if __name__ == "__main__":
    main()
