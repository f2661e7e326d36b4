"""Fits to several raters: the optimum of scipy, that of repeated labels, and what cannot be fitted."""

import json

import numpy as np
import pytest
import scipy
import torch

import segcal
from segcal import ArrayCases, FitConfig, InputError
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.voxels import StreamedVoxels, join

CLASSES, SPACE, RATERS = 3, (9, 14), 4


def task(cases=6, seed=1, kind=np.float64):
    rng = np.random.default_rng(seed)
    logits = [(2 * rng.normal(size=(CLASSES, *SPACE))).astype(kind) for _ in range(cases)]
    maps = [np.stack([(z + rng.gumbel(size=z.shape)).argmax(0) for _ in range(RATERS)]) for z in logits]
    for own in maps:
        own[2, :3] = 9
    return logits, maps


def repeated(logits, maps):
    whole = [np.concatenate([z] * RATERS, axis=1) for z in logits]
    return ArrayCases(whole, [np.concatenate(list(own)) for own in maps], ignore=9)


def nll_of(parameters, logits, maps):
    """Return the mean NLL over raters of vector scaling without offset, in plain numpy."""
    slope, bias = np.exp(parameters[0]), np.concatenate([[0], parameters[1:]])
    total = count = 0.0
    for z, own in zip(logits, maps, strict=True):
        log = scipy.special.log_softmax(slope * z + bias[:, None, None], 0)
        for labels in own:
            at = np.nonzero(labels != 9)
            total -= log[(labels[at], *at)].sum()
            count += len(at[0])
    return total / count


def test_the_temperature_is_that_of_scipy():
    logits, maps = task()
    fitted = segcal.fit("ts", ArrayCases(logits, maps, raters="axis", ignore=9))
    best = scipy.optimize.minimize_scalar(
        lambda x: nll_of([x, 0, 0], logits, maps), bracket=(-1, 1), options={"xtol": 1e-12}
    )
    assert fitted.calibrator.temperature == pytest.approx(np.exp(-best.x), rel=1e-6)
    assert fitted.certificate.nll == pytest.approx(best.fun, rel=1e-12)
    assert fitted.certificate.kkt_residual < 1e-6


@pytest.mark.parametrize("name", ["ts", "vs_ti", "ms_c", "dc", "iop", "isotonic", "histogram", "pts"])
def test_fits_are_those_of_repeated_labels(name):
    logits, maps = task()
    many, once = ArrayCases(logits, maps, raters="axis", ignore=9), repeated(logits, maps)
    config = FitConfig(seed=3)
    found, wanted = (segcal.fit(name, cases, config=config) for cases in (many, once))
    # Bins of equal mass, and steps of a stochastic method, do not see weights as copies.
    close = {"iop": 1e-4, "pts": 1e-4, "histogram": 1e-3}.get(name, 1e-9)
    assert found.certificate.nll == pytest.approx(wanted.certificate.nll, rel=close)


@pytest.mark.parametrize("voxels", ["all", 60])
def test_raters_who_agree_are_one_rater_bit_for_bit(voxels):
    logits, maps = task(kind=np.float32)
    one = ArrayCases(logits, [own[0] for own in maps])
    same = ArrayCases(logits, [np.stack([own[0]] * 3) for own in maps], raters="axis")
    config = FitConfig(voxels=voxels)
    for name in ("ts", "conic"):
        states = [segcal.fit(name, cases, config=config).calibrator.state_dict() for cases in (one, same)]
        assert all(torch.equal(first, second) for first, second in zip(*(s.values() for s in states), strict=True))


def test_samples_of_votes_have_the_weight_of_all():
    logits, maps = task(cases=2)
    cases = ArrayCases(logits, maps, raters="axis", ignore=9)
    (all_of_them,) = join(list(StreamedVoxels(cases, lambda: None))).labels.bincount(minlength=CLASSES)[None]
    every = StreamedVoxels(cases, lambda: None)
    wanted = torch.zeros(CLASSES, dtype=torch.float64)
    for voxels in every:
        wanted.index_add_(0, voxels.labels.long(), voxels.weight.double())
    assert every.total_weight == pytest.approx(float(wanted.sum()))
    assert all_of_them.sum() == every.used
    found = torch.zeros(CLASSES, dtype=torch.float64)
    for seed in range(200):
        (voxels,) = SampledVoxels(cases, 40, seed, lambda: None)
        assert voxels.labels.numel() <= 2 * 41
        found.index_add_(0, voxels.labels.long(), voxels.weight.double() / 200)
    assert torch.allclose(found, wanted, rtol=0.05)


