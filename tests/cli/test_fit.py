"""``segcal fit`` as a user calls it: who competes, which cases decide, what is said and kept, and what is refused."""

import json
import os

import numpy as np
import pytest

import segcal
from segcal.cli.fit import worse_than_nothing
from segcal.fitting.choice import Candidate
from segcal.target import claim_beside

SMALL = ["--voxels", "60", "--lam", "0.01", "--mu", "0.01"]


@pytest.fixture
def fit(folders, run, tmp_path):
    """Fit a temperature to all cases, into `cal`."""
    return lambda *options: run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", *options)


def kept(folder):
    return json.loads((folder / "calibrator.json").read_text("utf-8"))["reference"]


def test_the_default_is_chosen_among_those_that_keep_the_mask_and_the_table_is_printed_and_saved(
    folders, run, tmp_path
):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", *SMALL)
    assert done.code == 0, done
    fitted = segcal.load(tmp_path / "cal")
    details = fitted.certificate.details
    assert {"identity", "ts", "ets", "isotonic"} <= {row["name"] for row in details["candidates"]}
    assert fitted.calibrator.preserves in ("argmax", "order")
    assert fitted.calibrator.translation_invariant
    for row in details["candidates"]:
        assert row["nll"] is None or f"{row['nll']:.5f}" in done.out
    assert f"*{details['chosen']} " in done.out
    assert details["reason"] in " ".join(done.out.split())
    assert list(fitted.calibration_ids) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    one = run("fit", *folders.both, "-o", tmp_path / "one", "--groups", "()[abc]", *SMALL)
    assert one.code == 0
    assert "The cases are one group, so that none can be held out" in one.out
    assert type(segcal.load(tmp_path / "one").calibrator).__name__ == "Identity"


def test_what_must_be_kept_decides_who_competes(make_folders, run, tmp_path):
    folders = make_folders(ids=[f"c{k:02}" for k in range(12)], space=(30, 20))
    names = {}
    for preserve in ("order", "none"):
        call = ["fit", *folders.both, "-o", tmp_path / preserve, "--preserve", preserve, *SMALL, "--json"]
        details = run(*call).document["certificate"]["details"]
        names[preserve] = {row["name"] for row in details["candidates"]}
    assert names["order"] == {"identity", "ts", "ets", "cms_op", "conic", "pts", "isotonic"}
    assert {"dc", "cdc", "ms_c", "vs_ti"} <= names["none"]
    assert not {"vs", "ms"} & names["none"]


