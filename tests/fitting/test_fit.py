import numpy as np
import pytest
import torch

import segcal
from segcal.fitting import METHODS


def cases(classes: int = 3, count: int = 2, **columns: object) -> segcal.ArrayCases:
    rng = np.random.default_rng(0)
    logits = [3 * rng.normal(size=(classes, 6, 7)).astype("float32") for _ in range(count)]
    labels = [(z / 2 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    return segcal.ArrayCases(**{"logits": logits, "labels": labels, **columns})


def test_every_calibrator_declares_a_method_that_exists():
    for name in segcal.CALIBRATORS:
        assert segcal.make_calibrator(name, 3).fitted_by in METHODS


def test_a_calibrator_object_is_where_the_fit_starts_and_stays_as_it_was():
    given = segcal.make_calibrator("ts", 3)
    with torch.no_grad():
        given.inverse_temperature.fill_(5.0)
    fitted = segcal.fit(given, cases())
    assert float(given.inverse_temperature.detach()) == 5.0
    expected = segcal.fit("ts", cases()).calibrator.inverse_temperature
    torch.testing.assert_close(fitted.calibrator.inverse_temperature, expected, rtol=1e-5, atol=1e-5)


def test_the_result_remembers_where_it_came_from():
    known = cases(ids=["a", "b"], class_names=["x", "y", "z"], pooling="mean_logits")
    fitted = segcal.fit("ts", known.subset(["a"]), validation=known.subset(["b"]))
    assert (fitted.calibration_ids, fitted.validation_ids) == (("a",), ("b",))
    assert (fitted.pooling, fitted.kind, fitted.class_names) == ("mean_logits", "logits", ("x", "y", "z"))
    assert fitted.fingerprint == known.subset(["a"]).fingerprint()


def test_the_identity_is_fitted_by_nothing_and_its_certificate_is_the_nll():
    one = cases(count=1)
    certificate = segcal.fit("identity", one).certificate
    case = one.read("0")
    expected = torch.nn.functional.cross_entropy(case.logits[None].double(), case.labels[None])
    assert certificate.nll == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: segcal.fit("cms", cases()), "no calibrator is named 'cms'. Choose one of: identity, ts"),
        (lambda: segcal.fit(3, cases()), "name_or_calibrator is int, but a name or a Calibrator is needed"),
        (lambda: segcal.fit(segcal.make_calibrator("ts", 4), cases()), "has 4 classes, but the cases have 3"),
        (lambda: segcal.fit("ts", cases().subset([])), "cases is empty, but at least one case is needed"),
        (lambda: segcal.fit("ts", cases(), validation=cases().subset([])), "validation is empty"),
        (lambda: segcal.fit("ts", cases(), validation=cases(2)), "validation has 2 classes, but the calibration cases"),
        (lambda: segcal.fit("ts", cases(labels=None)), "has no labels, but a fit needs them"),
        (lambda: segcal.fit("ms", cases(pooling="mean_probs")), "the offset is gone"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_sentence(call, text):
    with pytest.raises(segcal.InputError) as refused:
        call()
    assert text in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(segcal.InputError, match="no CUDA device is available"):
        segcal.fit("ts", cases(), device="cuda")