def test_weights_repeat_a_rater():
    logits, maps = task()
    heavy = ArrayCases(logits, maps, raters="axis", ignore=9, rater_weights=[3, 1, 1, 1])
    copied = [np.concatenate([own[:1], own[:1], own]) for own in maps]
    twice = ArrayCases(logits, copied, raters="axis", ignore=9)
    first, second = (segcal.fit("ts", cases).calibrator.temperature for cases in (heavy, twice))
    assert first == pytest.approx(second, rel=1e-9)
    votes, same = (cases.read("0").votes for cases in (heavy, twice))
    assert (votes.count[votes.code.numpy()] == same.count[same.code.numpy()]).all()


def test_choose_compares_on_the_share():
    logits, maps = task(cases=8)
    chosen = segcal.choose(ArrayCases(logits, maps, raters="axis", ignore=9), names=["ts", "vs_ti"])
    assert chosen.calibrator.name in ("ts", "vs_ti")


def test_neighbourhoods_and_other_uses_of_one_label_are_refused(tmp_path):
    logits, maps = task()
    cases = ArrayCases(logits, maps, raters="axis", ignore=9)
    with pytest.raises(InputError, match="learns from whole neighbourhoods"):
        segcal.fit("lts", cases)
    fitted = segcal.fit("ts", cases)
    with pytest.raises(InputError, match="a store needs one label"):
        segcal.convert(cases, tmp_path / "store")
    shares = [np.stack([(own == c).mean(0) for c in range(CLASSES)]) for own in maps]
    soft = ArrayCases(logits, [own / own.sum(0) for own in shares], raters="shares", num_raters=12)
    with pytest.raises(InputError, match="trust of regions or of shares needs one label"):
        segcal.learn_trust(fitted, soft)


@pytest.mark.parametrize("form", ["axis", "shares"])
def test_an_artefact_says_whose_labels_it_was_fitted_to(form, tmp_path):
    logits, maps = task()
    if form == "axis":
        cases = ArrayCases(logits, maps, raters="axis", ignore=9, rater_weights=[2, 1, 1, 1])
        declared, words = {"form": "axis", "weights": [2, 1, 1, 1]}, "4 raters with weights 2, 1, 1, 1"
    else:
        shares = [np.stack([(own == c).mean(0) for c in range(CLASSES)]) for own in maps]
        cases = ArrayCases(logits, [own / own.sum(0) for own in shares], raters="shares", num_raters=12)
        declared, words = {"form": "shares", "weights": [12]}, "shares in 12 votes"
    fitted = segcal.fit("ts", cases)
    segcal.save(fitted, tmp_path / "cal")
    assert json.loads((tmp_path / "cal" / "calibrator.json").read_text("utf-8"))["raters"] == declared
    again = segcal.load(tmp_path / "cal")
    assert again.raters == cases.raters
    assert f"labels of {words}" in repr(again)
    assert segcal.card(again, path=tmp_path / "card.md").description.raters == words
    assert f"labels of {words}" in (tmp_path / "card.md").read_text("utf-8")
    assert f"labels of {words}: every vote counts once" in str(segcal.evaluate(cases, again, metrics=["nll"]))
    one = ArrayCases(logits, [own[0] for own in maps], ignore=9)
    assert f"was fitted to labels of {words}" in str(segcal.evaluate(one, again, metrics=["nll"]))
    before = segcal.fit("ts", one)
    assert (before.raters, segcal.evaluate(one, before, metrics=["nll"]).raters) == (None, "")
    assert "was fitted to labels of one rater" in segcal.evaluate(cases, before, metrics=["nll"]).raters
