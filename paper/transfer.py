"""The default elsewhere: calibrated at some sites of a real task, tested at the others.

    python -m paper.transfer cardiac --root DATA -o results/transfer/cardiac.jsonl --workers 16
    python -m paper.transfer cardiac --regret --root DATA -o results/transfer/regret.jsonl --workers 16

Sites are diseases (cardiac), videos (camvid; the first is at dusk, the others by day) and areas (roads, by the numbers
of the images, which are coordinates). Calibration cases come from one site or from two, all of them or those half of
the groups that have least of one class; the test cases are all of the other sites. ``--rules`` names which rules
choose: ``new`` is that of `segcal fit`, ``old`` the one before, and parts of the new one alone (``sites``,
``shrinkage``), a mixture of the old one with temperature scaling (``mixture``), and all of it (``all``).

With ``--regret``, 20 random cases (``--size`` for more) and all others for the test, 20 times: every candidate on the
test cases, and how much higher the NLL of what is chosen is than that of the best.

Fits and tests see 20,000 voxels of each case, drawn once (``--voxels`` for fewer). The output has one line per division
and rule; a file that has lines already is continued. ``paper/transfer_rows.py`` makes rows of it.
"""

import argparse
import json
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from paper.stamp import write_stamp
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.calibrators.conic import USUAL
from segcal.calibrators.convex import ConvexCalibrator
from segcal.cases.base import Cases
from segcal.fitting import FitConfig
from segcal.fitting.certificate import Fitted
from segcal.fitting.choice import candidates, worst_mean
from segcal.fitting.comparison import compare
from segcal.fitting.config import STRENGTHS
from segcal.fitting.division import group_names
from segcal.fitting.evidence import _case_sums
from segcal.fitting.fit import fit_to
from segcal.fitting.request import FitData
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.scores import Worth, measure, noise, paired
from segcal.fitting.voxels import VoxelSource

POOLINGS = ("mean_probs", "mean_logits")
CPU = torch.device("cpu")
# How much of the distance from temperature scaling a mixture keeps.
SHARE = 0.5
OLD = {
    "segcal.fitting.comparison.find_sites": lambda *_: None,
    "segcal.fitting.choice.MATTERS": 0.0,
    "segcal.fitting.choice.NOTICED": 0.0,
    "segcal.fitting.choice.TELLS": 0.0,
    "segcal.fitting.strengths.STRENGTHS": (*STRENGTHS, 0.0),
    "segcal.fitting.convex_problem.MOST_STEEP": 1e3,
}


class Rule(NamedTuple):
    """What a rule is made of: the judgement across sites, the shrinkage by groups, the mixture; all else."""

    sites: bool = False
    shrinkage: bool = False
    mixture: bool = False
    rest: bool = False

    @property
    def config(self) -> FitConfig:
        """Return how it fits."""
        return FitConfig(outliers=self.rest, evidence=FitConfig.evidence if self.shrinkage else 0)

    def patches(self) -> dict[str, Any]:
        """Return what is different from the code as it is."""
        old = {} if self.rest else OLD
        return {name: value for name, value in old.items() if not (self.sites and name.endswith("find_sites"))}


RULES = {
    "new": Rule(sites=True, shrinkage=True, rest=True),
    "old": Rule(),
    "mixture": Rule(mixture=True),
    "sites": Rule(sites=True),
    "shrinkage": Rule(shrinkage=True),
    "all": Rule(sites=True, shrinkage=True, mixture=True, rest=True),
}


class Task(NamedTuple):
    """The site of a case, and the classes of which a calibration set is starved."""

    sites: Callable[[Cases], dict[str, str]]
    classes: tuple[int, ...]


class Pool(NamedTuple):
    """All cases of a task with one pooling, and their voxels."""

    cases: Cases
    voxels: VoxelSource

    def data(self, ids: list[str]) -> FitData:
        """Return the voxels of some cases, for a fit."""
        return FitData(self.cases.subset(ids), None, self.voxels.subset(ids), None)


class Division(NamedTuple):
    """The cases for the fit, and those for the test."""

    name: str
    cal: list[str]
    test: list[str]


