import numpy as np

import segcal

SMALL = ["--voxels", "60", "--lam", "0.01", "--mu", "0.01"]


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


def test_where_nothing_can_be_held_out_nothing_is_changed_and_that_is_said(folders, run, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--groups", "()[abc]", *SMALL)
    assert done.code == 0
    assert "The cases are one group, so that none can be held out" in done.out
    assert type(segcal.load(tmp_path / "cal").calibrator).__name__ == "Identity"


def test_the_comparison_of_every_region_is_printed(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rng = np.random.default_rng(0)
    for folder in ("scores", "labels"):
        (tmp_path / folder).mkdir()
    for number in range(6):
        depth = rng.normal(size=(8, 9)) * 2
        np.save(tmp_path / "scores" / f"c{number}.npy", 3 * np.stack([depth, depth - 1]).astype(np.float32))
        truth = (depth + rng.logistic(size=depth.shape) > np.array([0.0, 1.0])[:, None, None]).sum(0)
        np.save(tmp_path / "labels" / f"c{number}.npy", truth)
    declared = ["--kind", "logits", "--regions", "whole=1+2,core=2"]
    both = tmp_path / "scores", tmp_path / "labels"
    done = run("fit", *both, "-o", tmp_path / "cal", *declared, *SMALL)
    assert done.code == 0, done
    for region, certificate in segcal.load(tmp_path / "cal").certificate.details["regions"].items():
        details = certificate["details"]
        assert f"*{region}: {details['chosen']}" in done.out
        assert f"{region}: {details['reason']}" in " ".join(done.out.split())
        assert f"{region}: NLL {certificate['nll']:.5f}" in done.out
        for row in details["candidates"]:
            assert row["nll"] is None or f"{row['nll']:.5f}" in done.out
    named = run("fit", *both, "-o", tmp_path / "named", *declared, *SMALL, "--calibrator", "ts")
    assert "whole: NLL" in named.out
    assert "* is taken" not in named.out
