"""nnU-Net's own regions from end to end: predict, calibrate, and give the result back to nnU-Net's own commands.

    python -m benchmarks.nnunet_folds IMAGES LABELS WORK --iterations 40 --regions
    python -m paper.regions.nnunet WORK LABELS

Both folds predict the held-out images with probabilities; a calibrator is fitted to the folds' own held-out cases and
applied to both predictions; ``nnUNetv2_ensemble`` joins both before and after, the first of which is calibrated too,
and ``nnUNetv2_evaluate_folder`` measures them all. Printed are voxels whose label is another one than before
calibration, and Dice of every region.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np

FOLDS = ("0", "1")


def call(*command: object) -> None:
    """Run a command of the same environment, and stop if it fails."""
    program, *rest = map(str, command)
    subprocess.run([Path(sys.executable).parent / program, *rest], check=True)


def changed(one: Path, other: Path) -> tuple[int, int]:
    """Return how many voxels of two folders of label maps differ, and how many there are."""
    pairs = [
        [np.asarray(nibabel.load(folder / path.name).dataobj) for folder in (one, other)]
        for path in one.glob("*.nii.gz")
    ]
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.size for a, _ in pairs)


def main() -> None:
    """Predict, calibrate, ensemble, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder of benchmarks/nnunet_folds.py --regions")
    parser.add_argument("labels", type=Path)
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(work / name)
    os.environ |= {"nnUNet_compile": "false"}
    (dataset,), (model,) = (work / "raw").iterdir(), (work / "results").glob("*/*")
    made = work / "made"
    for fold in FOLDS:
        where = ["-i", dataset / "imagesTs", "-o", made / f"plain_{fold}"]
        how = ["-d", dataset.name, "-c", "2d", "-f", fold, "-npp", 1, "-nps", 1, "-device", "cpu", "--disable_tta"]
        call("nnUNetv2_predict", *where, *how, "--save_probabilities")
    call("segcal", "nnunet", "fit", "-d", dataset.name, "-c", "2d", "--calibrator", made / "calibrator")
    for fold in FOLDS:
        call("segcal", "apply", made / "calibrator", made / f"plain_{fold}", "-o", made / f"calibrated_{fold}")
    for what in ("plain", "calibrated"):
        folders = [made / f"{what}_{fold}" for fold in FOLDS]
        call("nnUNetv2_ensemble", "-i", *folders, "-o", made / f"{what}_both", "-np", 1, "--save_npz")
    call("segcal", "apply", made / "calibrator", made / "plain_both", "-o", made / "both_calibrated")
    results = {f"calibrated_{fold}": f"plain_{fold}" for fold in FOLDS}
    results |= dict.fromkeys(("calibrated_both", "both_calibrated"), "plain_both")
    files = ["-djfile", dataset / "dataset.json", "-pfile", model / "plans.json"]
    for name in {*results, *results.values()}:
        call("nnUNetv2_evaluate_folder", chosen.labels, made / name, *files, "-np", 1, "--chill")
    for name, plain in results.items():
        means = [json.loads((made / each / "summary.json").read_text())["mean"] for each in (plain, name)]
        dice = [{region: round(row["Dice"], 4) for region, row in mean.items()} for mean in means]
        flips, voxels = changed(made / plain, made / name)
        print(f"{name}: {flips} of {voxels} voxels changed; Dice {dice[0]}, then {dice[1]}")


if __name__ == "__main__":
    main()
