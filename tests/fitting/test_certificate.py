import json

from segcal import fit
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
