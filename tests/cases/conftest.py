import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.cases import CaseWriter


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=0))
    return shifted / shifted.sum(axis=0)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def calibrate():
    """Write one case divided by a temperature, with its decision kept if it is positive; return the case."""

    def write(cases, target, case_id="a", temperature=2.0, **options):
        case = cases.read(case_id)
        decision = case.logits.argmax(0) if temperature > 0 else None
        log_probs = torch.log_softmax(case.logits / temperature, 0)
        CaseWriter(cases, target, **options).write(case_id, log_probs, decision)
        return case

    return write


@pytest.fixture
def npy_folder(tmp_path, rng):
    """Logits of four cases, 3 classes, space (4, 5), with labels; returns folder, label folder and arrays."""
    predictions, labels = tmp_path / "predictions", tmp_path / "labels"
    predictions.mkdir()
    labels.mkdir()
    arrays = {}
    for case_id in ("a1", "a2", "b1", "b2"):
        arrays[case_id] = rng.normal(size=(3, 4, 5)).astype(np.float32)
        np.save(predictions / f"{case_id}.npy", arrays[case_id])
        np.save(labels / f"{case_id}.npy", rng.integers(0, 3, (4, 5)).astype(np.uint8))
    return predictions, labels, arrays


@pytest.fixture
def make_nnunet(rng):
    """A factory of nnU-Net folders: array (z, y, x) = (4, 5, 6), the box in the order `transpose`."""
    nibabel = pytest.importorskip("nibabel")

    def make(
        folder: Path,
        ids=("c1", "c2"),
        box=None,
        transpose=(0, 1, 2),
        labels=None,
        plans=True,
        json_folder=None,
        order=None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        space = (4, 5, 6)
        box = box or [[0, size] for size in space]
        names = labels or {"background": 0, "liver": 1, "tumour": 2}
        home = json_folder or folder
        regions = {} if order is None else {"regions_class_order": order}
        (home / "dataset.json").write_text(json.dumps({"labels": names, "file_ending": ".nii.gz", **regions}))
        if plans:
            content = {"transpose_forward": list(transpose), "image_reader_writer": "SimpleITKIO"}
            (home / "plans.json").write_text(json.dumps(content))
        probabilities = {}
        for case_id in ids:
            inside = np.zeros(space, bool)
            inside[tuple(slice(*pair) for pair in box)] = True
            values = softmax(rng.normal(size=(3, *space)) * 3).astype(np.float32)
            if order is not None:
                values = 1 / (1 + np.exp(-3 * rng.normal(size=(len(order), *space)))).astype(np.float32)
                values[0, 0, 0, :2] = 0.5
            outside = [1, 0, 0] if order is None else [0] * len(order)
            values[:, ~inside] = np.array(outside, np.float32)[:, None]
            probabilities[case_id] = values
            np.savez_compressed(folder / f"{case_id}.npz", probabilities=values)
            properties = {
                "sitk_stuff": {"spacing": (0.5, 1.0, 2.0), "origin": (0.0,) * 3, "direction": (1.0,) * 9},
                "spacing": [2.0, 1.0, 0.5],
                "shape_before_cropping": tuple(space[axis] for axis in transpose),
                "bbox_used_for_cropping": [
                    [np.int64(lo), np.int64(hi)] for lo, hi in (box[axis] for axis in transpose)
                ],
                "class_locations": {1: np.arange(8).reshape(2, 4)},
            }
            (folder / f"{case_id}.pkl").write_bytes(pickle.dumps(properties))
            decided = values.argmax(0)
            for number, label in enumerate(order or ()):
                decided = np.where(values[number] > 0.5, label, 0 if number == 0 else decided)
            image = nibabel.Nifti1Image(decided.astype(np.uint8).transpose(2, 1, 0), np.diag([0.5, 1, 2, 1]))
            nibabel.save(image, folder / f"{case_id}.nii.gz")
        return probabilities

    return make
