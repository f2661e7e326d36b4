"""The sums of real cases that ``paper/trust.py`` divides again and again, computed once.

    python -m paper.trust_sums paper/protocols/cardiac.toml --root DATA -o sums/cardiac.npz --fit 24
    python -m paper.trust_sums paper/protocols/camvid.toml --root DATA -o sums/blur.npz --fit 20 --from blur

A calibrator is chosen by the rule of ``segcal fit`` on a few cases (whole groups), mean logits; all other cases are
summed with it and without. ``--from`` sums the predictions of another folder of member folders instead, with the same
calibrator, and ``--break`` spoils the clean ones: ``permuted`` classes, the last two ``swapped``, logits ``rescaled``
(doubled), or ``probabilities`` given as logits. Beside the sums stand the aggregators of ``aggrigator`` (0.1), if it is
installed, on the entropy of the probabilities.
The output has numbers of cases and no image content.
"""

import argparse
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import segcal
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, Cases
from segcal.evaluation.slabs import calibrated_scores
from segcal.fitting.artifact import load, save
from segcal.numerics import winner
from segcal.pooling import pool_members
from segcal.trust.estimates import SumTable
from segcal.trust.sums import sum_case


def peers(case: Case, calibrator: Calibrator) -> dict[str, float]:
    """Return what each aggregator makes of the entropy map."""
    try:
        from aggrigator.methods import AggregationMethods as Methods
        from aggrigator.uncertainty_maps import UncertaintyMap
    except ImportError:
        return {}
    scores = calibrated_scores(calibrator, case, "cpu")
    entropy = torch.special.entr(torch.softmax(scores, 0)).sum(0).numpy()
    found = UncertaintyMap(entropy, case.logits.argmax(0).numpy())
    flat = entropy if entropy.ndim == 2 else entropy.reshape(-1, entropy.shape[-1])
    return {
        "aggrigator mean": Methods.mean(found),
        "aggrigator sum": Methods.sum(found),
        "aggrigator 95 % quantile": Methods.quantile(found, 0.95),
        "aggrigator mean above 90 % quantile": Methods.above_quantile_mean(found, 0.9),
        "aggrigator mean above 0.3": Methods.above_threshold_mean(found, 0.3),
        "aggrigator share above 0.3": Methods.above_threshold_volume(found, 0.3),
        "aggrigator patch of 20": Methods.patch_aggregation(UncertaintyMap(flat), 20),
        "aggrigator class mean, equal weights": Methods.class_mean_w_equal_weights(
            found, found.class_indices.tolist() == [0]
        ),
    }


def spoil(member: Tensor, how: str | None) -> Tensor:
    """Return the logits of a member as they are, with all classes or the last two in another order, doubled, ..."""
    if how == "permuted":
        return member.roll(1, 0)
    if how == "swapped":
        return torch.cat([member[:-2], member[-2:].flip(0)])
    if how == "rescaled":
        return 2 * member
    return torch.softmax(member, 0) if how == "probabilities" else member


def collect(cases: Cases, calibrators: dict[str, Calibrator], how: str | None) -> dict[str, np.ndarray]:
    """Return all columns of all cases, by stage."""
    sums: dict[str, list[object]] = {stage: [] for stage in calibrators}
    rated: dict[str, list[dict[str, float]]] = {stage: [] for stage in calibrators}
    for number, case_id in enumerate(cases.ids):
        case = cases.checked(case_id)
        members = [spoil(member.float(), how) for member in cases.member_logits(case_id)]
        logits, disagreement = pool_members(members, "mean_logits", disagreement=True)
        case = Case(case.id, logits, case.labels, case.mask, case.spacing, None, case.group, False, disagreement)
        for stage, calibrator in calibrators.items():
            sums[stage].append(sum_case(calibrator, case, [winner(each, axis=0) for each in members]))
            rated[stage].append(peers(case, calibrator))
        print(f"\r{number + 1} of {len(cases)}", end="", flush=True)
    out: dict[str, np.ndarray] = {}
    for stage, found in sums.items():
        table = SumTable.of(found)
        out |= {f"{stage}/{field.name}": np.array(getattr(table, field.name)) for field in fields(table)}
        tables = [each.histograms for each in found if each.histograms is not None]
        if tables:
            names = (f"{stage}/{name}" for name in ("by_prob", "by_rank", "all_by_prob"))
            out |= dict(zip(names, np.stack(tables, 1), strict=True))
        for name in rated[stage][0]:
            out[f"{stage}/peer/{name}"] = np.array([each[name] for each in rated[stage]])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--fit", type=int, required=True, help="cases that the calibrator is chosen on")
    parser.add_argument("--from", dest="source", type=Path, help="a folder of member folders")
    parser.add_argument("--break", dest="how", choices=["permuted", "swapped", "rescaled", "probabilities"])
    parser.add_argument("--most", type=int, help="so many of the cases")
    args = parser.parse_args()
    task = load_protocol(args.protocol).tasks[0]
    cases = open_task(task, "mean_logits", args.root).cases
    split = cases.split(cal=args.fit, seed=0)
    place = args.output.parent / f"calibrator_{task.name}"
    if not place.exists():
        save(segcal.choose(split.cal), place)
    fitted = load(place)
    print(fitted)
    tested = split.test
    if args.source is not None:
        folders = sorted(args.source.iterdir())
        known = {path.name.split(".")[0] for path in (args.root / task.labels).iterdir()}
        labels = args.root / task.labels if next(folders[0].iterdir()).stem in known else None  # those of a copy
        tested = segcal.open_cases(folders, labels, options=replace(task.options, pooling="mean_logits", groups=None))
    tested = tested.subset(tested.ids[: args.most] if args.most else tested.ids)
    calibrators = {"before": segcal.make_calibrator("identity", cases.num_classes), "after": fitted.calibrator}
    found = collect(tested, calibrators, args.how)
    found["chosen"] = np.array(str(fitted.calibrator.name))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.output, **found)


if __name__ == "__main__":
    main()
