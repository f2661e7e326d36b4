"""Labels of several raters in folders: missing raters, formats, what decides the identity of a case."""

import numpy as np
import pytest
import torch
from PIL import Image

import segcal
from segcal import InputError
from segcal.cases import open_cases

SPACE = (6, 9)


@pytest.fixture
def folders(tmp_path):
    """Predictions of five cases; raters a, b (npy) and c (png), who lacks case 1."""
    rng = np.random.default_rng(0)
    for name in ("p", "a", "b", "c"):
        (tmp_path / name).mkdir()
    for number in range(5):
        np.save(tmp_path / "p" / f"case{number}.npy", rng.normal(size=(3, *SPACE)).astype("f4"))
        for rater in "abc":
            labels = rng.integers(0, 3, SPACE).astype("u1")
            labels[0, 0] = 9 if rater == "b" else labels[0, 0]
            if rater == "c" and number != 1:
                Image.fromarray(labels).save(tmp_path / "c" / f"case{number}.png")
            elif rater != "c":
                np.save(tmp_path / rater / f"case{number}.npy", labels)
    return tmp_path


def opened(folders, labels="abc", **declared):
    return open_cases(folders / "p", [folders / each for each in labels], kind="logits", ignore=9, **declared)


def test_folders_are_raters_and_a_case_may_lack_some(folders):
    cases = opened(folders)
    for case in cases:
        maps = [np.load(folders / each / f"{case.id}.npy").astype(int) for each in "ab"]
        if case.id != "case1":
            maps.append(np.asarray(Image.open(folders / "c" / f"{case.id}.png")).astype(int))
        votes = case.votes.count[case.votes.code.numpy()]
        assert (votes == np.stack([sum(own == c for own in maps) for c in range(3)], -1)).all()
    assert cases.checked("case1").votes.cast.max() == 2
    assert segcal.evaluate(cases, metrics=["nll"]).before["rater_entropy"].value > 0
    notes = [problem.text for problem in segcal.check(cases).problems]
    assert "labels are the majority of 3 raters; 1 cases lack one or more." in notes


def test_an_order_of_folders_changes_nothing_that_is_counted(folders):
    first, second = (segcal.evaluate(opened(folders, each)).before for each in ("abc", "cba"))
    assert {name: one.value for name, one in first.items()} == pytest.approx(
        {name: one.value for name, one in second.items()}, nan_ok=True
    )


def test_a_case_without_any_rater_is_refused(folders):
    (folders / "a" / "case1.npy").unlink()
    opened(folders)
    (folders / "b" / "case1.npy").unlink()
    with pytest.raises(InputError, match="a lacks case case1"):
        opened(folders)


def test_identity_knows_every_rater(folders):
    cases = opened(folders)
    before, size = cases.identity("case0"), cases.fingerprint()
    labels = np.load(folders / "b" / "case0.npy")
    np.save(folders / "b" / "case0.npy", np.where(labels == 2, 1, labels))
    assert opened(folders).identity("case0") != before
    assert opened(folders, rater_weights=[1, 1, 2]).identity("case0") != before
    assert opened(folders, "ab").fingerprint() != size
    assert {path.parent.name for path in cases.sources("case0")} == {"p", "a", "b", "c"}


def test_a_file_may_hold_shares_or_bits(folders):
    for name in ("bits", "shares"):
        (folders / name).mkdir()
    rng = np.random.default_rng(1)
    for number in range(5):
        np.save(folders / "p" / f"case{number}.npy", rng.normal(size=(2, *SPACE)).astype("f4"))
        bits = rng.integers(0, 8, SPACE)
        np.save(folders / "bits" / f"case{number}.npy", bits)
        share = sum(bits >> rater & 1 for rater in range(3)) / 3
        np.save(folders / "shares" / f"case{number}.npy", share.astype("f4"))
    found = []
    for name in ("bits", "shares"):
        cases = open_cases(folders / "p", folders / name, kind="logits", raters=name, num_raters=3)
        found.append(segcal.evaluate(cases, metrics=["nll", "brier", "ece", "accuracy"]).before)
    assert {name: one.value for name, one in found[0].items()} == pytest.approx(
        {name: one.value for name, one in found[1].items()}
    )


def test_two_declarations_of_one_thing_are_refused(folders):
    with pytest.raises(InputError, match="several folders are 'maps'"):
        opened(folders, raters="bits", num_raters=3)
    with pytest.raises(InputError, match="one whole number from 1 for each of 3 raters"):
        opened(folders, rater_weights=[1, 1])


def test_what_is_kept_of_a_case_has_its_votes(folders):
    cases = opened(folders).keeping(1 << 20)
    assert cases.read("case0").votes is cases.read("case0").votes


@pytest.mark.parametrize("form", ["axis", "shares", "bits"])
def test_a_loader_gives_what_arrays_give(form):
    rng = np.random.default_rng(2)
    classes = 2 if form == "bits" else 3
    logits = rng.normal(size=(7, classes, 9, 8)).astype("f4")
    maps = rng.integers(0, classes, (7, 4, 9, 8))
    labels = {
        "axis": maps,
        "shares": np.stack([(maps == c).mean(1) for c in range(classes)], 1).astype("f4"),
        "bits": (maps << np.arange(4)[:, None, None]).sum(1),
    }[form]
    declared = {"raters": form, "num_raters": 4}
    batches = [(torch.from_numpy(logits[k : k + 3]), torch.from_numpy(labels[k : k + 3])) for k in (0, 3, 6)]
    wanted = segcal.as_cases(list(logits), list(maps), raters="axis")
    for data in (batches, iter(batches), torch.utils.data.DataLoader(_Pairs(logits, labels), batch_size=2)):
        cases = segcal.as_cases(data, **declared)
        for case, other in zip(cases, wanted, strict=True):
            assert (case.votes.count[case.votes.code.numpy()] == other.votes.count[other.votes.code.numpy()]).all()
    model = torch.nn.Identity()
    run = segcal.as_cases(batches, model=model, **declared)
    assert segcal.fit("ts", run).calibrator.temperature == pytest.approx(
        segcal.fit("ts", wanted).calibrator.temperature, rel=1e-9
    )
    with pytest.raises(InputError, match="the number of raters must be declared"):
        segcal.as_cases(batches, raters=form)


class _Pairs(torch.utils.data.Dataset):
    """Scores and labels of one case after the other."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, number):
        return tuple(column[number] for column in self.columns)