def disease(cases: Cases) -> dict[str, str]:
    """Return the disease of each patient: they are numbered by it."""
    numbers = {case_id: int(re.search(r"patient(\d+)", case_id)[1]) for case_id in cases.ids}
    return {i: "MINF" if n <= 60 else "NOR" if n <= 80 else "RV" for i, n in numbers.items()}


def video(cases: Cases) -> dict[str, str]:
    """Return the video of each frame."""
    return {case_id: re.search(r"(0001TP|Seq05VD|0016E5)", case_id)[1] for case_id in cases.ids}


def area(cases: Cases) -> dict[str, str]:
    """Return one of three areas, by the numbers of the images."""
    images = sorted({case_id.split("_")[0] for case_id in cases.ids})
    of = {image: f"area {3 * k // len(images) + 1}" for k, image in enumerate(images)}
    return {case_id: of[case_id.split("_")[0]] for case_id in cases.ids}


TASKS = {"cardiac": Task(disease, (1, 2, 3)), "camvid": Task(video, (2, 6, 7, 9, 10)), "roads": Task(area, (0, 1))}


def divisions(task: Task, pool: Pool, least: int = 4) -> Iterator[Division]:
    """Yield the divisions by site, with all cases and starved of one class after the other."""
    cases, sites = pool.cases, task.sites(pool.cases)
    sums = {i: own[:-2].numpy() for i, own in pool.voxels.by_case(partial(_case_sums, None))}
    for count in (1, 2):
        for chosen in combinations(sorted(set(sites.values())), count):
            cal = [i for i in cases.ids if sites[i] in chosen]
            test = [i for i in cases.ids if sites[i] not in chosen]
            yield Division("+".join(chosen), cal, test)
            for label in task.classes:
                kept = starved(cases, cal, {i: sums[i][label] / sums[i].sum() for i in cal})
                if len(kept) >= least:
                    yield Division(f"{'+'.join(chosen)}, class {label} starved", kept, test)


