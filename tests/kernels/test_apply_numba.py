"""The fused loops for the CPU against the tensor operations, and what is served by whom."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import Context, make_calibrator
from segcal.errors import InputError
from segcal.kernels import apply, apply_numba

FUSED = ["identity", "ts", "ets", "vs", "vs_ti", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op", "conic", "conic_class"]
FUSED += ["isotonic"]
KEEPING = [name for name in FUSED if make_calibrator(name, 3).preserves]


def moved(name, classes, seed=0, **options):
    calibrator = make_calibrator(name, classes, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.2 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.requires_grad_(False)
        if name == "ets":
            calibrator.mixture /= calibrator.mixture.sum()
        if name == "isotonic":
            calibrator.used.fill_(1)
            calibrator.values.copy_(calibrator.points.sqrt())
    return calibrator


def logits_of(classes, space=(13, 21), dtype=torch.float32, seed=0):
    logits = 4 * torch.randn(2, classes, *space, generator=torch.Generator().manual_seed(seed))
    logits[:, 0, :5] = logits[:, -1, :5]  # ties
    return logits.to(dtype)


@pytest.mark.parametrize("classes", [2, 3, 5, 19, 33])
@pytest.mark.parametrize("name", FUSED)
def test_loops_give_what_tensor_operations_give(name, classes):
    calibrator = moved(name, classes)
    for dtype, bound in ((torch.float64, 4e-15), (torch.float32, 4e-6), (torch.bfloat16, 4e-6)):
        logits = logits_of(classes, dtype=dtype)
        wide = dtype == torch.float64 and name in ("ets", "isotonic")
        assert calibrator.served(logits) == (("torch", "this kernel computes in float32") if wide else ("numba", ""))
        scores = calibrator.scores(logits.double())
        found, exact = calibrator(logits).double(), torch.log_softmax(scores, 1)
        scale = scores.abs().amax(1, keepdim=True).clamp(min=1)
        assert float(((found - exact).abs() / scale).max()) < bound * classes**0.5
        quick = calibrator.quick_scores(logits).double()
        assert float(((quick - scores).abs() / scale).max()) < bound * classes**0.5


@pytest.mark.parametrize(
    "mixture", [(1, 0, 0), (0, 1, 0), (0.3, 0.7, 0), (0.2, 0.3, 0.5), (0.5, 0.5, 1e-12), (1, 1e-35, 0)]
)
@pytest.mark.parametrize("beta", [0.4, 1.0, 1.7])
def test_mixtures_with_and_without_each_part_far_below_what_float32_can_say(mixture, beta):
    gaps = torch.cat([torch.logspace(-8, 2.6, 400), torch.linspace(0, 300, 401)]).sort().values
    calibrator = make_calibrator("ets", len(gaps))
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(beta)
        calibrator.mixture.copy_(torch.tensor(mixture, dtype=torch.float64))
    calibrator.requires_grad_(False)
    logits = -gaps[None]
    assert calibrator.served(logits).by == ("torch" if 1e-35 in mixture else "numba")
    torch.testing.assert_close(calibrator(logits).double(), calibrator(logits.double()), rtol=4e-7, atol=2e-5)
    assert bool((calibrator.quick_scores(logits).diff(dim=1) <= 0).all())


@pytest.mark.parametrize(
    ("points", "values", "logits"),
    [
        # The winner near one, where float32 has no digits left.
        ([0, 1e-9, 1 - 1e-7, 1 - 1e-8, 1 - 1e-9, 1], [1e-4, 1e-3, 0.9, 0.97, 0.99, 0.9999], [[40, 0, 0], [17, 0, 0]]),
        # Others so far below that float32 knows them as nothing.
        ([0, 1e-50, 1e-45, 1e-40, 0.5, 1], [0, 0, 1e-3, 1e-3, 0.6, 1], [[200, 0, -10], [300, 100, 0]]),
        # A step so steep that its slope is too large for float32.
        ([1e-37, 1.0000002e-37, 0.5, 1], [0, 0.3, 0.6, 1], [[100, 0, -1], [200, 0, 0]]),
    ],
)
def test_tables_at_their_ends(points, values, logits):
    calibrator = make_calibrator("isotonic", 3, knots=len(points))
    calibrator.points.copy_(torch.tensor(points, dtype=torch.float64))
    calibrator.values.copy_(torch.tensor(values, dtype=torch.float64))
    calibrator.used.fill_(1)
    given = torch.tensor(logits, dtype=torch.float32)
    assert calibrator.served(given).by == "numba"
    torch.testing.assert_close(calibrator(given).double(), calibrator(given.double()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("beta", "mixture"), [(-0.5, (0.5, 0.3, 0.2)), (-0.5, (1, 0, 0)), (0.7, (1.2, -0.3, 0.1)), (3e9, (0.5, 0.3, 0.2))]
)
def test_mixtures_that_no_fit_gives(beta, mixture):
    calibrator = make_calibrator("ets", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(beta)
        calibrator.mixture.copy_(torch.tensor(mixture, dtype=torch.float64))
    calibrator.requires_grad_(False)
    logits = logits_of(3)
    found, exact = calibrator(logits), torch.log_softmax(calibrator.scores(logits), 1)
    assert torch.equal(found.isnan(), exact.isnan())
    torch.testing.assert_close(found[~found.isnan()], exact[~exact.isnan()], rtol=1e-5, atol=1e-5)


def test_tables_are_made_once_for_all_images(monkeypatch):
    made = []
    original = apply_numba.function_tables
    monkeypatch.setattr(apply_numba, "function_tables", lambda *given: made.append(given) or original(*given))
    moved("isotonic", 3)(logits_of(3).repeat(4, 1, 1, 1))
    assert len(made) == 1


@given(seed=st.integers(0, 2**32 - 1), classes=st.sampled_from([2, 3, 7]), knots=st.sampled_from([4, 16, 200]))
@settings(max_examples=60)
def test_tables_keep_the_order_whatever_they_are(seed, classes, knots):
    """Points at both ends of [0, 1], steps, flat parts, and logits of any scale, ties among them."""
    rng = np.random.default_rng(seed)
    calibrator = make_calibrator("isotonic", classes, knots=knots)
    small, large = 10 ** rng.uniform(-30, 0, knots // 2 - 1), 1 - 10 ** rng.uniform(-16, 0, knots - knots // 2 - 1)
    values = np.sort(rng.random(knots) ** rng.choice([1, 4, 20]))
    values[rng.integers(0, knots) :] = values[-1]
    calibrator.points.copy_(torch.from_numpy(np.sort(np.concatenate([[0, 1], small, large]))))
    calibrator.values.copy_(torch.from_numpy(values))
    calibrator.used.fill_(1)
    logits = torch.from_numpy(rng.normal(size=(50, classes)) * 10 ** rng.uniform(-6, 3)).float()
    logits = logits.round() if seed % 2 else logits
    assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))
    order = logits.sort(dim=1, descending=True, stable=True).indices
    assert bool((calibrator.quick_scores(logits).gather(1, order).diff(dim=1) <= 0).all())


@given(data=st.data())
@settings(max_examples=60)
def test_decisions_stay_whatever_the_logits(data):
    name = data.draw(st.sampled_from(KEEPING))
    classes = data.draw(st.sampled_from([2, 3, 7]))
    kind = data.draw(st.sampled_from([torch.float16, torch.float32]))
    near = st.floats(-40, 40, width=16)
    rows = data.draw(st.lists(st.lists(near, min_size=classes, max_size=classes), min_size=1, max_size=9))
    logits = torch.tensor(rows, dtype=torch.float32)
    nudge = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).round() * 1e-6
    logits = (logits + nudge * logits.abs()).to(kind)
    calibrator = moved(
        name, classes, seed=data.draw(st.integers(0, 3)), **({"contexts": []} if "conic" in name else {})
    )
    for place in (None, torch.empty_like(logits), torch.empty_like(logits, dtype=torch.float32)):
        found = calibrator(logits, out=place)
        assert torch.equal(found.argmax(1), logits.argmax(1))
    if calibrator.preserves == "order":
        scores, order = calibrator.quick_scores(logits), logits.sort(dim=1, descending=True, stable=True).indices
        assert bool((scores.gather(1, order).diff(dim=1) <= 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["ts", "cms_ap", "cms_op", "conic_class"])
def test_the_result_can_be_written_anywhere_also_over_the_logits(name, dtype):
    calibrator, logits = moved(name, 5), logits_of(5, dtype=dtype)
    expected = calibrator(logits)
    place = torch.empty_like(logits)
    assert calibrator(logits, out=place) is place
    torch.testing.assert_close(place, expected.to(dtype), rtol=2e-2 if dtype == torch.float16 else 0, atol=0)
    over = logits.clone()
    assert torch.equal(calibrator(over, out=over), place)
    last = torch.empty(2, 13, 21, 5, dtype=dtype).movedim(-1, 1)
    assert torch.equal(calibrator(logits, out=last), place)


def test_layouts_batches_and_single_voxels_agree_to_the_last_bit():
    for name in FUSED:
        calibrator, logits = moved(name, 5), logits_of(5)
        whole = calibrator(logits)
        assert torch.equal(calibrator(logits.movedim(1, -1).contiguous().movedim(-1, 1)), whole)
        assert torch.equal(calibrator(logits[1:]), whole[1:])
        if calibrator.pointwise:
            assert torch.equal(calibrator(logits.movedim(1, -1).reshape(-1, 5)), whole.movedim(1, -1).reshape(-1, 5))
        assert calibrator(logits[:0]).shape == (0, 5, 13, 21)


@pytest.mark.parametrize("name", ["conic", "conic_class"])
def test_curves_with_contexts(name):
    calibrator = moved(name, 4, contexts=["disagreement", "gap_far", "share_far", "gap_image"])
    logits = logits_of(4, (50, 47), torch.float64)
    context = Context(disagreement=torch.rand(2, 50, 47, generator=torch.Generator().manual_seed(0)).double())
    exact = torch.log_softmax(calibrator.scores(logits, context), 1)
    torch.testing.assert_close(calibrator(logits, context), exact, rtol=1e-13, atol=1e-13)


def test_a_change_of_parameters_is_noticed():
    calibrator, logits = moved("ts", 3), logits_of(3)
    before = calibrator(logits)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.1)
    after = calibrator(logits)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, torch.log_softmax(logits * 0.1, 1))
    calibrator.inverse_temperature.data.fill_(0.3)  # of which the parameter knows nothing
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(logits * 0.3, 1))


def test_who_serves_whom_can_be_read():
    logits = logits_of(3)
    assert make_calibrator("ts", 3).served(logits) == ("torch", "gradients are wanted")
    with torch.no_grad():
        assert make_calibrator("ts", 3).served(logits) == ("numba", "")
    assert moved("ts", 3).served(logits.requires_grad_()) == ("torch", "gradients are wanted")
    assert moved("pts", 3).served(logits.detach()) == ("torch", "it has no fused form")


@pytest.mark.parametrize(
    ("version", "serves"),
    [("3.3.1", False), ("3.4.0", True), ("3.10.0+git1", True), ("3.5rc1", True), ("4.0.0", True), (None, False)],
)
def test_an_old_triton_is_as_none(version, serves, monkeypatch):
    monkeypatch.setattr(apply.importlib.util, "find_spec", lambda name: None if version is None else name)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    assert apply.has_triton.__wrapped__() is serves


def test_a_subclass_with_other_scores_is_not_served_by_its_parents_plan():
    class Halved(type(make_calibrator("ts", 3))):
        def scores(self, logits, context=None):
            return 0.5 * logits

    calibrator, logits = Halved(3).requires_grad_(False), logits_of(3)
    assert calibrator.served(logits) == ("torch", "it has no fused form")
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(0.5 * logits, 1))


@pytest.mark.parametrize("out", [torch.empty(2, 3), torch.empty(2, 3, 13, 21, dtype=torch.int32)])
def test_a_place_that_does_not_fit_is_refused(out):
    with pytest.raises(InputError, match=r"out has shape .*, but a floating type, the shape \(2, 3, 13, 21\)"):
        moved("ts", 3)(logits_of(3), out=out)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_what_cannot_be_computed_with_is_refused(value):
    logits = logits_of(3)
    logits[1, 2, 12, 20] = value
    for name in FUSED:
        with pytest.raises(InputError, match="logits has"):
            moved(name, 3)(logits)


def test_a_crop_or_a_turned_place_is_written_too():
    for name in ("identity", "ts", "cms_op", "conic"):
        calibrator, logits = moved(name, 3), logits_of(3, (6, 6))
        whole = torch.full((2, 3, 10, 10), 7.0)
        for place in (whole[:, :, 2:8, 2:8], whole[:, :, 2:8, 2:8].transpose(2, 3)):
            assert torch.equal(calibrator(logits, out=place), calibrator(logits))
        crop = whole[:, :, 2:8, 2:8].copy_(logits)
        assert torch.equal(calibrator(crop, out=crop), calibrator(logits))
        turned = logits.clone()
        assert torch.equal(calibrator(turned, out=turned.transpose(2, 3)), calibrator(logits))


def test_a_subclass_with_other_features_is_not_served_by_its_parents_plan():
    class Doubled(type(make_calibrator("ms", 3))):
        def frame(self, logits, context=None):
            return super().frame(2 * logits)

    calibrator, logits = Doubled(3).requires_grad_(False), logits_of(3)
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(2 * logits, 1))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, when it first takes derivatives forwards
@pytest.mark.parametrize("name", FUSED)
def test_half_parameters_and_derivatives_forwards(name):
    calibrator, logits = moved(name, 3), logits_of(3)
    assert torch.isfinite(moved(name, 3).bfloat16()(logits)).all()
    _, tangent = torch.func.jvp(calibrator.scores, (logits,), (torch.ones_like(logits),))
    _, found = torch.func.jvp(calibrator.quick_scores, (logits,), (torch.ones_like(logits),))
    torch.testing.assert_close(found, tangent)
