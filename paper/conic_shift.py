"""Test calibrators of street scenes on corrupted pictures: ``python -m paper.conic_shift RESULTS DATA -o FILE``.

RESULTS is what ``segcal benchmark paper/protocols/conic.toml`` wrote: its calibrators, fitted on clean pictures,
are read and nothing is fitted. DATA holds ``STRENGTH.json`` and ``pred_STRENGTH/camvid/member_M`` for each strength:
what `corrupt.py` wrote, and the predictions of its pictures; and ``labels``. Of every division those test pictures are
measured that have a corrupted copy. FILE gets one row per strength, division and calibrator.
"""

import argparse
import json
from pathlib import Path

import segcal
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.results import read_results
from segcal.studies.corruptions import STRENGTHS

TASK, POOLING = "camvid", "mean_logits"
CALIBRATORS = ("identity", "ts", "cms_ap", "conic", "conic_class")
METRICS = ("nll", "ece", "ba_ece", "ace", "flip_rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    ignore = load_protocol(Path(__file__).parent / "protocols" / "conic.toml").task(TASK).options.ignore
    rows: list[dict[str, object]] = []
    for strength in STRENGTHS:
        members = sorted((args.data / f"pred_{strength}" / TASK).glob("member_*"))
        every = segcal.open_cases(members, args.data / "labels", kind="logits", pooling=POOLING, ignore=ignore)
        pictures = json.loads((args.data / f"{strength}.json").read_text(encoding="utf-8"))["pictures"]
        kinds = {Path(name).stem: kind for name, kind in pictures.items()}
        for unit in read_results(args.results).repeats(TASK, f"conic({POOLING})"):
            cases = every.subset(name for name in unit.header.test if name in every.ids)
            folder = args.results / "calibrators" / TASK / f"repeat_{unit.unit.repeat}"
            for name in CALIBRATORS:
                own = None if name == "identity" else segcal.load(folder / f"{name}-{POOLING}")
                rows.append(
                    {"task": f"{TASK}_{strength}", "repeat": unit.unit.repeat, "row": name}
                    | {"corruption": [kinds[case_id] for case_id in sorted(cases.ids)]}
                    | measured(cases, own)
                )
                print(rows[-1]["task"], unit.unit.repeat, name, rows[-1]["means"], flush=True)
    args.output.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def measured(cases: segcal.Cases, fitted: segcal.Fitted | None) -> dict[str, object]:
    """Return means, and numbers of all cases in the order of their ids."""
    wanted = METRICS if fitted is not None else METRICS[:-1]
    found = segcal.evaluate(cases, fitted, metrics=wanted, replicates=1)
    stage, means = ("before", found.before) if found.after is None else ("after", found.after)
    rows = sorted((row for row in found.rows if row["stage"] == stage), key=lambda row: row["case"])
    numbers = {name: [row[name] for row in rows] for name in wanted if name != "ace"}
    return {"means": {name: means[name].value for name in wanted}, "cases": numbers}


if __name__ == "__main__":
    main()
