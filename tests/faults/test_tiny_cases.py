"""Cases of one voxel, one class, one case, no voxel: every function ends with a result or with one sentence."""

import re
import warnings

import numpy as np
import pytest
import torch

import segcal
from segcal.cases.profile import digest_of
from segcal.errors import SegcalError
from segcal.report.evaluated import write_trust_page

FORM = re.compile(r"(?s).+, but .+\. .+\.|.*all \d+ cases failed, but .+")


def made(count, classes, space, labelled="spread", seed=0):
    """Return logits and labels of so many cases; labels are spread, all of one class, or all ignored."""
    rng = np.random.default_rng(seed)
    logits = 4 * rng.normal(size=(count, classes, *space)).astype("float32")
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(1) if classes else np.zeros((count, *space), int)
    fixed = {"one class": 0, "ignored": 255}.get(labelled)
    return logits, labels if fixed is None else np.full_like(labels, fixed)


TINY = {
    "1 voxel": made(3, 3, (1, 1)),
    "1 voxel, no space": made(3, 3, ()),
    "1 case": made(1, 3, (4, 3)),
    "1 case of 1 voxel": made(1, 2, (1,)),
    "1 class": made(3, 1, (4, 3)),
    "no class": made(3, 0, (4, 3)),
    "all ignored": made(3, 3, (4, 3), "ignored"),
    "one class present": made(3, 3, (4, 3), "one class"),
    "flat along the first axis": made(3, 3, (1, 4, 3)),
    "flat along the second axis": made(3, 3, (4, 1, 3)),
    "flat along the third axis": made(3, 3, (4, 3, 1)),
    "no voxels": made(3, 3, (4, 0, 3)),
    "no case": made(0, 3, (4, 3)),
}


def ends_well(call, *args, **named):
    """Return the result; None after one sentence. Anything else is raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", segcal.SuspicionWarning)
            return call(*args, **named)
    except SegcalError as error:
        if FORM.fullmatch(str(error)):
            return None
        raise


@pytest.mark.parametrize("what", TINY)
def test_every_function_ends_with_a_result_or_one_sentence(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logits, labels = TINY[what]
    cases = ends_well(segcal.ArrayCases, list(logits), list(labels), ignore=255)
    big = made(12, max(2, logits.shape[1]), (4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", segcal.SuspicionWarning)
        usual = segcal.fit("ts", *big)
        trusted = segcal.learn_trust(usual, segcal.ArrayCases(list(big[0]), list(big[1])))
    ends_well(segcal.fit, "ts", logits, labels, ignore=255)
    if cases is None:
        return
    for name in ("ts", "cms_ap", "conic", "isotonic", "lts"):
        config = segcal.FitConfig(max_steps=2, patience=1)
        fitted = ends_well(segcal.fit, name, cases, config=config)
        if fitted is not None:
            ends_well(segcal.evaluate, cases, fitted, replicates=10)
    ends_well(segcal.choose, cases)
    ends_well(segcal.check, cases)
    ends_well(segcal.evaluate, cases, usual, replicates=10)
    ends_well(segcal.audit, usual, cases)
    ends_well(segcal.learn_trust, usual, cases)
    ends_well(segcal.trust, trusted, cases, level=0.8)
    ends_well(segcal.monitor, trusted, cases)
    ends_well(segcal.convert, cases, "store")
    ends_well(segcal.report, usual, cases, "report.html", replicates=10)
    for name in ("nll", "ece", "dice", "ba_ece", "hd95", "aurc", "kce", "cox_slope"):
        ends_well(getattr(segcal.metrics, name), logits, labels, ignore=255)


@pytest.mark.parametrize("what", TINY)
def test_files_too(what, tmp_path):
    logits, labels = TINY[what]
    for folder, arrays in (("predictions", logits), ("labels", labels)):
        (tmp_path / folder).mkdir()
        for number, array in enumerate(arrays):
            np.save(tmp_path / folder / f"{number}.npy", array)
    options = {"labels": tmp_path / "labels", "kind": "logits", "ignore": 255}
    cases = ends_well(segcal.open_cases, tmp_path / "predictions", **options)
    if cases is not None:
        usual = segcal.fit("ts", *made(4, cases.num_classes, (4, 3)))
        ends_well(segcal.apply, usual, cases, tmp_path / "out")
        ends_well(segcal.evaluate, cases, usual, replicates=10)
        ends_well(segcal.check, cases)


def test_the_page_of_one_voxel(tmp_path):
    logits, labels = made(12, 3, (1, 1))
    fitted = segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels)
    result = segcal.trust(fitted, logits[:3] * 0, level=0.8)
    assert all(type(row["volume_high"]) is float for row in result.rows)
    cases = segcal.ArrayCases(list(logits[:3] * 0))
    assert "volume_high" in write_trust_page(tmp_path / "page.html", result, fitted, cases).read_text()


def test_trust_needs_labels_outside_of_every_part():
    logits, labels = made(3, 3, (4, 3))
    labels[1:] = 255
    with pytest.warns(segcal.SuspicionWarning, match="no voxel counts"):
        fitted = segcal.fit("ts", logits, labels, ignore=255)
    with pytest.raises(segcal.InputError, match=r"labels of 2 of 3 cases are ignored everywhere, but each part of the"):
        segcal.learn_trust(fitted, logits, labels, ignore=255)


def test_a_report_takes_all_options_of_evaluate(tmp_path):
    logits, labels = made(4, 3, (4, 3))
    options = {"labels": labels, "replicates": 10, "device": "cpu", "convention": "field"}
    found = segcal.report(None, logits, tmp_path / "new.html", **options)
    plain = segcal.evaluate(logits, labels=labels, replicates=10, convention="field")
    assert found.rows == plain.rows
    with pytest.raises(segcal.InputError, match="device is nan, but"):
        segcal.report(None, logits, tmp_path / "new.html", **options | {"device": float("nan")})


def test_a_single_number_has_a_digest_whatever_its_stride():
    plain = torch.tensor([0.25, 0.75])[:, None]
    assert digest_of(plain.as_strided((2, 1), (1, 0))) == digest_of(plain.contiguous())
