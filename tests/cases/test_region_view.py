"""Cases of regions in memory and in folders, and one region of them as two classes."""

import numpy as np
import pytest
import torch

import segcal
from segcal.cases import as_cases
from segcal.cases.region_view import region_view
from segcal.errors import InputError, SuspicionWarning

REGIONS = {"whole": [1, 2, 3], "core": [2, 3]}


def scores(cases=2, seed=0):
    return np.random.default_rng(seed).normal(size=(cases, 2, 5, 7)).astype(np.float32)


def labels(cases=2, seed=1):
    return np.random.default_rng(seed).integers(0, 5, size=(cases, 5, 7))


def test_a_region_is_two_classes_off_and_on():
    z, y = scores(), labels()
    y[0, 0, 0] = 255
    cases = segcal.ArrayCases(list(z), list(y), ignore=255, kind="logits", regions=REGIONS, groups=["p", "q"])
    assert repr(cases) == "ArrayCases: 2 cases of 2 regions, logits"
    assert cases.class_names == ("whole", "core")
    whole = cases.checked("0")
    assert torch.equal(whole.logits, torch.from_numpy(z[0]))
    core = region_view(cases, 1)
    case = core.checked("0")
    assert (core.num_classes, core.class_names, core.groups) == (2, ("not core", "core"), {"0": "p", "1": "q"})
    np.testing.assert_array_equal(case.logits, np.stack([np.zeros((5, 7)), z[0, 1]]))
    expected = np.where(y[0] == 255, -1, (y[0] == 2) | (y[0] == 3))
    np.testing.assert_array_equal(case.labels, expected)
    assert not core.has_offset
    assert core.fingerprint() != region_view(cases, 0).fingerprint()
    with pytest.raises(InputError, match="a sigmoid has none"):
        segcal.fit("vs", cases)


@pytest.mark.parametrize("pooling", ["mean_logits", "mean_probs"])
def test_members_are_pooled_region_by_region(pooling):
    members = [scores(seed=n) for n in range(3)]
    cases = as_cases(members, labels(), kind="logits", pooling=pooling, regions=REGIONS).with_disagreement()
    case = cases.checked("1")
    z = np.stack([member[1] for member in members]).astype(np.float64)
    p = 1 / (1 + np.exp(-z))
    mean = p.mean(0)
    expected = z.mean(0) if pooling == "mean_logits" else np.log(mean / (1 - mean))
    np.testing.assert_allclose(case.logits, expected, atol=1e-5)

    def entropy(q):
        return -q * np.log(q) - (1 - q) * np.log(1 - q)

    np.testing.assert_allclose(case.disagreement, entropy(mean) - entropy(p).mean(0), atol=1e-5)
    view = region_view(cases, 0)
    assert torch.equal(view.checked("1").disagreement, case.disagreement[0])
    assert [tuple(member.shape) for member in view.member_logits("1")] == [(2, 5, 7)] * 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_probabilities_become_logits_on_the_same_side(dtype):
    half = dtype(0.5)
    values = np.array([0.0, 1.0, half, np.nextafter(half, dtype(1)), np.nextafter(half, dtype(0)), 0.9], dtype)
    cases = segcal.ArrayCases([np.stack([values, values])], kind="sigmoid", regions=REGIONS)
    logits = cases.checked("0").logits
    np.testing.assert_array_equal(logits[0] > 0, values > half)
    assert float(logits[0, 2]) == 0.0
    assert bool(torch.isfinite(logits).all())
    np.testing.assert_allclose(torch.sigmoid(logits[0, 5]), values[5], rtol=1e-6)


def test_folders_read_like_arrays(tmp_path):
    z, y = scores(), labels()
    for folder in ("scores", "labels"):
        (tmp_path / folder).mkdir()
    for number in range(2):
        np.save(tmp_path / "scores" / f"c{number}.npy", z[number])
        np.save(tmp_path / "labels" / f"c{number}.npy", y[number])
    how = {"kind": "logits", "regions": REGIONS, "regions_class_order": [1, 2]}
    cases = segcal.open_cases(tmp_path / "scores", tmp_path / "labels", **how)
    held = segcal.ArrayCases(list(z), list(y), ids=["c0", "c1"], **how)
    for case_id in cases.ids:
        one, other = cases.checked(case_id), held.checked(case_id)
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.labels, other.labels)
    checked = segcal.check(cases)
    assert checked.usable
    assert [line["name"] for line in checked.class_table()] == ["whole", "core"]
    share = float((z[:, 1] > 0).mean())
    assert checked.class_table()[1]["predicted"] == pytest.approx(share)
    assert checked.class_table()[0]["labels"] == pytest.approx(float(((y > 0) & (y < 4)).mean()))
    assert checked.class_table() == segcal.check(held).class_table()
    right = np.stack([(z[0, 0] > 0) == np.isin(y[0], [1, 2, 3]), (z[0, 1] > 0) == np.isin(y[0], [2, 3])]).all(0)
    assert checked.rows[0].accuracy == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"kind": "probs", "regions": REGIONS}, "regions are declared and kind is 'probs', but classes of a softmax "
         "exclude each other and have no regions. Pass kind='sigmoid' for a probability per region, kind='logits' for "
         "its logit, or leave regions out."),
        ({"kind": "logits", "regions": REGIONS, "class_names": ["air", "edge", "core"]}, "region 'whole' has the label "
         "3, but the labels are 0, 1, 2. Correct the region."),
        ({"kind": "sigmoid", "regions_class_order": [1]}, "regions_class_order is given without regions, but it is "
         "about them. Pass regions= too."),
        ({"kind": "sigmoid", "regions": {**REGIONS, "inner": [3]}}, "logits of case '0' has shape (2, 5, 7), but "
         "(3, *space) is needed, one output per region. Declare the regions of the model, in the order of its "
         "outputs."),
        ({"kind": "sigmoid", "regions": REGIONS}, "logits of case '0' has values from -2.325 to 1.96, but "
         "probabilities lie between 0 and 1. If these are logits, declare kind='logits'."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(more, sentence):
    with pytest.raises(InputError) as found:
        segcal.ArrayCases(list(scores()), list(labels()), **more)
    assert str(found.value) == sentence


def test_a_softmax_declared_as_regions_is_told():
    probs = torch.softmax(torch.from_numpy(scores(seed=4)), 1).numpy()
    cases = segcal.ArrayCases(list(probs), list(labels()), kind="sigmoid", regions=REGIONS)
    sentence = "0: probabilities of all regions sum to 1 at 100 % of the voxels, as those of a softmax do."
    with pytest.warns(SuspicionWarning, match=sentence):
        segcal.evaluate(cases, metrics=["nll"])
    assert any("sum to 1 at 100 %" in problem.text for problem in segcal.check(cases).problems)


def test_what_is_for_classes_alone_says_so(tmp_path):
    cases = segcal.ArrayCases(list(scores()), list(labels()), kind="logits", regions=REGIONS)
    with pytest.raises(InputError) as found:
        segcal.cases.convert(cases, tmp_path / "store")
    assert str(found.value) == (
        "the cases have regions, but a store is for classes that exclude each other. Use segcal fit, evaluate, audit, "
        "report and apply for regions."
    )
    with pytest.raises(
        InputError, match="is for regions, but trust and monitor are for classes that exclude each other"
    ):
        segcal.trust(segcal.learn_trust(segcal.fit("ts", cases), cases), cases)
