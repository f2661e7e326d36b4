import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import segcal
from segcal.fitting.artifact import check_vacant
from segcal.fitting.certificate import Fitted


@pytest.fixture(scope="module")
def cases() -> segcal.ArrayCases:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 7, 11)).astype("float32") * 3
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(0)
    return segcal.ArrayCases(logits=[logits], labels=[labels], ids=["first"], class_names=["sky", "road", "Straße"])


@pytest.fixture(scope="module")
def fitted(cases: segcal.ArrayCases) -> Fitted:
    return segcal.fit("cms_ap", cases)


@pytest.mark.parametrize("name", segcal.CALIBRATORS)
def test_a_loaded_calibrator_answers_bit_for_bit_as_the_saved_one(name, fitted, randomise, tmp_path):
    fitted = replace(fitted, calibrator=randomise(segcal.make_calibrator(name, 3)).requires_grad_(False))
    segcal.save(fitted, tmp_path / "calibrator")
    loaded = segcal.load(tmp_path / "calibrator")
    logits = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(loaded.calibrator(logits), fitted.calibrator(logits))
    assert not loaded.calibrator(logits).requires_grad
    assert loaded.certificate == fitted.certificate
    assert loaded.config == fitted.config
    assert loaded.class_names == ("sky", "road", "Straße")
    assert loaded.calibration_ids == ("first",)
    assert type(loaded.calibrator) is type(fitted.calibrator)


def test_the_folder_holds_two_plain_files(fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "deep" / "calibrator")
    assert sorted(child.name for child in folder.iterdir()) == ["calibrator.json", "weights.safetensors"]
    assert sorted(child.name for child in folder.parent.iterdir()) == ["calibrator"]
    description = json.loads((folder / "calibrator.json").read_text("utf-8"))
    assert description["schema"] == 1
    assert description["name"] == "cms_ap"
    assert description["certificate"]["kkt_residual"] <= 1e-6


