"""One unit of volume everywhere: ml where every voxel has a size along three axes, else voxels, and never both."""

import numpy as np
import pytest

import segcal
from segcal.cases.nifti_file import open_nifti, spacing
from segcal.errors import InputError

nibabel = pytest.importorskip("nibabel")


def header(tmp_path, sizes, unit, shape=(5, 6, 7)):
    image = nibabel.Nifti1Image(np.zeros(shape, np.uint8), np.diag([*sizes, 1.0]))
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "a.nii")
    return spacing(open_nifti(tmp_path / "a.nii"), len(shape))


def test_a_header_that_nobody_filled_has_no_voxel_size(tmp_path):
    assert header(tmp_path, (1, 1, 1), "unknown") is None
    assert header(tmp_path, (1, 1, 1), "mm") == (1.0, 1.0, 1.0)
    assert header(tmp_path, (1, 1, 2), "unknown") == (
        1.0,
        1.0,
        2.0,
    )  # without a unit: millimetres, as all tools read it
    assert header(tmp_path, (2, 3, 1), "unknown", (5, 6)) == (2.0, 3.0)


@pytest.mark.parametrize(("unit", "factor"), [("meter", 1000.0), ("micron", 0.001)])
def test_other_units_of_length_become_millimetres(tmp_path, unit, factor):
    assert header(tmp_path, (2, 3, 4), unit) == pytest.approx((2 * factor, 3 * factor, 4 * factor))


def cases(count, sizes=None, seed=0, shape=(4, 5, 6), prefix="c"):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(count, 3, *shape)).astype(np.float32)
    labels = np.where(rng.random((count, *shape)) < 0.3, 0, logits.argmax(1))
    ids = [f"{prefix}{number:02d}" for number in range(count)]
    return segcal.as_cases(logits, labels, spacing=sizes, ids=ids)


@pytest.fixture(scope="module")
def plain():
    return segcal.fit("ts", cases(4, seed=9, prefix="fit"))


def volumes(fitted, new):
    return {(row["case"], row["structure"]): (row["volume"], row["unit"]) for row in segcal.trust(fitted, new).rows}


def test_a_picture_is_counted_in_voxels(plain):
    learned = segcal.learn_trust(plain, cases(12, [(2.0, 3.0)] * 12, shape=(6, 7)))
    assert learned.reference.unit == "voxels"
    assert {unit for _, unit in volumes(learned, cases(2, [(2.0, 3.0)] * 2, seed=1, shape=(6, 7))).values()} == {
        "voxels"
    }


def test_one_case_without_a_size_puts_all_into_voxels(plain):
    known = segcal.learn_trust(plain, cases(12, [(10.0, 2.0, 5.0)] * 12))
    assert known.reference.unit == "ml"
    in_ml = volumes(known, cases(2, [(10.0, 2.0, 5.0)] * 2, seed=1))
    in_voxels = volumes(known, cases(2, [(10.0, 2.0, 5.0), None], seed=1))
    assert {unit for _, unit in in_ml.values()} == {"ml"}
    assert {unit for _, unit in in_voxels.values()} == {"voxels"}
    for key, (value, _) in in_ml.items():
        assert in_voxels[key][0] == pytest.approx(10 * value)  # 100 cubic millimetres are a tenth of a millilitre


def test_a_mixed_reference_has_its_volumes_in_voxels(plain):
    text = {"biomarkers": {"size": "{class 1}"}}
    mixed = segcal.learn_trust(plain, cases(12, [(10.0, 2.0, 5.0), None] * 6))
    none = segcal.learn_trust(plain, cases(12))
    assert mixed.reference.unit == "voxels"
    new = cases(2, seed=1)
    found, expected = (segcal.trust(one, new, **text).biomarkers for one in (mixed, none))
    assert found == expected


def test_a_biomarker_needs_the_unit_of_its_reference(plain):
    known = segcal.learn_trust(plain, cases(12, [(10.0, 2.0, 5.0)] * 12))
    with pytest.raises(
        InputError, match="volumes of these cases are in voxels, but the reference has them in ml, and a"
    ):
        segcal.trust(known, cases(2, seed=1), biomarkers={"size": "{class 1}"})
