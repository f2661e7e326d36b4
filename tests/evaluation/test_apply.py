from dataclasses import replace

import numpy as np
import pytest
import torch

import segcal
from segcal import ArrayCases, make_calibrator, open_cases
from segcal.cases import Case, CaseError, CaseWriter
from segcal.errors import InputError, SuspicionWarning
from segcal.evaluation.apply import Applier, calibrate
from segcal.evaluation.evaluate import check_match
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig


def fitted(name="ts", classes=3, pooling="single", **parameters):
    calibrator = make_calibrator(name, classes)
    with torch.no_grad():
        for key, value in parameters.items():
            getattr(calibrator, key).copy_(torch.as_tensor(value))
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 1, 1)
    return Fitted(calibrator, certificate, FitConfig(), pooling=pooling, fingerprint="abc")


@pytest.fixture
def cases(tmp_path):
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        np.save(tmp_path / "in" / f"{name}.npy", (3 * rng.normal(size=(3, 5, 7))).astype(np.float32))
    return open_cases(tmp_path / "in", kind="logits")


@pytest.mark.parametrize(("name", "dtype"), [("ts", torch.float16), ("cms_ap", torch.float32), ("dc", torch.float64)])
def test_slabs_give_what_the_whole_gives(name, dtype, randomise, monkeypatch):
    calibrator = randomise(make_calibrator(name, 3), 2)
    logits = (3 * torch.randn(3, 50, 41, generator=torch.Generator().manual_seed(0))).to(dtype)
    with torch.no_grad():
        whole = calibrator(logits[None])[0]
    monkeypatch.setattr("segcal.evaluation.slabs.STEP_VALUES", 1)
    log_probs, before, flips = calibrate(calibrator, Case("a", logits))
    torch.testing.assert_close(log_probs, whole)
    assert torch.equal(before, logits.double().argmax(0))
    assert flips == int((whole.argmax(0) != before).sum())
    assert (flips == 0) == (name != "dc")


def test_what_does_not_fit_is_refused(cases):
    check_match(fitted(), cases)
    with pytest.raises(InputError, match="the calibrator has 4 classes, but the predictions have 3"):
        check_match(fitted(classes=4), cases)
    pooled = fitted(pooling="mean_probs")
    with pytest.raises(InputError, match="pooled by 'single', but the calibrator was fitted for 'mean_probs'"):
        check_match(pooled, cases)
    check_match(pooled, cases, ignore_pooling=True)
    check_match(fitted(pooling=None), cases)
    probabilities = ArrayCases([np.full((3, 4), 1 / 3, "float32")], kind="probs", pooling="single")
    check_match(fitted(), probabilities)
    with pytest.raises(InputError, match="'ms' depends on the offset of the logits, but kind is 'probs'"):
        check_match(fitted("ms"), probabilities)


def test_predictions_are_never_written_to(cases, tmp_path):
    before = (tmp_path / "in" / "a.npy").read_bytes()
    with pytest.raises(InputError, match="holds the predictions themselves, but they are never overwritten"):
        Applier(fitted(), cases, tmp_path / "in")
    assert (tmp_path / "in" / "a.npy").read_bytes() == before


def test_what_is_no_number_is_never_written(cases, tmp_path):
    applier = Applier(fitted(inverse_temperature=1e300), cases, tmp_path / "out")
    with pytest.raises(CaseError, match=r"105 calibrated values are not numbers, but all must be.* nothing was"):
        applier(cases.read("a"))
    assert not (tmp_path / "out" / "a.npy").exists()


def test_a_calibrator_of_single_folds_meets_something_else_with_a_warning(cases):
    single = replace(fitted(), origin="single folds")
    with pytest.warns(SuspicionWarning, match="fitted on predictions of single folds, and these come from elsewhere"):
        check_match(single, cases)
    cases.origin = "single folds"
    check_match(single, cases)
    check_match(fitted(), cases)


def test_a_folder_is_calibrated_in_one_call_which_goes_on_where_it_was(cases, tmp_path):
    own, seen = fitted(inverse_temperature=0.5), []
    (tmp_path / "in" / "b.npy").rename(tmp_path / "b.npy")
    first = open_cases(tmp_path / "in", kind="logits")
    done = segcal.apply(own, first, tmp_path / "out", progress=seen.append)
    assert (list(done.written), done.already_there, done.stale, done.voxels, done.flips) == (["a"], 0, [], 35, 0)
    assert str(done) == "cases: 1 written, 0 there already, 0 stale; 0 of 35 voxels changed their class"
    (tmp_path / "b.npy").rename(tmp_path / "in" / "b.npy")
    again = segcal.apply(own, cases, tmp_path / "out", progress=seen.append)
    assert (list(again.written), again.already_there) == (["b"], 1)
    assert seen == ["a", "a", "b"]
    expected = torch.log_softmax(cases.read("b").logits / 2, 0).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out" / "b.npy"), expected, atol=1e-6)
    stale = segcal.apply(own, cases.subset(["a"]), tmp_path / "out").stale
    assert stale == ["b"]


def test_cases_that_fail_are_left_out_if_someone_takes_them(cases, tmp_path):
    (tmp_path / "in" / "a.npy").write_bytes(b"broken")
    failed = []
    done = segcal.apply(fitted(), cases, tmp_path / "out", failed=failed.append)
    assert list(done.written) == ["b"]
    assert [error.case_id for error in failed] == ["a"]
    with pytest.raises(CaseError, match="case 'a'"):
        segcal.apply(fitted(), cases, tmp_path / "out")


def test_arrays_have_no_format_to_be_written_in(tmp_path):
    arrays = ArrayCases([np.zeros((3, 4), "float32")], kind="logits")
    with pytest.raises(InputError, match=r"cases is ArrayCases, but .* or call fitted\.calibrator on arrays"):
        segcal.apply(fitted(), arrays, tmp_path / "out")


@pytest.mark.parametrize("wrong", ["read", "written"])
def test_with_threads_the_same_is_written_and_the_same_fails(wrong, cases, tmp_path, monkeypatch):
    """With two threads a case is read while another is calibrated and a third one written."""
    bad, before = cases.ids[1], torch.get_num_threads()
    if wrong == "read":
        cases.members[0].path(bad).write_bytes(b"nothing")
    else:
        write = CaseWriter._write

        def refuse(self, case_id, *rest):
            if case_id == bad:
                raise InputError("scores are odd, but even ones are needed. Draw them again.")
            return write(self, case_id, *rest)

        monkeypatch.setattr(CaseWriter, "_write", refuse)
    found, raised = {}, set()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            failures, folder = [], tmp_path / f"out{number}"
            done = segcal.apply(fitted(), cases, folder, failed=failures.append)
            files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}
            found[number] = files, list(done.written), done.flips, [str(error) for error in failures]
            with pytest.raises(CaseError) as first:
                segcal.apply(fitted(), cases, tmp_path / f"strict{number}")
            raised.add(str(first.value))
    finally:
        torch.set_num_threads(before)
    assert found[1] == found[2]
    assert len(found[1][1]) == len(cases) - 1
    assert raised == set(found[1][3])