def test_a_place_is_vacant_if_it_holds_no_calibrator(fitted, tmp_path):
    check_vacant(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_vacant(tmp_path / "empty")
    segcal.save(fitted, tmp_path / "cal")
    with pytest.raises(
        segcal.InputError, match=r"cal holds a calibrator already, but a fit does not replace one unasked"
    ):
        check_vacant(tmp_path / "cal")
    check_vacant(tmp_path / "cal", overwrite=True)


def test_a_folder_with_other_files_is_not_overwritten(fitted, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(segcal.InputError, match="exists and is not a calibrator of segcal"):
        segcal.save(fitted, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_failure_while_writing_leaves_the_old_artefact_and_nothing_else(fitted, cases, tmp_path, monkeypatch):
    segcal.save(fitted, tmp_path / "calibrator")

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="no space"):
        segcal.save(segcal.fit("ts", cases), tmp_path / "calibrator")
    monkeypatch.undo()
    assert segcal.load(tmp_path / "calibrator").calibrator.num_parameters() == 30
    assert [child.name for child in tmp_path.iterdir()] == ["calibrator"]


def test_what_is_not_a_fit_cannot_be_saved(fitted, tmp_path):
    with pytest.raises(segcal.InputError, match=r"fitted is ConditionalAffine, but the result of segcal.fit is needed"):
        segcal.save(fitted.calibrator, tmp_path / "calibrator")


def _edit(folder: Path, change) -> None:
    file = folder / "calibrator.json"
    description = json.loads(file.read_text("utf-8"))
    change(description)
    file.write_text(json.dumps(description), "utf-8")


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _resize(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["weight"] = tensors["weight"][:, :1]
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "weights.safetensors")


DAMAGES = {
    "no folder": (lambda f: f.rename(f.with_name("elsewhere")), "has no calibrator.json, but a folder written by"),
    "no weights": (lambda f: (f / "weights.safetensors").unlink(), "has no weights.safetensors, but it belongs to"),
    "truncated json": (lambda f: _truncate(f / "calibrator.json"), "is not readable as JSON"),
    "truncated weights": (lambda f: _truncate(f / "weights.safetensors"), "cut short, edited or mixed up"),
    "edited json": (lambda f: _edit(f, lambda d: d.update(pooling="mean_probs")), "was changed after it was written"),
    "newer": (lambda f: _edit(f, lambda d: d.update(schema=99)), "has schema 99, but this segcal reads up to 1"),
    "no schema": (lambda f: _edit(f, lambda d: d.pop("schema")), "does not name its schema"),
    "a pickle": (lambda f: (f / "weights.safetensors").write_bytes(pickle.dumps([1])), "is not the one that"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_artefact_raises_and_never_answers(damage, fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    spoil, text = DAMAGES[damage]
    spoil(folder)
    with pytest.raises(segcal.ArtifactError, match=text):
        segcal.load(folder)


def _resign(folder: Path, change) -> None:
    """Change the description and make its digests right again, as a determined editor would."""
    from segcal.fitting.artifact import _digest

    def both(description):
        import hashlib

        change(description)
        weights = (folder / "weights.safetensors").read_bytes()
        description["weights_sha256"] = hashlib.sha256(weights).hexdigest()
        description["digest"] = _digest(description)

    _edit(folder, both)


def test_weights_of_another_size_are_refused_even_with_a_right_digest(fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    _resize(folder)
    _resign(folder, lambda d: None)
    with pytest.raises(segcal.ArtifactError, match=r"holds .* but cms_ap needs"):
        segcal.load(folder)


def test_an_unknown_calibrator_asks_for_an_update(fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    _resign(folder, lambda d: d.update(name="from_the_future"))
    with pytest.raises(segcal.ArtifactError, match=r"no calibrator is named 'from_the_future'.* Update segcal"):
        segcal.load(folder)


def test_a_missing_entry_is_named(fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    _resign(folder, lambda d: d.pop("pooling"))
    with pytest.raises(segcal.ArtifactError, match="lacks or misspells 'pooling'"):
        segcal.load(folder)


KILLED = """
import os, sys
from pathlib import Path
import segcal
from segcal import atomic
rename = Path.rename
def then_die(path, to):
    rename(path, to)
    os.kill(os.getpid(), 9)
if sys.argv[2] == "between":  # as where two renames are needed
    atomic._exchange = lambda one, other: False
    Path.rename = then_die
else:
    atomic._remove = lambda beside: os.kill(os.getpid(), 9)
segcal.save(segcal.load(sys.argv[1]), sys.argv[1])
"""


@pytest.mark.parametrize("moment", ["between", "after"])
def test_a_refit_that_is_killed_leaves_a_calibrator(moment, fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    killed = subprocess.run([sys.executable, "-c", KILLED, folder, moment], check=False)
    assert killed.returncode == -9
    assert segcal.load(folder).fingerprint == fitted.fingerprint
    segcal.save(fitted, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_link_stays_a_link(fitted, tmp_path):
    segcal.save(fitted, tmp_path / "place")
    (tmp_path / "link").symlink_to("place")
    segcal.save(fitted, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert segcal.load(tmp_path / "link").fingerprint == fitted.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "place"]


def test_weights_of_somebody_else_are_not_replaced(fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    (folder / "weights.safetensors").write_bytes(b"precious")
    with pytest.raises(segcal.InputError, match="that is not as segcal wrote it, or other weights, but only a calib"):
        segcal.save(fitted, folder)
    segcal.save(fitted, folder, overwrite=True)
    segcal.load(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_classes": 10**12}, r"cannot make: num_classes is 1000000000000, but at most 1048576 are possible"),
        ({"num_classes": 10_000}, r"cannot make: cms_ap for 10000 classes needs 7450\.6 GiB, but at most"),
        ({"name": "isotonic", "options": {"knots": 10**12}}, r"isotonic for 3 classes needs 14901\.2 GiB"),
        ({"name": "lts", "options": {"seed": "x"}}, r"lts has the options \{'seed': 'x'\}, but it cannot be made"),
        ({"name": ["ts"]}, "lacks or misspells"),
        ({"options": 3}, "lacks or misspells"),
        ({"config": {"voxels": 0}}, r"lacks or misspells voxels is 0"),
        ({"certificate": 5}, "lacks or misspells"),
        ({"grouping": "("}, "has a grouping that is no regular expression"),
        ({"grouping": "patient"}, "grouping, which has not one group"),
    ],
)
def test_a_description_of_something_absurd_is_refused_before_it_is_made(change, match, fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    _resign(folder, lambda d: d.update(change))
    with pytest.raises(segcal.ArtifactError, match=match):
        segcal.load(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": ' + "9" * 5000 + "}"])
def test_json_beyond_the_bounds_is_one_sentence(text, fitted, tmp_path):
    folder = segcal.save(fitted, tmp_path / "calibrator")
    (folder / "calibrator.json").write_text(text)
    with pytest.raises(segcal.ArtifactError, match=r"calibrator\.json is not readable as JSON"):
        segcal.load(folder)


def test_parameters_beyond_any_fit_are_refused(cases, tmp_path):
    folder = segcal.save(segcal.fit("ts", cases), tmp_path / "calibrator")
    save_file({"inverse_temperature": torch.tensor(1e300, dtype=torch.float64)}, folder / "weights.safetensors")
    _resign(folder, lambda d: None)
    with pytest.raises(
        segcal.ArtifactError, match=r"weights\.safetensors holds values that are .* or beyond 1e\+20, but"
    ):
        segcal.load(folder)


def test_weights_of_another_type_or_far_too_many_are_refused(cases, tmp_path):
    folder = segcal.save(segcal.fit("ts", cases), tmp_path / "calibrator")
    save_file({"inverse_temperature": torch.tensor(1.0).to(torch.float8_e4m3fn)}, folder / "weights.safetensors")
    _resign(folder, lambda d: None)
    with pytest.raises(segcal.ArtifactError, match=r"holds .*float8_e4m3fn.* but ts needs .*float64"):
        segcal.load(folder)
    with (folder / "weights.safetensors").open("r+b") as file:
        file.truncate(10**13)  # takes no space
    with pytest.raises(segcal.ArtifactError, match="has 10000000000000 bytes, which ts cannot need"):
        segcal.load(folder)
