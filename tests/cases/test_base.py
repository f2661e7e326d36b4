import pickle

import numpy as np
import pytest
import torch

from segcal import FitConfig, fit
from segcal.cases import ArrayCases, Case, CaseError, Cases, open_cases
from segcal.errors import InputError


def make(number, **options):
    return ArrayCases([np.zeros((2, 3), np.float32)] * number, ids=[f"p{i // 2}_{i}" for i in range(number)], **options)


def test_iteration_reads_in_order_and_a_subset_keeps_it():
    cases = make(5)
    assert [case.id for case in cases] == list(cases.ids)
    assert cases.subset(["p2_4", "p0_1"]).ids == ("p0_1", "p2_4")
    with pytest.raises(InputError, match="ids contains 'zz', but there is no such case among 5"):
        cases.subset(["zz"])


def test_a_split_keeps_groups_together_those_that_are_given_or_those_of_the_collection():
    split = make(10).split(cal=4, val=2, seed=1, group=r"(p\d)_")
    patients = [{case_id.split("_")[0] for case_id in part.ids} for part in split]
    assert [len(part) for part in split] == [4, 2, 4]
    assert len(set.union(*patients)) == sum(map(len, patients))
    cases = make(6, groups=["x", "x", "y", "y", "z", "z"])
    assert {len(part) for part in cases.split(cal=3, val=2)} == {2}


@pytest.mark.parametrize(("cal", "val"), [(0, 1), (3, -1), (4, 2)])
def test_impossible_sizes_are_refused(cal, val):
    with pytest.raises(InputError, match=rf"cal \+ val is {cal} \+ {val}, but there are 5 cases"):
        make(5).split(cal=cal, val=val)


@pytest.mark.parametrize(
    ("kind", "pooling", "reason"),
    [
        ("logits", "mean_logits", None),
        ("logits", None, None),
        ("logits", "mean_probs", "pooling is 'mean_probs'"),
        ("probs", "single", "kind is 'probs'"),
        ("sigmoid", None, "kind is 'sigmoid'"),
    ],
)
def test_the_offset_is_lost_in_a_softmax_and_who_needs_it_is_refused_with_the_reason(kind, pooling, reason):
    cases = ArrayCases([np.full(3 if kind == "sigmoid" else (2, 3), 0.5, np.float32)], kind=kind, pooling=pooling)
    assert cases.has_offset is (reason is None)
    cases.require_offset("ts", translation_invariant=True)
    if reason is None:
        cases.require_offset("vs", translation_invariant=False)
        return
    match = f"calibrator 'vs' depends on the offset .* but {reason}, so the offset is gone"
    with pytest.raises(InputError, match=match):
        cases.require_offset("vs", translation_invariant=False)


def test_a_case_error_survives_a_process_border():
    error = pickle.loads(pickle.dumps(CaseError("a", "x.npy is cut")))
    assert (error.case_id, error.reason, str(error)) == ("a", "x.npy is cut", "case 'a': x.npy is cut")


def test_the_fingerprint_sees_ids_kind_and_file_sizes(npy_folder):
    predictions, labels, _ = npy_folder
    first = open_cases(predictions, labels, kind="logits")
    before = first.fingerprint()
    assert first.subset(["a1"]).fingerprint() != before
    assert open_cases(predictions, kind="logits").fingerprint() != before
    np.save(labels / "a1.npy", np.zeros((4, 5), np.int64))
    assert first.fingerprint() != before


class Foreign(Cases):
    """What somebody else may write: nothing in it is checked."""

    def __init__(self, logits, labels, num_classes=3, **more):
        super().__init__(["ours", "theirs"], num_classes, "logits")
        rng = np.random.default_rng(0)
        good = Case("ours", torch.as_tensor(rng.normal(size=(3, 40))).float(), torch.as_tensor(np.arange(40) % 3))
        self._cases = {"ours": good, "theirs": Case("theirs", logits, labels, **more)}

    def read(self, case_id):
        return self._cases[case_id]


PLAIN = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(50) % 3


NAN = PLAIN.clone()
NAN[1, 7] = torch.nan
WRONG = {
    "labels too large": ((PLAIN, LABELS * 1000), {}, "labels contains 1000, 2000, but there are 3 classes"),
    "labels too small": ((PLAIN, LABELS - 4), {}, "labels contains -4, -3, -2, but there are 3 classes"),
    "labels of another shape": ((PLAIN, LABELS[:49]), {}, r"labels has space \(49,\), but its logits have \(50,\)"),
    "labels that are no numbers of classes": ((PLAIN, LABELS / 2), {}, "labels has dtype float32, but whole numbers"),
    "logits that are not finite": ((NAN, LABELS), {}, "logits has 1 values that are NaN or infinite"),
    "logits that are whole numbers": ((PLAIN.int(), LABELS), {}, "logits has dtype int32, but floating-point"),
    "too many classes": ((PLAIN.repeat(2, 1), LABELS), {}, r"logits has shape \(6, 50\), but \(3, \*space\)"),
    "too few classes": ((PLAIN[:2], LABELS % 2), {}, r"logits has shape \(2, 50\), but \(3, \*space\)"),
    "an image of another size": (
        (PLAIN, LABELS),
        {"image": torch.zeros(1, 49)},
        r"image has shape \(1, 49\), but \(channels, 50\) is needed, like its logits",
    ),
    "disagreement of another size": (
        (PLAIN, LABELS),
        {"disagreement": torch.zeros(49)},
        r"disagreement has shape \(49,\), but \(50,\) is needed, like its logits",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "voxels"), [("cms_ap", 20_000), ("isotonic", "all"), ("selective", 20_000)])
def test_no_fit_reads_beyond_its_arrays_whoever_made_the_case(wrong, name, voxels):
    arguments, more, text = WRONG[wrong]
    with pytest.raises(CaseError, match=f"^case 'theirs': {text}"):
        fit(name, Foreign(*arguments, **more), config=FitConfig(voxels=voxels))


def test_what_sees_neighbours_refuses_it_too():
    cases = Foreign(PLAIN.reshape(3, 5, 10), LABELS.reshape(5, 10) * 1000)
    with pytest.raises(CaseError, match=r"case 'theirs': labels contains 1000"):
        fit("lts", cases.subset(["theirs"]))


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (PLAIN.clone().requires_grad_(), LABELS),
        (PLAIN.T.contiguous().T, LABELS.int()),
        (PLAIN.numpy(), LABELS.numpy().astype(np.uint8)),
        (PLAIN, torch.stack([LABELS, LABELS], 1)[:, 0].int()),
    ],
    ids=["with a gradient", "classes last in memory", "numpy and small integers", "every other label"],
)
def test_unusual_but_right_cases_are_fitted_like_usual_ones(logits, labels):
    usual = fit("cms_ap", Foreign(PLAIN, LABELS)).calibrator
    found = fit("cms_ap", Foreign(logits, labels)).calibrator
    assert torch.equal(found.weight, usual.weight)


def test_the_old_name_of_the_kind_warning_works_for_one_release_and_says_so():
    case = Case("a", torch.zeros(2, 3), kind_warning="all whole numbers")
    with pytest.warns(FutureWarning, match=r"`Case\.doubt` is the old name of `Case\.kind_warning`"):
        assert case.doubt == "all whole numbers"