def test_an_ensemble_is_pooled_as_declared_or_in_the_better_way(folders, make_folders, run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    other = make_folders(folder="second", seed=6)
    call = [folders.predictions, other.predictions, folders.labels, "--kind", "logits"]
    assert "6 cases of 2 members (best)" in run("check", *call).out
    done = run("fit", *call, "-o", tmp_path / "cal", *SMALL)
    assert done.code == 0
    assert "ts (mean_probs)" in done.out
    assert "ts (mean_logits)" in done.out
    assert segcal.load(tmp_path / "cal").pooling in ("mean_probs", "mean_logits")
    assert run("evaluate", *call, "--calibrator", tmp_path / "cal").code == 0  # pooled as the calibrator says
    assert run("fit", *call, "-o", tmp_path / "ts", "--calibrator", "ts").code == 0
    assert segcal.load(tmp_path / "ts").pooling in ("mean_probs", "mean_logits")
    assert run("fit", *call, "-o", tmp_path / "one", "--calibrator", "ts", "--pooling", "mean_probs").code == 0
    assert segcal.load(tmp_path / "one").pooling == "mean_probs"


def test_the_comparison_of_every_region_is_printed(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rng = np.random.default_rng(0)
    both = tmp_path / "scores", tmp_path / "labels"
    for folder in both:
        folder.mkdir()
    for number in range(6):
        depth = rng.normal(size=(8, 9)) * 2
        np.save(both[0] / f"c{number}.npy", 3 * np.stack([depth, depth - 1]).astype(np.float32))
        truth = (depth + rng.logistic(size=depth.shape) > np.array([0.0, 1.0])[:, None, None]).sum(0)
        np.save(both[1] / f"c{number}.npy", truth)
    declared = ["--kind", "logits", "--regions", "whole=1+2,core=2", *SMALL]
    done = run("fit", *both, "-o", tmp_path / "cal", *declared)
    assert done.code == 0, done
    for region, certificate in segcal.load(tmp_path / "cal").certificate.details["regions"].items():
        details = certificate["details"]
        assert f"*{region}: {details['chosen']}" in done.out
        assert f"{region}: {details['reason']}" in " ".join(done.out.split())
        assert f"{region}: NLL {certificate['nll']:.5f}" in done.out
        for row in details["candidates"]:
            assert row["nll"] is None or f"{row['nll']:.5f}" in done.out
    named = run("fit", *both, "-o", tmp_path / "named", *declared, "--calibrator", "ts")
    assert "whole: NLL" in named.out
    assert "* is taken" not in named.out


def test_the_split_is_written_and_reused_and_the_artefact_knows_it(fit, tmp_path):
    splits = ["--splits", tmp_path / "splits.json", "--json"]
    first = fit(*splits, "--seed", 3, "--val-share", 0.3, "--test-share", 0.2).document
    written = json.loads((tmp_path / "splits.json").read_text())
    assert (first["calibration_ids"], first["validation_ids"]) == (written["cal"], written["val"])
    assert len(written["test"]) == 1
    again = fit(*splits, "--seed", 4, "--overwrite").document
    assert (again["calibration_ids"], again["validation_ids"]) == (written["cal"], written["val"])
    fitted = segcal.load(tmp_path / "cal")
    assert list(fitted.calibration_ids) == written["cal"]
    assert fitted.fingerprint


def test_groups_stay_together_and_one_cannot_be_divided(fit):
    document = fit("--groups", "([abc])\\d", "--json", "--val-share", 0.3).document
    letters = [{case_id[0] for case_id in document[f"{part}_ids"]} for part in ("calibration", "validation")]
    assert not letters[0] & letters[1]
    assert len(document["calibration_ids"]) + len(document["validation_ids"]) == 6
    done = fit("--groups", "[abc](.*)", "--test-share", 0.3, "--val-share", 0.3, "--overwrite")
    assert done.code == 2
    assert "there are 2 groups, which are kept whole, but 3 are needed to divide them" in done.err


def test_validation_cases_are_others(folders, make_folders, fit, tmp_path):
    refused = fit("--validation", folders.predictions)
    assert refused.code == 2
    assert "but calibration cases cannot judge the fit. Leave it out" in refused.err
    assert not (tmp_path / "cal").exists()
    other = make_folders(ids=("v1", "v2"), folder="validation", seed=9)
    document = fit("--validation", other.predictions, "--json").document
    assert document["validation_ids"] == ["v1", "v2"]
    assert len(document["calibration_ids"]) == 6
    assert kept(tmp_path / "cal")["source"] == "validation"
    alone = fit("--overwrite")
    assert "fitted on 6 cases; the calibrator remembers which" in " ".join(alone.out.split())


def test_a_broken_case_does_not_move_the_others_between_the_parts(folders, fit):
    whole = fit("--json", "--val-share", 0.3).document
    (folders.predictions / f"{whole['calibration_ids'][0]}.npy").write_bytes(b"nothing")
    done = fit("--json", "--val-share", 0.3, "--overwrite")
    assert done.code == 3
    assert done.document["calibration_ids"] == whole["calibration_ids"][1:]
    assert done.document["validation_ids"] == whole["validation_ids"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ("out of fold", 6)),
        (["--val-share", "0.34"], ("validation", 2)),
        (["--val-share", "0.34", "--trust-on", "folds"], ("out of fold", 4)),
        (["--test-share", "0.34", "--trust-on", "test"], ("held out", 2)),
        (["--trust-on", "none"], None),
        (["--groups", "()"], None),
    ],
)
def test_cases_that_are_remembered_are_those_that_the_options_name(fit, tmp_path, options, expected):
    done = fit("--json", *options)
    assert done.code == 0, done
    found = kept(tmp_path / "cal")
    assert (None if found is None else (found["source"], len(found["cases"]))) == expected
    told = done.document["trust"]
    assert (None if told is None else (told["source"], told["cases"])) == expected


