"""Calibrated at one site and used at another: what did harm before, and what the fit did not say."""

import json

import numpy as np
import pytest
import torch

import segcal
from segcal import ArrayCases, FitConfig, fit
from segcal.calibrators.convex import Strengths
from segcal.cli import main
from segcal.errors import InputError
from segcal.fitting.config import STRENGTHS
from segcal.fitting.convex_problem import MOST_STEEP, LinearProblem
from segcal.fitting.frames import Frames
from segcal.fitting.scores import Worth
from segcal.fitting.strengths import FoldWalk, given, is_worse
from segcal.fitting.voxels import StreamedVoxels


def separable(count=6, voxels=60, classes=3, seed=0):
    """Labels that are always the winner: nothing but a penalty or a bound ends what a fit wants."""
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(classes, voxels)) for _ in range(count)]
    return ArrayCases(logits, [z.argmax(0) for z in logits])


def test_no_penalty_at_all_is_not_chosen_but_may_be_asked_for():
    assert min(STRENGTHS) > 0
    certificate = fit("cms_ap", separable()).certificate
    assert certificate.lam > 0
    assert certificate.nu > 0
    assert fit("cms_ap", separable(), config=FitConfig(lam=0.0, mu=0.0)).certificate.lam == 0


def test_slopes_of_a_chosen_strength_have_a_bound_with_a_meaning_and_those_at_it_are_named():
    """A gap of one nat is never made more than twenty times what a temperature above one makes of it."""
    rng = np.random.default_rng(0)
    logits = [0.05 * rng.normal(size=(3, 90)) for _ in range(6)]
    noisy = [(z / 4 + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    labels = [np.where(z.argmax(0) == 0, 0, y) for z, y in zip(logits, noisy, strict=True)]  # one winner is never wrong
    cases = ArrayCases(logits, labels)
    fitted = fit("cms_ap", cases, config=FitConfig(lam=1e-9, mu=1e-9, nu=1e-9, evidence=0))
    most = MOST_STEEP * max(1.0, fitted.certificate.inverse_temperature)
    assert float(fitted.calibrator.weight.max()) <= most
    assert fitted.certificate.active_bounds
    assert all(abs(float(name.rpartition("= ")[2])) <= 1.001 * most for name in fitted.certificate.active_bounds)
    frames = Frames(StreamedVoxels(cases, lambda: None), fitted.calibrator, 1 << 20, torch.device("cpu"))
    problem = LinearProblem(fitted.calibrator, frames, 0)
    for strengths, beta, bound in ((Strengths(0.1, 0.1), 3.0, 1e3), (Strengths(0.1, 0.1, 0.1), 3.0, 60.0)):
        problem.set_strengths(strengths, beta)  # without nu, Eq. 15 as the user fixed it
        assert float(problem.high[problem.high.isfinite()].max()) == bound
    problem.set_strengths(Strengths(0.1, 0.1, 0.1), 0.5)
    assert float(problem.high[problem.high.isfinite()].max()) == MOST_STEEP
    assert bool(problem.high.isinf().any())  # the gauge is free


def test_a_rise_within_noise_does_not_end_the_path(monkeypatch):
    """The first fold rises twice by chance: its cases do not agree, so the path goes on."""
    cases = separable()
    asked = segcal.fitting.request.read_data(cases, None, FitConfig())
    request = segcal.fitting.request.Request.on(
        asked, segcal.make_calibrator("cms_ap", 3), FitConfig(), torch.device("cpu"), lambda text: None
    )
    fold = next(iter(segcal.fitting.division.folds_of(asked, FitConfig())))
    for noisy in (True, False):
        calls = iter(range(99))

        def measured(calibrator, held, device, noisy=noisy, calls=calls):
            rise = 0.01 * next(calls)
            return {
                "0": Worth(1 + rise + (0.9 if noisy else 0) * (rise > 0), 0.1),
                "1": Worth(1 + rise - 0.9 * noisy * (rise > 0), 0.1),
            }

        monkeypatch.setattr("segcal.fitting.strengths.measure", measured)
        walked = FoldWalk(request, fold, given(request)).walk(STRENGTHS, may_end=True)
        assert len(walked) == (len(STRENGTHS) if noisy else 3)


def test_of_one_group_no_strength_is_said_to_be_worse():
    cases = ArrayCases([np.zeros((2, 3))] * 2, [np.zeros(3, int)] * 2, ids=["a", "b"], groups=["g", "g"])
    request = type("Asked", (), {"judges": cases})()
    one, two = ({i: Worth(value, 0.1) for i in "ab"} for value in (1.0, 2.0))
    assert not is_worse(request, two, one)


def test_the_guard_of_conic_sees_the_calibration_cases_too(monkeypatch):
    """Two validation cases say by chance that every curve raises an error; ten calibration cases say that none does."""
    rng = np.random.default_rng(0)

    def make(count, first):
        logits = [3 * rng.normal(size=(3, 9, 11)).astype("float32") for _ in range(count)]
        labels = [(-np.minimum(g := z.max(0) - z, 1 + 0.05 * g) + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
        return ArrayCases(logits, labels, ids=[f"{first}{k}" for k in range(count)])

    own = segcal.fitting.strengths.measure

    def measured(calibrator, held, device):
        found = own(calibrator, held, device)
        bent = float(calibrator.base.detach().std()) > 0.01
        raised = {i: 1.2 if i.startswith("v") and bent else 1.0 for i in found}
        return {i: Worth(worth.nll, 0.1 * raised[i], 0.1 * raised[i]) for i, worth in found.items()}

    monkeypatch.setattr("segcal.fitting.strengths.measure", measured)
    cases, validation = make(10, "c"), make(2, "v")
    judged = fit("conic", cases, validation=validation).certificate
    alone = segcal.fitting.strengths.without_harm
    counts = []
    monkeypatch.setattr(
        "segcal.fitting.strengths.without_harm", lambda worth: (counts.append(len(worth[1e5])), alone(worth))[1]
    )
    fit("conic", cases, validation=validation)
    assert counts == [12]
    assert judged.lam in {row["lam"] for row in judged.path}


@pytest.fixture
def site_folders(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("scores", "labels"):
        (tmp_path / folder).mkdir()
    for site in "ab":
        for number in range(2):
            z = 3 * rng.normal(size=(3, 8, 9)).astype("float32")
            np.save(tmp_path / "scores" / f"{site}_p{number}.npy", z)
            np.save(tmp_path / "labels" / f"{site}_p{number}.npy", (z / 3 + rng.gumbel(size=z.shape)).argmax(0))
    (tmp_path / "sites.csv").write_text(
        "id,site\n" + "".join(f"{s}_p{k},{s.upper()}\n" for s in "ab" for k in range(2))
    )
    return tmp_path


@pytest.mark.parametrize(("declared", "names"), [(r"^(\w)_", {"a", "b"}), ("sites.csv", {"A", "B"})])
def test_sites_are_declared_by_a_pattern_or_a_file(site_folders, declared, names, capsys):
    sites = site_folders / declared if declared.endswith("csv") else declared
    folders = [str(site_folders / name) for name in ("scores", "labels", "cal")]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *folders[:2], "-o", folders[2], "--kind", "logits", "--sites", str(sites), "--json"])
    assert stopped.value.code == 0
    found = json.loads(capsys.readouterr().out)["certificate"]["evidence"]
    assert found["sites"] == dict.fromkeys(sorted(names), 2)
    assert found["declared"]
    assert segcal.load(site_folders / "cal").certificate.evidence.sites == found["sites"]


def test_a_file_of_groups_is_no_file_of_sites(site_folders):
    (site_folders / "wrong.csv").write_text("id,group\na_p0,x\n")
    with pytest.raises(
        InputError, match=r"site file .*wrong.csv has the columns id, group, but id and site are needed"
    ):
        segcal.open_cases(site_folders / "scores", kind="logits", sites=site_folders / "wrong.csv")
    with pytest.raises(InputError, match=r"group 'p0' has cases of the sites 'a' and 'b'"):
        segcal.open_cases(site_folders / "scores", kind="logits", sites=r"^(\w)_", groups=r"(p\d)")


def test_a_calibrator_without_evidence_is_read(tmp_path):
    """What version 0.1 wrote has no evidence in its certificate, and no such setting."""
    fitted = fit("ts", separable())
    segcal.save(fitted, tmp_path / "cal")
    path = tmp_path / "cal" / "calibrator.json"
    plain = json.loads(path.read_text())
    del plain["certificate"]["evidence"], plain["certificate"]["shrunk"], plain["config"]["evidence"]
    plain["digest"] = segcal.fitting.artifact._digest(plain)
    path.write_text(json.dumps(plain))
    old = segcal.load(tmp_path / "cal")
    assert old.certificate.evidence is None
    assert old.config == fitted.config
    assert segcal.card(old).description.classes == ()
