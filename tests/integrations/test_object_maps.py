"""Maps of objects: overlapping regions have files of their own, pictures have maps too."""

import numpy as np
import pytest

import segcal
from segcal.integrations.viewers import ObjectMaps

nibabel = pytest.importorskip("nibabel")


def test_regions_of_pictures_have_a_file_each(tmp_path):
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(12, 2, 9, 7)).astype("float32")
    labels = (np.where(logits[:, 0] + rng.logistic(size=(12, 9, 7)) > 0, 1, 0) + (logits[:, 1] > 1)).astype("uint8")
    for folder in ("in", "labels", "maps"):
        (tmp_path / folder).mkdir()
    for k in range(12):
        np.save(tmp_path / "in" / f"c{k:02d}.npy", logits[k])
        np.save(tmp_path / "labels" / f"c{k:02d}.npy", labels[k])
    options = {"kind": "logits", "regions": {"whole": [1, 2], "the core": [2]}}
    cases = segcal.open_cases(tmp_path / "in", labels=tmp_path / "labels", **options)
    fitted = segcal.learn_objects(segcal.fit("ts", cases.subset(cases.ids[:3])), cases.subset(cases.ids[3:]))
    result = segcal.objects(fitted, cases)
    write = ObjectMaps(fitted, cases, result.rows, tmp_path / "maps")
    files = write("c04")
    assert list(files) == write.places("c04")
    names = [f"c04_{name}_{kind}.nii.gz" for name in ("whole", "thecore") for kind in ("objects", "real")]
    assert [path.name for path in files] == names
    for place, name in enumerate(("whole", "the core")):
        numbers = np.asarray(nibabel.load(files[2 * place]).dataobj).T.reshape(9, 7)
        assert np.array_equal(numbers > 0, logits[4, place] > 0)
        real = np.asarray(nibabel.load(files[2 * place + 1]).dataobj).T.reshape(9, 7)
        for row in result.rows:
            if (row.case, row.structure) == ("c04", name):
                assert real[numbers == row.object] == pytest.approx(np.full(row.voxels, row.p_real))
        assert not real[numbers == 0].any()