def test_folders_of_their_own_are_held_out(make_folders, fit, tmp_path):
    other = make_folders(ids=("x1", "x2", "x3"), folder="other", seed=8)
    assert fit("--trust-predictions", other.predictions).code == 0
    found = kept(tmp_path / "cal")
    assert [each["id"] for each in found["cases"]] == ["x1", "x2", "x3"]
    assert found["source"] == "held out"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test", "--trust-on is test, but no case was left unseen. Pass --test-share, or other folders."),
        ("validation", "--trust-on is validation, but there are no validation cases. Pass --validation, or folds."),
    ],
)
def test_cases_that_are_not_there_are_asked_for(fit, name, text):
    done = fit("--trust-on", name)
    assert done.code == 2
    assert text in done.err


def test_a_calibrator_is_replaced_only_if_asked_and_nothing_else_is(fit, files_of, tmp_path):
    cal = tmp_path / "cal"
    cal.mkdir()
    (cal / "a1.npy").write_text("precious")
    done = fit()
    assert done.code == 2
    assert "cal exists and is not a calibrator of segcal alone: it holds a1.npy, but a new or empty" in done.err
    assert files_of(cal) == {"a1.npy": b"precious"}
    (cal / "a1.npy").unlink()
    (cal / "calibrator.json").write_text('{"colour": "blue"}')
    done = fit()
    assert done.code == 2
    assert "holds a calibrator.json that is not as segcal wrote it, or other weights, but only a calibrator" in done.err
    assert done.err.endswith("Choose another name, or pass --overwrite.\n")
    assert files_of(cal) == {"calibrator.json": b'{"colour": "blue"}'}
    assert fit("--overwrite").code == 0
    written = files_of(cal)
    done = fit()
    assert done.code == 2
    assert done.err.endswith(
        "holds a calibrator already, but a fit does not replace one unasked. "
        "Choose another name, or pass --overwrite.\n"
    )
    assert files_of(cal) == written
    (cal / "notes.txt").write_text("precious")
    for more in ([], ["--overwrite"]):
        assert "exists and is not a calibrator of segcal" in fit(*more).err
    assert (cal / "notes.txt").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_known_before_the_work(folders, run, tmp_path):
    (tmp_path / "file").touch()
    (folders.predictions / "a1.npy").write_bytes(b"nothing")  # would be found first otherwise
    done = run("fit", *folders.both, "-o", tmp_path / "file" / "cal", "--calibrator", "ts", "--strict")
    assert done.code == 2
    assert "file is a file, but a folder is needed. Name a new one." in done.err


def test_two_at_once_are_one_too_many(folders, fit, run, tmp_path):
    with claim_beside(tmp_path / "cal"):
        done = fit()
        assert run("fit", *folders.both, "-o", tmp_path / "other", "--calibrator", "ts").code == 0
    assert done.code == 2
    assert f"is being written to by another segcal (process {os.getpid()}), but two would mix" in done.err
    assert fit().code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cal", "labels", "other", "predictions"]


def test_what_is_seldom_meant_is_a_line_before_the_fit(scene_folder, run, tmp_path):
    predictions, labels = scene_folder(change=lambda number, labels: labels[::-1])
    done = run("fit", predictions, labels, "-o", tmp_path / "cal", "--kind", "logits", "--calibrator", "ts", "--json")
    assert done.code == 0
    line, *later = done.err.splitlines()  # what comes of it, such as a temperature at its bound, is said after the fit
    assert not any("numpy.flip" in other for other in later)
    assert line.startswith(
        "warning: c0, c1, c2, c3, c4 and 1 more: labels fit clearly better as numpy.flip(labels, 0) ("
    )
    assert done.document["certificate"]["converged"]


@pytest.mark.parametrize(
    ("ece", "said"), [(0.02, ""), (0.01, ""), (0.0246, "cases, 0.0246, is higher than without"), (None, "")]
)
def test_an_ece_above_that_without_calibration_is_a_warning(ece, said):
    others = [Candidate("identity", "mean_logits", 0, ece=0.5), Candidate("identity", "mean_probs", 0, ece=0.02)]
    taken = Candidate("conic", "mean_probs", 80, ece=ece)
    found = worse_than_nothing([*others, taken], taken)
    assert said in found
    assert bool(found) == bool(said)