def starved(cases: Cases, ids: list[str], share: Mapping[str, float]) -> list[str]:
    """Return the cases of that half of the groups which has least of a class."""
    names = dict(zip(ids, group_names(cases, ids), strict=True))
    total = {name: np.mean([share[i] for i in ids if names[i] == name]) for name in set(names.values())}
    poor = sorted(total, key=lambda name: (total[name], name))[: max(1, len(total) // 2)]
    return [i for i in ids if names[i] in poor]


def random_divisions(cases: Cases, size: int = 20, seeds: int = 20) -> Iterator[Division]:
    """Yield random divisions, whole groups."""
    for seed in range(seeds):
        cal = list(cases.split(cal=size, seed=seed).cal.ids)
        yield Division(f"seed {seed}", cal, [i for i in cases.ids if i not in cal])


def choose(rule: Rule, names: list[str], pools: Mapping[str, Pool], cal: list[str]) -> Fitted:
    """Choose by a rule, and fit."""
    with ExitStack() as stack:
        for name, value in rule.patches().items():
            stack.enter_context(patch(name, value))
        fitted = compare(names, {name: pool.data(cal) for name, pool in pools.items()}, rule.config).fitted
    calibrator, beta = fitted.calibrator, fitted.certificate.inverse_temperature
    if rule.mixture and isinstance(calibrator, ConvexCalibrator) and beta is not None:
        calibrator.set_theta(SHARE * calibrator.theta() + (1 - SHARE) * calibrator.anchor(beta))
    return fitted


def run(job: tuple[Division, str], pools: Mapping[str, Pool]) -> dict[str, Any]:
    """Choose by a rule, and measure on the test cases beside temperature scaling and nothing in the same pooling."""
    torch.set_num_threads(1)
    (division, rule), start = job, time.process_time()
    names = candidates(pools[POOLINGS[0]].cases.num_classes)
    fitted = choose(RULES[rule], names, pools, division.cal)
    spent, pool = time.process_time() - start, pools[fitted.pooling]
    test = pool.voxels.subset(division.test)
    worth = {"default": measure(fitted.calibrator, test, CPU)}
    for name in ("ts", "identity"):
        worth[name] = measure(fit_to(name, pool.data(division.cal), RULES[rule].config).calibrator, test, CPU)
    chosen = fitted.certificate.details
    return {
        "division": division.name,
        "rule": rule,
        "cal": len(division.cal),
        "test": len(division.test),
        "groups": chosen["groups"],
        "chosen": fitted.calibrator.name,
        "pooling": fitted.pooling,
        "verdicts": {f"{one['name']} ({one['pooling']})": one["verdict"] for one in chosen["candidates"]},
        "bounds": len(fitted.certificate.active_bounds),
        "seconds": round(spent, 1),
        "means": {name: _means(found) for name, found in worth.items()},
        "against": {name: _against(worth["default"], worth[name], pool.cases) for name in ("ts", "identity")},
    }


def regret(job: tuple[Division, str], pools: Mapping[str, Pool]) -> dict[str, Any]:
    """Choose by a rule, and measure what is chosen and every candidate in its pooling on the test cases."""
    torch.set_num_threads(1)
    division, rule = job
    names = candidates(pools[POOLINGS[0]].cases.num_classes)
    fitted = choose(RULES[rule], names, pools, division.cal)
    pool = pools[fitted.pooling]
    test = pool.voxels.subset(division.test)
    means = {}
    for name in names:
        one = fitted if name == fitted.calibrator.name else fit_to(name, pool.data(division.cal), RULES[rule].config)
        means[name] = _means(measure(one.calibrator, test, CPU))
    best = min(means, key=lambda name: means[name][0])
    return {
        "division": division.name, "rule": rule, "chosen": fitted.calibrator.name, "means": means, "best": best,
        "regret": means[fitted.calibrator.name][0] - means[best][0],
    }  # fmt: skip


def _means(worth: Mapping[str, Worth]) -> list[float]:
    near = [one.ba_ece for one in worth.values() if one.ba_ece is not None]
    columns = [one.nll for one in worth.values()], [one.ece for one in worth.values()], near or [0.0]
    return [float(np.mean(column)) for column in columns]


def _against(own: Mapping[str, Worth], other: Mapping[str, Worth], cases: Cases) -> dict[str, Any]:
    """Return the mean of each difference with its error over groups; of NLL also all of cases, and their worst 5 %."""
    found: dict[str, Any] = {}
    for what in ("nll", "ece", "ba_ece"):
        ids, differences = paired(own, other, what)
        if not ids:  # no labels have a boundary
            ids, differences = [""], [0.0]
        found[what] = list(noise(differences, group_names(cases, ids), folds=1))
        if what == "nll":
            found |= {"worst": worst_mean(differences), "cases": [round(one, 5) for one in differences]}
    return found


_POOLS: dict[str, Pool] = {}  # what the processes of one run share, by fork


def _line(work: Callable[..., dict[str, Any]], job: tuple[Division, str]) -> str:
    return json.dumps(work(job, _POOLS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=["new", "old"])
    parser.add_argument("--regret", action="store_true")
    parser.add_argument("--size", type=int, default=20, help="with --regret: of the calibration set")
    parser.add_argument("--voxels", type=int, default=20_000)
    parser.add_argument("--most", type=int, help="only so many divisions")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    protocol = load_protocol(Path(__file__).parent / "protocols" / f"{args.task}.toml", args.root)
    for pooling in POOLINGS:
        cases = open_task(protocol.tasks[0], pooling, args.root, None).cases
        drawn = SampledVoxels(cases, args.voxels, 0, lambda: None, args.workers, contexts=USUAL)
        _POOLS[pooling] = Pool(cases, drawn)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_stamp(args.output.parent)
    lines = args.output.read_text("utf-8").splitlines() if args.output.exists() else []
    known = {(row["division"], row["rule"]) for row in map(json.loads, lines)}
    first = _POOLS[POOLINGS[0]]
    found = random_divisions(first.cases, args.size) if args.regret else divisions(TASKS[args.task], first)
    every = list(found)[: args.most]
    jobs = [(one, rule) for one in every for rule in args.rules if (one.name, rule) not in known]
    work = partial(_line, regret if args.regret else run)
    with (
        args.output.open("a", encoding="utf-8") as file,
        multiprocessing.get_context("fork").Pool(args.workers) as pool,
    ):
        for number, line in enumerate(pool.imap_unordered(work, jobs)):
            file.write(line + "\n")
            file.flush()
            print(f"\r{number + 1} of {len(jobs)}", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
