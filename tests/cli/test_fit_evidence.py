"""What a fit rests on, in a few lines: fewest groups first where classes are many, and what should not be."""

from types import SimpleNamespace

from segcal.cli.console import Output
from segcal.cli.fit_evidence import print_evidence
from segcal.fitting.evidence import FitEvidence


def printed(capsys, evidence, bounds=(), names=None):
    certificate = SimpleNamespace(evidence=evidence, active_bounds=bounds)
    print_evidence(Output(False), SimpleNamespace(certificate=certificate, class_names=names))
    return capsys.readouterr()


def test_groups_of_classes_sites_and_what_decides(capsys):
    found = FitEvidence(
        9, (9, 2), (1000, 3), sites={"a": 5, "b": 1}, declared=True, weights={"p3": 0.25}, influence={"p4": -0.3}
    )
    shown = printed(capsys, found, ("weight[0, 1] = 20",), ("road", "sign"))
    assert "groups with each class, of 9 (and voxels, about): road 9 (1,000), sign 2 (3)\n" in shown.out
    assert "also held out, declared sites: a (5 groups), b (1 group)\n" in shown.out
    assert "warning: p3 failed and counts 0.25 times: look at its labels and predictions\n" in shown.err
    assert "warning: without p4 the temperature would be -30%: look at its labels and predictions\n" in shown.err
    assert "warning: 1 parameter ended at a bound (weight[0, 1] = 20)" in shown.err


def test_of_many_classes_those_in_the_fewest_groups_are_named(capsys):
    found = FitEvidence(30, (*[30] * 20, 1, *range(2, 13)), (5,) * 32)
    shown = printed(capsys, found).out
    assert "groups with each class, of 30 (and voxels, about): class 20 1 (5), class 21 2 (5)," in shown
    assert "class 31 12 (5); all other classes in at least 12" in shown
    assert "class 0 " not in shown


def test_an_older_calibrator_says_nothing(capsys):
    shown = printed(capsys, None)
    assert shown.out == shown.err == ""
