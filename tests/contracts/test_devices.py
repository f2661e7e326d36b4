"""`device=` of the public functions: the same numbers wherever they are computed, in slabs that a device can hold."""

import numpy as np
import pytest
import torch

import segcal
from segcal.errors import InputError
from segcal.evaluation import slabs
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.trust import sums
from segcal.trust.structures import sum_cases

CLASSES = 4
NAMES = ("ts", "cms_ap", "cms_op", "conic")


def fitted(name):
    """A calibrator away from the identity, within its bounds."""
    contexts = {"contexts": ["gap_near", "gap_image"]} if name == "conic" else {}
    calibrator = segcal.make_calibrator(name, CLASSES, **contexts)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.3 * torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 1, 1)
    return Fitted(calibrator.eval().requires_grad_(False), certificate, FitConfig(), pooling="single")


@pytest.fixture
def cases(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("in", "labels"):
        (tmp_path / folder).mkdir()
    for name, space in (("a", (61, 47)), ("b", (40, 83))):
        logits = 3 * rng.normal(size=(CLASSES, *space)).astype("float32")
        np.save(tmp_path / "in" / f"{name}.npy", logits)
        np.save(tmp_path / "labels" / f"{name}.npy", (logits / 2 + rng.gumbel(size=logits.shape)).argmax(0))
    return segcal.open_cases(tmp_path / "in", tmp_path / "labels", kind="logits")


def evaluate(own, cases, tmp_path, device):
    return [
        {key: value for key, value in row.items() if isinstance(value, float)}
        for row in segcal.evaluate(cases, own, device=device).rows
    ]


def apply(own, cases, tmp_path, device):
    segcal.apply(own, cases, tmp_path / f"out_{device}", device=device)
    return [np.load(tmp_path / f"out_{device}" / f"{name}.npy") for name in cases.ids]


def audit(own, cases, tmp_path, device):
    found = segcal.audit(own, cases, device=device)
    assert found.passed
    return [found.flips, found.voxels]


def trust(own, cases, tmp_path, device):
    reference = segcal.learn_trust(own, cases).reference
    found, _ = sum_cases(own, reference, cases, device, 1, None, None)
    return [[float(number) for number in one.numbers.split()] for (one,) in found]


def choose(own, cases, tmp_path, device):
    return [segcal.fit("dc", cases, config=FitConfig(lam=0.1, mu=0.1), device=device).certificate.objective]


DOES = {"evaluate": evaluate, "apply": apply, "audit": audit, "trust": trust, "fit": choose}


@pytest.mark.parametrize("name", DOES)
def test_the_processor_named_is_the_processor_unnamed(name, cases, tmp_path):
    here, there = (DOES[name](fitted("cms_ap"), cases, tmp_path, device) for device in (None, "cpu"))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", DOES)
def test_a_device_that_is_not_there_is_refused_in_a_sentence(name, cases, tmp_path):
    with pytest.raises(InputError, match=r"device is 'cuda', but no CUDA device is available. Use device='cpu'."):
        DOES[name](fitted("ts"), cases, tmp_path, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("calibrator", NAMES)
@pytest.mark.parametrize("name", DOES)
def test_a_gpu_gives_the_same_numbers(name, calibrator, cases, tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(slabs, "STEP_VALUES", 4000)  # several slabs of each case
    here, there = (DOES[name](fitted(calibrator), cases, tmp_path, device) for device in ("cpu", "cuda"))
    for one, other in zip(here, there, strict=True):
        if isinstance(one, dict):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        else:
            np.testing.assert_allclose(np.asarray(other, float), np.asarray(one, float), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["evaluate", "apply", "trust"])
def test_a_case_takes_the_memory_of_a_slab_on_a_gpu(name, tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(slabs, "STEP_VALUES", 1 << 16)
    monkeypatch.setattr(sums, "STEP_VALUES", 1 << 15)  # trust makes more of each value
    logits = torch.randn(CLASSES, 2048, 1024).numpy()
    for folder, values in (("in", logits), ("labels", logits.argmax(0))):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", values)
    cases = segcal.open_cases(tmp_path / "in", tmp_path / "labels", kind="logits")
    own = fitted("cms_op")
    before = torch.cuda.memory_allocated()  # such as the workspace of a library
    torch.cuda.reset_peak_memory_stats()
    DOES[name](own, cases, tmp_path, "cuda")
    assert torch.cuda.max_memory_allocated() - before < logits.nbytes / 4
