import json

import segcal

SMALL = ["--voxels", "60", "--lam", "0.01", "--mu", "0.01"]


def test_the_split_is_written_and_reused_and_the_artefact_knows_it(folders, run, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--splits", tmp_path / "splits.json"]
    first = run(*call, "--seed", 3, "--val-share", 0.3, "--test-share", 0.2, "--json").document
    written = json.loads((tmp_path / "splits.json").read_text())
    assert first["calibration_ids"] == written["cal"]
    assert first["validation_ids"] == written["val"]
    assert len(written["test"]) == 1
    again = run(*call, "--seed", 4, "--overwrite", "--json").document
    assert again["calibration_ids"] == first["calibration_ids"]
    assert again["validation_ids"] == first["validation_ids"]
    fitted = segcal.load(tmp_path / "cal")
    assert list(fitted.calibration_ids) == written["cal"]
    assert fitted.fingerprint


def test_groups_stay_together(folders, run, tmp_path):
    document = run(
        "fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--groups", "([abc])\\d", "--json",
        "--val-share", 0.3,
    ).document  # fmt: skip
    letters = [{case_id[0] for case_id in document[f"{part}_ids"]} for part in ("calibration", "validation")]
    assert not letters[0] & letters[1]
    assert len(document["calibration_ids"]) + len(document["validation_ids"]) == 6


def test_one_group_cannot_be_divided(folders, run, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--groups", "[abc](.*)", *SMALL, "--test-share", 0.3]
    done = run(*call, "--val-share", 0.3)
    assert done.code == 2
    assert "there are 2 groups, which are kept whole, but 3 are needed to divide them" in done.err


def test_validation_cases_of_their_own(folders, make_folders, run, tmp_path):
    other = make_folders(ids=("v1", "v2"), folder="validation", seed=9)
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "dc", "--voxels", 60]
    document = run(*call, "--validation", other.predictions, "--json").document
    assert document["validation_ids"] == ["v1", "v2"]
    assert len(document["calibration_ids"]) == 6


def test_calibration_cases_cannot_validate(folders, run, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--validation", folders.predictions)
    assert done.code == 2
    assert "but calibration cases cannot judge the fit. Leave it out" in done.err
    assert not (tmp_path / "cal").exists()


def test_without_a_share_for_validation_all_cases_are_for_the_fit(folders, run, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    assert "fitted on 6 cases; the calibrator remembers which" in " ".join(done.out.split())


def test_a_broken_case_does_not_move_the_others_between_the_parts(folders, run, tmp_path):
    call = ["fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--json", "--val-share", 0.3]
    whole = run(*call).document
    broken = whole["calibration_ids"][0]
    (folders.predictions / f"{broken}.npy").write_bytes(b"nothing")
    done = run(*call, "--overwrite")
    assert done.code == 3
    assert done.document["calibration_ids"] == whole["calibration_ids"][1:]
    assert done.document["validation_ids"] == whole["validation_ids"]
