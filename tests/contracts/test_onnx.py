"""Every calibrator as a graph of ONNX operators, run by onnxruntime: the same numbers, the promises kept."""

import warnings

import numpy as np
import pytest
import torch

import segcal
from segcal import CALIBRATORS, make_calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.prior_shift import PriorShift
from segcal.integrations import onnx
from segcal.regions import Regions
from segcal.types import Context

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

CLASSES = 5
# Those that look at space, and some that have bounds or tables.
IN_VOLUMES = [name for name in CALIBRATORS if not make_calibrator(name, 2).pointwise] + ["cms_op", "iop", "isotonic"]


def exported(calibrator, path, dtype):
    """Return a function from logits to what the exported graph gives for them, of any batch and image size."""
    assert segcal.export(calibrator, path, dtype=dtype).flips == 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda logits: torch.from_numpy(session.run(["log_probs"], {"logits": logits.numpy()})[0])


def leaders_that_almost_tie(dtype, offset):
    """Images whose two or three leading classes are 0, 1 or 2 units in the last place apart, others below."""
    rng = np.random.default_rng(3)
    kind = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}[dtype]
    logits = (4 * rng.normal(size=(3, CLASSES, 40, 50)) + offset).astype(kind)
    top = logits.max(1, keepdims=True)
    close = rng.random(logits.shape) < 0.5
    steps = rng.integers(0, 3, logits.shape)
    near = np.where(steps > 0, np.nextafter(top, kind(-np.inf)), top)
    near = np.where(steps > 1, np.nextafter(near, kind(-np.inf)), near)
    return torch.from_numpy(np.where(close, near, logits).astype(kind))


def held_to_its_promises(calibrator, run, dtype):
    plain = (4 * torch.randn(3, CLASSES, 9, 8, generator=torch.Generator().manual_seed(2))).to(dtype)
    expected = calibrator(plain).detach()
    found = run(plain)
    assert found.dtype == expected.dtype
    tolerance = {"rtol": 1e-7, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    torch.testing.assert_close(found, expected, **tolerance)
    if not calibrator.preserves:
        return
    for offset in (0.0, 1000.0):
        logits = leaders_that_almost_tie(dtype, offset)
        result = run(logits)
        assert torch.equal(result.argmax(1), logits.argmax(1))
        if calibrator.preserves == "order":
            order = logits.argsort(dim=1, descending=True, stable=True)
            ordered = result.gather(1, order)
            assert bool((ordered[:, 1:] <= ordered[:, :-1]).all())


@pytest.mark.parametrize("name", CALIBRATORS)
def test_an_exported_graph_gives_the_same_and_keeps_what_is_promised(name, randomise, tmp_path):
    calibrator = randomise(make_calibrator(name, CLASSES)).eval()
    run = exported(calibrator, tmp_path / "calibrator.onnx", torch.float32)
    held_to_its_promises(calibrator, run, torch.float32)


@pytest.mark.parametrize(("name", "dtype"), [("ts", torch.float16), ("cms_ap", torch.float64), ("ets", torch.float64)])
def test_other_precisions_too(name, dtype, randomise, tmp_path):
    calibrator = randomise(make_calibrator(name, CLASSES)).eval()
    held_to_its_promises(calibrator, exported(calibrator, tmp_path / "calibrator.onnx", dtype), dtype)


@pytest.mark.parametrize("name", IN_VOLUMES)
def test_parameters_on_their_bounds_of_two_classes_in_a_volume_are_exported(name, randomise, tmp_path):
    calibrator = randomise(make_calibrator(name, 2), seed=1, edge=True).eval()
    assert segcal.export(calibrator, tmp_path / "calibrator.onnx", axes=3).flips == 0
    session = onnxruntime.InferenceSession(tmp_path / "calibrator.onnx", providers=["CPUExecutionProvider"])
    for shape in ((1, 2, 7, 6, 5), (5, 2, 5, 5, 9)):
        logits = 4 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
        (found,) = session.run(None, {"logits": logits.numpy()})
        expected = calibrator(logits).detach()
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=2e-3, atol=2e-3)


