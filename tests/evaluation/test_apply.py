import json
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["ts", "cms_ap", "dc"])
def test_slabs_give_what_the_whole_gives(dtype, name, randomise, monkeypatch):
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


def test_a_calibrator_that_sees_neighbours_gets_the_whole_picture():
    class Blurring(type(make_calibrator("ts", 3))):
        pointwise = False

        def scores(self, logits, context=None):
            assert context.image.shape == (1, 2, 5, 6)
            return logits - logits.mean(dim=(2, 3), keepdim=True)

    logits = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
    log_probs, _, flips = calibrate(Blurring(3), Case("a", logits, image=torch.zeros(2, 5, 6)))
    expected = torch.log_softmax(logits - logits.mean(dim=(1, 2), keepdim=True), 0)
    torch.testing.assert_close(log_probs, expected)
    assert flips == int((expected.argmax(0) != logits.argmax(0)).sum())


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


def test_a_case_is_written_and_then_no_longer_missing(cases, tmp_path):
    applier = Applier(fitted(inverse_temperature=0.5), cases, tmp_path / "out")
    assert applier.missing().ids == ("a", "b")
    case = cases.read("a")
    done = applier(case)
    assert (done.voxels, done.flips) == (35, 0)
    assert done.files == (str(tmp_path / "out" / "a.npy"),)
    expected = torch.log_softmax(case.logits / 2, 0).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out" / "a.npy"), expected, atol=1e-6)
    assert applier.missing().ids == ("b",)
    with_map = Applier(fitted(inverse_temperature=0.5), cases, tmp_path / "out", confidence_map=True)
    assert with_map.missing().ids == ("a", "b")
    assert len(with_map(case).files) == 2
    assert with_map.missing().ids == ("b",)


def test_a_folder_belongs_to_one_calibrator_and_one_kind(cases, tmp_path):
    Applier(fitted(inverse_temperature=0.5), cases, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert (record["calibrator"], record["kind"], record["fitted_on"]) == ("ts", "logits", "abc")
    Applier(fitted(inverse_temperature=0.5), cases, tmp_path / "out")
    with pytest.raises(InputError, match="was calibrated with another digest"):
        Applier(fitted(inverse_temperature=0.6), cases, tmp_path / "out")
    with pytest.raises(InputError, match=r"was calibrated with another calibrator .'ts'., but 'identity' is to be"):
        Applier(fitted("identity"), cases, tmp_path / "out")
    with pytest.raises(InputError, match=r"was calibrated with another kind .'logits'., but 'probs'"):
        Applier(fitted(inverse_temperature=0.5), cases, tmp_path / "out", "probs")


def test_neither_the_input_nor_files_of_others_nor_a_file_are_written_to(cases, tmp_path):
    with pytest.raises(InputError, match="holds the predictions themselves, but they are never overwritten"):
        Applier(fitted(), cases, tmp_path / "in")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.npy").write_bytes(b"precious")
    with pytest.raises(InputError, match=r"holds b\.npy, which segcal apply did not write"):
        Applier(fitted(), cases, tmp_path / "other")
    with pytest.raises(InputError, match="is a file, but a folder is needed"):
        Applier(fitted(), cases, tmp_path / "other" / "b.npy")
    assert (tmp_path / "other" / "b.npy").read_bytes() == b"precious"


def test_calibrated_predictions_are_not_calibrated_again(cases, tmp_path):
    applier = Applier(fitted(), cases, tmp_path / "out")
    for case in cases:
        applier(case)
    again = open_cases(tmp_path / "out", kind="logits")
    with pytest.raises(InputError, match="holds predictions that are calibrated already"):
        check_match(fitted(), again)


def test_a_broken_promise_is_an_error_of_the_case(cases, tmp_path):
    applier = Applier(fitted(inverse_temperature=-1.0), cases, tmp_path / "out")
    with pytest.raises(CaseError, match=r"case 'a': 35 voxels changed their class, but the calibrator promises"):
        applier(cases.read("a"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["calibration.json"]


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
