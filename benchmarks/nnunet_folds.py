"""Train a small nnU-Net for real, two folds of a few iterations, for the last line of benchmarks/frameworks.py.

    python -m benchmarks.nnunet_folds IMAGES LABELS WORK [--cases 6] [--held-out 4] [--iterations 200] [--regions]

IMAGES and LABELS hold NIfTI volumes of the same names. nnU-Net plans and preprocesses them (configuration 2d), the plan
is cut to four stages and a small patch, and nnU-Net's own trainer runs on the CPU, each fold on one half of the cases;
held-out images stay for prediction. What to run next is printed. With ``--regions`` nnU-Net trains regions: labels from
k upwards are one, for every k.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch

NAME = "Dataset001_Folds"
STAGES = 4


def write_dataset(images: list[Path], labels: Path, folder: Path, cases: int, regions: bool) -> None:
    for part in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / part).mkdir(parents=True)
    highest = 0
    for number, path in enumerate(images):
        part, name = ("Tr" if number < cases else "Ts"), path.name.removesuffix(".nii.gz")
        shutil.copy(path, folder / f"images{part}" / f"{name}_0000.nii.gz")
        if part == "Tr":
            shutil.copy(labels / path.name, folder / "labelsTr" / path.name)
            highest = max(highest, int(np.asarray(nibabel.load(labels / path.name).dataobj).max()))
    every = range(1, highest + 1)
    own = {number: list(range(number, highest + 1)) if regions else number for number in every}
    names = {"background": 0, **{f"class{number}": labels for number, labels in own.items()}}
    described = {"channel_names": {"0": "image"}, "labels": names, "numTraining": cases, "file_ending": ".nii.gz"}
    if regions:
        described["regions_class_order"] = list(every)
    (folder / "dataset.json").write_text(json.dumps(described))


def make_small(plans: dict[str, Any]) -> None:
    """Cut the plan to what a CPU trains in minutes."""
    own = plans["configurations"]["2d"]
    own["patch_size"], own["batch_size"] = [128, 128], 2
    network = own["architecture"]["arch_kwargs"]
    for key in ("kernel_sizes", "strides", "n_conv_per_stage"):
        network[key] = network[key][:STAGES]
    network["n_conv_per_stage_decoder"] = network["n_conv_per_stage_decoder"][: STAGES - 1]
    network["n_stages"], network["features_per_stage"] = STAGES, [8, 16, 32, 32]


def train(preprocessed: Path, dataset: Path, fold: int, iterations: int) -> None:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    plans = json.loads((preprocessed / "nnUNetPlans.json").read_text()) | {"continue_training": False}
    described = json.loads((dataset / "dataset.json").read_text())
    trainer = nnUNetTrainer(plans, "2d", fold, described, device=torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 4, iterations // 4, 1
    trainer.run_training()
    trainer.perform_actual_validation(save_probabilities=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("work", type=Path, help="a new folder")
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--held-out", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--regions", action="store_true", help="nested regions instead of classes")
    args = parser.parse_args()
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(args.work / name)
    os.environ |= {"nnUNet_compile": "false", "nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1"}
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, plan_experiments, preprocess

    dataset, preprocessed = args.work / "raw" / NAME, args.work / "preprocessed" / NAME
    images = sorted(args.images.glob("*.nii.gz"))[: args.cases + args.held_out]
    write_dataset(images, args.labels, dataset, args.cases, args.regions)
    extract_fingerprints([1], num_processes=1)
    plan_experiments([1])
    plans = json.loads((preprocessed / "nnUNetPlans.json").read_text())
    make_small(plans)
    (preprocessed / "nnUNetPlans.json").write_text(json.dumps(plans))
    preprocess([1], configurations=("2d",), num_processes=(1,))
    names = [path.name.removesuffix(".nii.gz") for path in images[: args.cases]]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    splits = [{"train": halves[1], "val": halves[0]}, {"train": halves[0], "val": halves[1]}]
    (preprocessed / "splits_final.json").write_text(json.dumps(splits))
    os.environ |= {"nnUNet_n_proc_DA": "0"}  # in this process; planning wants at least one
    for fold in (0, 1):
        train(preprocessed, dataset, fold, args.iterations)
    model = args.work / "results" / NAME / "nnUNetTrainer__nnUNetPlans__2d"
    print(f"segcal nnunet fit -d 1 -c 2d --calibrator {args.work}/calibrator")
    print(f"python -m benchmarks.frameworks --nnunet {model} {dataset}/imagesTs {args.work}/calibrator")


if __name__ == "__main__":
    main()
