"""The worth of the default: many divisions of real cases, few of them for the fit, the rest to judge it.

    python -m paper.choice paper/protocols/roads.toml --root DATA -o results/choice/roads.jsonl

For every size of the calibration set and every seed, cases are drawn (whole groups), a calibrator is chosen by the rule
of `segcal fit` and by the one before (``paper/transfer.py``), and both are measured on all other cases beside
temperature scaling and nothing, with both poolings. With ``--by REGEX`` the calibration cases come from all places but
one (such as videos), the test cases are those of that place, and places are the groups that a choice holds out. Fits
and tests see 20,000 voxels of each case (``--voxels`` for fewer), drawn once. The output has one line per division; a
file that has lines already is continued. ``paper/choice_rows.py`` makes rows of it.
"""

import argparse
import json
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from paper.stamp import write_stamp
from paper.transfer import CPU, POOLINGS, RULES, Pool, choose
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.calibrators.conic import USUAL
from segcal.cases.base import Cases
from segcal.fitting import FitConfig
from segcal.fitting.choice import Decision, candidates
from segcal.fitting.comparison import compare
from segcal.fitting.division import group_names
from segcal.fitting.fit import fit_to
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.scores import Worth, measure, noise, paired


class Division(NamedTuple):
    """The cases for the fit, and those for the test."""

    size: int
    seed: int
    place: str
    cal: list[str]
    test: list[str]


def divisions(cases: Cases, sizes: list[int], seeds: range, by: bool) -> Iterator[Division]:
    """Draw the divisions; groups stay together."""
    for place in sorted(set(cases.groups.values())) if by else [""]:
        inside = [case_id for case_id in cases.ids if by and cases.groups[case_id] == place]
        source = cases.subset([case_id for case_id in cases.ids if case_id not in inside])
        own = {case_id: case_id for case_id in cases.ids} if by else None  # a few cases of each place
        for size in sizes:
            for seed in seeds:
                cal = list(source.split(cal=size, seed=seed, group=own).cal.ids)
                test = inside if by else [case_id for case_id in cases.ids if case_id not in cal]
                yield Division(size, seed, place, cal, test)


def run(division: Division, pools: dict[str, Pool]) -> dict[str, Any]:
    """Choose by both rules, and measure on the test cases."""
    torch.set_num_threads(1)
    config = FitConfig()
    names = candidates(pools[POOLINGS[0]].cases.num_classes)
    choice = compare(names, {name: pool.data(division.cal) for name, pool in pools.items()}, config)
    chosen = choice.decision.chosen
    old = choose(RULES["old"], names, pools, division.cal)
    worth = {
        "new": _measure(choice.fitted.calibrator, pools[chosen.pooling], division),
        "old": _measure(old.calibrator, pools[old.pooling], division),
    }
    others = {}
    for pooling, pool in pools.items():
        for name in ("identity", "ts"):
            fitted = fit_to(name, pool.data(division.cal), config)
            others[f"{name}({pooling})"] = _measure(fitted.calibrator, pool, division)
    test = pools[POOLINGS[0]].cases
    rows = {}
    for rule in worth:
        for other in others:
            ids, differences = paired(worth[rule], others[other])
            rows[f"{rule} - {other}"] = noise(differences, group_names(test, ids), folds=1)._asdict()
    return {
        "size": division.size,
        "seed": division.seed,
        "place": division.place,
        "cal": len(division.cal),
        "test": len(division.test),
        "new": chosen.title,
        "groups": choice.decision.groups,
        "stated": stated_noise(choice.decision),
        "old": f"{old.calibrator.name} ({old.pooling})",
        "nll": {key: float(np.mean([w.nll for w in found.values()])) for key, found in (worth | others).items()},
        "ece": {key: float(np.mean([w.ece for w in found.values()])) for key, found in (worth | others).items()},
        "differences": rows,
    }


def stated_noise(decision: Decision) -> dict[str, float | None]:
    """Return the error that the choice states of its own difference from `ts` and from nothing, in its pooling.

    Candidates are compared with the reference, which is one of these two; where the other one is asked for, the errors
    of both differences are added up.
    """
    chosen = decision.chosen
    rows = {row.name: row for row in decision.candidates if row.pooling == chosen.pooling and row.against is not None}
    found: dict[str, float | None] = {}
    for name in ("ts", "identity"):
        errors = [row.against.error for row in (rows.get(name), rows.get(chosen.name)) if row is not None]
        found[name] = None if None in errors or len(errors) < 2 else float(np.hypot(*errors))
    return found


def _measure(calibrator: Any, pool: Pool, division: Division) -> dict[str, Worth]:
    return measure(calibrator, pool.voxels.subset(division.test), CPU)


_POOLS: dict[str, Pool] = {}  # what the processes of one run share, by fork


def _line(division: Division) -> str:
    return json.dumps(run(division, _POOLS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", type=Path, help="its first task is used")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 6, 10, 25])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--by", metavar="REGEX", help="its group names the place of a case")
    parser.add_argument("--single-groups", action="store_true", help="every case is a group of its own")
    parser.add_argument("--voxels", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    protocol = load_protocol(args.protocol, args.root)
    for pooling in POOLINGS:
        cases = open_task(protocol.tasks[0], pooling, args.root, None).cases
        if args.by is not None:
            cases.groups = {case_id: re.match(args.by, case_id)[1] for case_id in cases.ids}
        elif args.single_groups:
            cases.groups = {}
        _POOLS[pooling] = Pool(cases, SampledVoxels(cases, args.voxels, 0, lambda: None, args.workers, contexts=USUAL))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_stamp(args.output.parent)
    done = args.output.read_text().splitlines() if args.output.exists() else []
    known = {(row["size"], row["seed"], row["place"]) for row in map(json.loads, done)}
    todo = [
        d
        for d in divisions(cases, args.sizes, range(args.first_seed, args.first_seed + args.seeds), args.by is not None)
        if (d.size, d.seed, d.place) not in known
    ]
    with args.output.open("a") as file, multiprocessing.get_context("fork").Pool(args.workers) as pool:
        for number, line in enumerate(pool.imap(_line, todo)):
            file.write(line + "\n")
            file.flush()
            print(f"\r{number + 1} of {len(todo)}", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
