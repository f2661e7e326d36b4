"""Train with every loss, calibrate afterwards, and measure both: the study behind docs/losses.md.

    python benchmarks/loss_study.py --folder study --out study/losses.zip --device cuda --trainers 4 --at-once 4

trains on the embedded tasks, the networks of the main table first. It can be stopped at any time and goes on from its
folder; the archive holds all that is finished. ``--small`` trains two epochs on a few cases, to try everything out.
"""

import argparse
from pathlib import Path

from segcal.demo.loss_study.run import Study, run_study
from segcal.demo.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="cases, results and claims; goes on from it")
    parser.add_argument("--out", type=Path, required=True, help="the archive of all results")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trainers", type=int, default=1, help="processes that train")
    parser.add_argument("--at-once", type=int, default=1, help="networks that each of them trains side by side")
    parser.add_argument("--measurers", type=int, default=1, help="processes that measure")
    parser.add_argument("--deadline", type=float, default=3600.0, help="seconds after which no network is begun")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--small", action="store_true", help="two epochs on a few cases")
    parser.add_argument("--limit", type=int, help="at most so many networks")
    options = parser.parse_args()
    study = Study(
        folder=options.folder,
        archive=options.out,
        device=options.device,
        trainers=options.trainers,
        at_once=options.at_once,
        measurers=options.measurers,
        deadline=options.deadline,
        seeds=options.seeds,
        tasks=tuple(options.tasks),
        small=options.small,
        limit=options.limit,
    )
    run_study(study, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