def test_a_calibrator_adapted_to_another_place_is_exported_too(randomise, tmp_path):
    calibrator = PriorShift(CLASSES, randomise(make_calibrator("ts", CLASSES))).eval()
    calibrator.log_ratio.data = torch.linspace(-2, 3, CLASSES, dtype=torch.float64)
    run = exported(calibrator, tmp_path / "calibrator.onnx", torch.float32)
    held_to_its_promises(calibrator, run, torch.float32)


def test_a_tie_is_no_other_winner_where_none_is_promised(tmp_path):
    expected = torch.tensor([[0.5], [0.5 - 1e-7]]).log()[None]
    found, other = expected.flip(1), torch.tensor([[0.3], [0.7]]).log()[None]
    free, bound = make_calibrator("ms", 2), make_calibrator("ts", 2)
    assert onnx._judged(tmp_path, (), free, expected, found).flips == 0
    for calibrator, wrong in ((free, other), (bound, found)):
        with pytest.raises(segcal.InputError, match="names another class than the library at 1 of 1 voxels"):
            onnx._judged(tmp_path, (), calibrator, expected, wrong)


def test_what_sees_an_image_is_exported_with_it(tmp_path, randomise):
    calibrator = randomise(make_calibrator("lts_ti", 3, image_channels=2))
    logits, image = (torch.randn(1, channels, 12, 11) for channels in (3, 2))
    assert segcal.export(calibrator, tmp_path / "calibrator.onnx").inputs == ("logits", "context_image")
    session = onnxruntime.InferenceSession(tmp_path / "calibrator.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"logits": logits.numpy(), "context_image": image.numpy()})
    expected = calibrator(logits, Context(image=image)).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=2e-3, atol=2e-3)


def regions_at_zero(count, dtype):
    """Images of regions with every logit that is easy to get wrong: 0, its neighbours, ties between regions."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(3, count, 20, 25)) * 10 ** rng.uniform(-9, 2, size=(3, 1, 20, 25))
    values = np.where(rng.random((3, 1, 20, 25)) < 0.3, values[:, :1], values)
    values[rng.random(values.shape) < 0.15] = 0
    tiny = torch.finfo(dtype).tiny * rng.choice([-1, 1], size=values.shape)
    return torch.from_numpy(np.where(rng.random(values.shape) < 0.1, tiny, values)).to(dtype)


NESTED = {"a": [1, 2, 3], "b": [2, 3], "c": [3]}


@pytest.mark.parametrize(
    ("name", "declared", "ending"),
    [
        ("conic_class", NESTED, "onnx"),
        ("ts", NESTED, "pt2"),
        ("ts", {"a": [1, 2], "b": [2, 3]}, "onnx"),
        ("isotonic", {"a": [1]}, "onnx"),
    ],
)
def test_regions_keep_their_masks_and_nesting_in_the_graph(name, declared, ending, randomise, tmp_path):
    regions = Regions.declared(declared)
    inner = [randomise(make_calibrator(name, 2), seed=number) for number in range(len(regions))]
    calibrator = PerRegion(regions, inner).eval()
    path = tmp_path / f"calibrator.{ending}"
    assert segcal.export(calibrator, path).flips == 0
    logits = regions_at_zero(len(regions), torch.float32)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch's own loader
        if ending == "pt2":
            found = torch.export.load(path).module()(logits)
        else:
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            found = torch.from_numpy(session.run(["log_probs"], {"logits": logits.numpy()})[0])
        torch.testing.assert_close(found, calibrator(logits), rtol=1e-5, atol=1e-5)
    if calibrator.preserves:
        assert torch.equal(found > -np.log(2), logits > 0)
        for i, o in regions.nested:
            assert bool((found[:, i] <= found[:, o])[logits[:, i] <= logits[:, o]].all())
