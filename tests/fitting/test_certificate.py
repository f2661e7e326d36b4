import json

import numpy as np

from segcal import FitConfig, choose, fit
from segcal.fitting import Certificate


def test_a_certificate_is_plain_data(make_cases):
    certificate = fit("cms_ap", make_cases(3, 300), validation=make_cases(3, 100, seed=1)).certificate
    again = json.loads(json.dumps(certificate.to_dict()))
    assert again["kkt_residual"] == certificate.kkt_residual
    assert set(again) == set(Certificate.__dataclass_fields__)
    assert len(again["path"]) == len(certificate.path) > 0


def test_a_fit_says_what_it_was_made_from(make_cases):
    cases, validation = make_cases(3, 300, parts=4), make_cases(3, 100, seed=1, parts=2)
    fitted = fit("ts", cases, validation=validation)
    assert fitted.calibration_ids == ("0", "1", "2", "3")
    assert fitted.validation_ids == ("0", "1")
    assert fitted.fingerprint == cases.fingerprint()
    assert (fitted.kind, fitted.pooling) == ("logits", None)


def test_a_fit_is_printed_as_what_a_person_wants_to_know(make_cases):
    text = str(fit("ts", make_cases(3, 300, parts=4)))
    assert text.splitlines()[0].startswith("ts for 3 classes, T = ")
    assert "fitted to 300 of 300 voxels of 4 cases (logits), NLL " in text
    assert "\nresidual " in text
    assert "strengths" not in text


def test_it_names_strengths_classes_without_voxels_and_the_reason_of_a_choice(make_cases):
    logits, labels = np.zeros((1, 3, 40), np.float32), np.arange(40)[None] % 2
    logits[0, 0], logits[0, 1, 20:] = 1, 2
    fitted = fit("cms_ap", logits, labels, config=FitConfig(lam=0.5, mu=0.25), class_names=["road", "car", "tree"])
    assert fitted.certificate.untouched == (2,)
    assert "strengths lam = 0.5, mu = 0.25, nu = 0\n" in repr(fitted)
    assert "left untouched: tree" in repr(fitted)
    assert "(chosen on held-out cases)" in str(fit("cms_ap", make_cases(3, 900, parts=5)))
    chosen = choose(make_cases(3, 600, parts=4))
    assert str(chosen).endswith(chosen.certificate.details["reason"])
