import pytest

nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")


def test_maps_for_a_viewer(make_folders, run, tmp_path):
    folders = make_folders("nnunet")
    assert run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts").code == 0
    done = run("view", tmp_path / "cal", folders.predictions, "-o", tmp_path / "maps", "--to", "contours", "--json")
    assert done.code == 0, done.err
    assert len(done.document["files"]) == 3 * 6
    shown = nibabel.load(tmp_path / "maps" / "a1" / "liver_levels.nii.gz")
    label = nibabel.load(folders.predictions / "a1.nii.gz")
    assert shown.shape == label.shape
    # The last level of a class lies inside its mask.
    assert set(label.get_fdata()[shown.get_fdata() == 3]) == {1}
    again = run("view", tmp_path / "cal", folders.predictions, "-o", tmp_path / "maps")
    assert again.code == 2
    assert "is not empty, but files for a viewer go into a new folder" in again.err
