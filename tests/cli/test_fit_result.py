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
    assert f"{details['chosen']} <-" in done.out
    assert details["reason"] in " ".join(done.out.split())
    assert list(fitted.calibration_ids) == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_where_nothing_can_be_held_out_nothing_is_changed_and_that_is_said(folders, run, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--groups", "()[abc]", *SMALL)
    assert done.code == 0
    assert "The cases are one group, so that none can be held out" in done.out
    assert type(segcal.load(tmp_path / "cal").calibrator).__name__ == "Identity"
