import json
import sys

import numpy as np
import pytest

from segcal import FitConfig, choose, fit
from segcal.errors import InputError
from segcal.fitting import Certificate
from segcal.fitting.config import check_config
from segcal.fitting.progress import reporting


def test_a_certificate_is_plain_data(make_cases):
    certificate = fit("cms_ap", make_cases(3, 300), validation=make_cases(3, 100, seed=1)).certificate
    again = json.loads(json.dumps(certificate.to_dict()))
    assert again["kkt_residual"] == certificate.kkt_residual
    assert set(again) == set(Certificate.__dataclass_fields__)
    assert len(again["path"]) == len(certificate.path) > 0


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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"voxels": 0}, "voxels is 0, but a number between 1 and"),
        ({"voxels": "some"}, "voxels is 'some', but a whole number or 'all' is needed. Leave it out for the default"),
        ({"voxels": True}, "voxels is True, but a whole number"),
        ({"method": "adam"}, "method is 'adam', but 'exact' or 'paper' is needed"),
        ({"lam": -1.0}, r"lam is -1\.0, but a number of at least 0 is needed. Use None to have it chosen"),
        ({"lam": float("inf")}, "lam is inf, but a finite number is needed"),
        ({"tol": 0.0}, r"tol is 0\.0, but a number between 1e-14 and 1 is needed"),
        ({"memory": 1000}, "memory is 1000, but a number between 1.04858e"),
        ({"checkpoint": 3}, "checkpoint is 3, but text is needed"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        FitConfig(**options)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="lambda_"):
        FitConfig(lambda_=1.0)


def test_the_papers_procedure_is_a_config_too():
    config = FitConfig.paper(seed=3)
    assert (config.method, config.trials, config.seed) == ("paper", 20, 3)


def test_a_config_is_plain_data():
    config = FitConfig(lam=0.1, voxels="all")
    assert FitConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_settings_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"config is dict, but a FitConfig is needed. Write segcal.FitConfig\("):
        check_config({"voxels": 3})
    assert check_config(None) == FitConfig()


def test_in_a_pipe_nothing_is_shown_and_on_a_terminal_standard_output_stays_clean(capsys, monkeypatch):
    with reporting("fitting") as report:
        report("step 1")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with reporting("fitting") as report:
        report("step 1")
    assert capsys.readouterr().out == ""
    with pytest.raises(KeyboardInterrupt), reporting("fitting"):
        raise KeyboardInterrupt
