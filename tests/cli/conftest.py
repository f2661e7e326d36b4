import json
import pickle
import shutil
from typing import NamedTuple

import numpy as np
import pytest
import torch

import segcal
from segcal.cli import main
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig

AFFINE = np.array([[-2, 0, 0, 5], [0, 3, 0, -7], [0, 0, 1.5, 1], [0, 0, 0, 1.0]])
IDS = ("a1", "a2", "b1", "b2", "c1", "c2")
SPACE = (4, 5, 6)


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture
def run(capsys):
    """Run a command in this process; return its exit code and what it printed."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Done(stopped.value.code, printed.out, printed.err)

    return call


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=0))
    return (shifted / shifted.sum(axis=0)).astype(np.float32)


def write_npy(folder, case_id, scores):
    np.save(folder / f"{case_id}.npy", scores)


def write_nifti(folder, case_id, scores):
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(scores, 0, -1), AFFINE), folder / f"{case_id}.nii.gz")


def write_nnunet(folder, case_id, scores):
    nibabel = pytest.importorskip("nibabel")
    values = softmax(scores)
    values[:, 0] = np.array([1, 0, 0], np.float32)[:, None, None]  # outside the box nothing was predicted
    np.savez_compressed(folder / f"{case_id}.npz", probabilities=values)
    properties = {
        "spacing": [1.0, 2.0, 3.0],
        "shape_before_cropping": SPACE,
        "bbox_used_for_cropping": [[1, 4], [0, 5], [0, 6]],
    }
    (folder / f"{case_id}.pkl").write_bytes(pickle.dumps(properties))
    image = nibabel.Nifti1Image(values.argmax(0).astype(np.uint8).transpose(), AFFINE)
    nibabel.save(image, folder / f"{case_id}.nii.gz")
    names = {"background": 0, "liver": 1, "tumour": 2}
    (folder / "dataset.json").write_text(json.dumps({"labels": names, "file_ending": ".nii.gz"}))
    plans = {"transpose_forward": [0, 1, 2], "image_reader_writer": "SimpleITKIO"}
    (folder / "plans.json").write_text(json.dumps(plans))


WRITE = {"npy": write_npy, "nifti": write_nifti, "nnunet": write_nnunet}
# What a user has to declare about each.
DECLARED = {"npy": ["--kind", "logits"], "nifti": ["--kind", "logits"], "nnunet": [], "store": []}


class Folders(NamedTuple):
    predictions: object
    labels: object
    options: list
    scores: dict

    @property
    def both(self):
        return [self.predictions, self.labels, *self.options]


@pytest.fixture
def make_folders(tmp_path):
    """A factory of folders with six cases of three classes, overconfident, and their labels."""

    def make(name="npy", ids=IDS, space=SPACE, folder="predictions", seed=5, dtype=np.float32):
        rng = np.random.default_rng(seed)
        predictions, labels = tmp_path / folder, tmp_path / "labels"
        predictions.mkdir()
        labels.mkdir(exist_ok=True)
        scores = {}
        for case_id in ids:
            scores[case_id] = (4 * rng.normal(size=(3, *space))).astype(dtype)
            truth = (scores[case_id] / 3 + rng.gumbel(size=scores[case_id].shape)).argmax(0).astype(np.uint8)
            WRITE[name](predictions, case_id, scores[case_id])
            if name == "npy":
                np.save(labels / f"{case_id}.npy", truth)
            else:
                nibabel = pytest.importorskip("nibabel")
                stored = truth.transpose() if name == "nnunet" else truth
                nibabel.save(nibabel.Nifti1Image(stored, AFFINE), labels / f"{case_id}.nii.gz")
        return Folders(predictions, labels, DECLARED[name], scores)

    return make


@pytest.fixture
def folders(make_folders):
    return make_folders()


@pytest.fixture(scope="session")
def fits(tmp_path_factory):
    """Calibrators that were fitted before, by what they were fitted to: the cases of a name are always the same."""
    return tmp_path_factory.mktemp("fits"), {}


@pytest.fixture
def fit_once(fits, run, tmp_path):
    """Fit a temperature into `cal`, or copy one that was fitted to the same cases with the same options."""

    def fit(folders, *options):
        place, known = fits
        key = (folders.predictions.name, *folders.scores, *folders.options, *options)
        if key not in known:
            done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", *options)
            assert done.code == 0, done
            known[key] = shutil.copytree(tmp_path / "cal", place / str(len(known))), done
        else:
            shutil.copytree(known[key][0], tmp_path / "cal")
        return tmp_path / "cal", known[key][1]

    return fit


@pytest.fixture
def calibrator(folders, fit_once):
    """A temperature fitted to four of the six cases of `folders`; two are held out."""
    return fit_once(folders, "--test-share", "0.34")[0]


@pytest.fixture
def learned(make_folders, fit_once):
    """A factory of calibrators whose fit remembers cases of two letters and more, and of folders of new ones."""

    def make(*options, name="npy", letters="abcdef", each=2, new=("n1", "n2", "m1")):
        old = make_folders(name, ids=[f"{letter}{k + 1}" for letter in letters for k in range(each)], folder="old")
        calibrator, done = fit_once(old, *options)
        folders = make_folders(name, ids=new, folder="new", seed=9)
        return [calibrator, folders.predictions, *folders.options], folders, done

    return make


@pytest.fixture
def saved(tmp_path):
    """Save a calibrator of a name and of parameters as a fit would have done."""

    def save(name, classes=3, pooling="single", make=None, **parameters):
        made = segcal.make_calibrator(name, classes) if make is None else make
        with torch.no_grad():
            for key, value in parameters.items():
                getattr(made, key).copy_(torch.as_tensor(value))
        certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 100, 100)
        folder = tmp_path / f"saved-{len(list(tmp_path.glob('saved-*')))}"
        segcal.save(Fitted(made, certificate, FitConfig(), pooling=pooling), folder)
        return folder

    return save


@pytest.fixture
def files_of():
    """Return the bytes of every file of a folder, by its relative path."""
    return lambda folder: {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
