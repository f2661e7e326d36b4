"""The fused kernels, loops of the CPU and kernels of a CUDA device, against tensor operations in float64."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import CALIBRATORS, Calibrator, Context, make_calibrator
from segcal.errors import InputError
from segcal.kernels import apply

# With loops for the CPU; the network of pts has a kernel for CUDA devices alone.
FUSED = [name for name in CALIBRATORS if type(make_calibrator(name, 3)).plan is not Calibrator.plan and name != "pts"]
KEEPING = [name for name in FUSED if make_calibrator(name, 3).preserves]
INVARIANT = [name for name in FUSED if make_calibrator(name, 3).translation_invariant]
MULTIPLIED = ("ms", "ms_c", "dc", "cdc", "cms_ap")
BY = {"cpu": "numba", "cuda": "triton"}
no_kernels = pytest.mark.skipif(not (torch.cuda.is_available() and apply.has_triton()), reason="no CUDA device")
on_cuda = [pytest.mark.gpu, no_kernels]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=on_cuda)])
def device(request):
    return request.param


def moved(name, classes, device="cpu", seed=0, **options):
    """A calibrator with weights that are not those of the identity, and that nobody trains."""
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
    return calibrator.to(device)


def logits_of(classes, space=(13, 21), dtype=torch.float32, device="cpu"):
    logits = 4 * torch.randn(2, classes, *space, generator=torch.Generator().manual_seed(0))
    logits[:, 0, :5] = logits[:, -1, :5]  # ties
    return logits.to(device, dtype)


def exact_of(calibrator, logits, context=None):
    return torch.log_softmax(calibrator.scores(logits.double(), context), 1)


@pytest.mark.parametrize("classes", [2, 5, 33])
@pytest.mark.parametrize("name", FUSED)
def test_loops_give_what_tensor_operations_give(name, classes):
    calibrator = moved(name, classes)
    for dtype, bound in ((torch.float64, 4e-15), (torch.float32, 4e-6), (torch.bfloat16, 4e-6)):
        logits = logits_of(classes, dtype=dtype)
        wide = dtype == torch.float64 and name in ("ets", "isotonic")
        assert calibrator.served(logits) == (("torch", "this kernel computes in float32") if wide else ("numba", ""))
        scores = calibrator.scores(logits.double())
        scale = scores.abs().amax(1, keepdim=True).clamp(min=1)
        quick = calibrator.quick_scores(logits).double()
        for found, exact in ((calibrator(logits).double(), torch.log_softmax(scores, 1)), (quick, scores)):
            assert float(((found - exact).abs() / scale).max()) < bound * classes**0.5


@pytest.mark.gpu
@no_kernels
@pytest.mark.parametrize("classes", [2, 3, 5, 19, 20, 32, 33, 64, 150, 500])
@pytest.mark.parametrize("name", [*FUSED, "pts"])
def test_kernels_give_what_tensor_operations_give(name, classes):
    calibrator, logits = moved(name, classes, "cuda"), logits_of(classes, device="cuda")
    served = calibrator.served(logits)
    most = 64 if name in MULTIPLIED else {"cms_op": 32, "pts": 32, "conic": 512, "conic_class": 512}.get(name, 192)
    if classes > most:
        assert served == ("torch", f"{classes} classes are more than the {most} of this kernel")
        return
    assert served == ("triton", "")
    exact = exact_of(calibrator, logits)
    scale = calibrator.scores(logits.double()).abs().amax(1, keepdim=True).clamp(min=1)
    assert float(((calibrator(logits).double() - exact).abs() / scale).max()) < 4e-6
    if classes == 5:
        quick = calibrator.quick_scores(logits).double().log_softmax(1)
        torch.testing.assert_close(quick, exact, rtol=4e-6, atol=4e-5)


@pytest.mark.parametrize(
    "mixture", [(1, 0, 0), (0, 1, 0), (0.3, 0.7, 0), (0.2, 0.3, 0.5), (0.5, 0.5, 1e-12), (1, 1e-35, 0)]
)
@pytest.mark.parametrize("beta", [0.4, 1.7])
def test_mixtures_with_and_without_each_part_far_below_what_float32_can_say(mixture, beta):
    gaps = torch.cat([torch.logspace(-8, 2.6, 400), torch.linspace(0, 300, 401)]).sort().values
    calibrator = mixed(len(gaps), beta, mixture)
    logits = -gaps[None]
    assert calibrator.served(logits).by == ("torch" if 1e-35 in mixture else "numba")
    torch.testing.assert_close(calibrator(logits).double(), calibrator(logits.double()), rtol=4e-7, atol=2e-5)
    assert bool((calibrator.quick_scores(logits).diff(dim=1) <= 0).all())


def mixed(classes, beta, mixture, device="cpu"):
    calibrator = make_calibrator("ets", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(beta)
        calibrator.mixture.copy_(torch.tensor(mixture, dtype=torch.float64))
    return calibrator.requires_grad_(False).to(device)


@pytest.mark.parametrize(
    ("beta", "mixture"), [(-0.5, (0.5, 0.3, 0.2)), (-0.5, (1, 0, 0)), (0.7, (1.2, -0.3, 0.1)), (3e9, (0.5, 0.3, 0.2))]
)
def test_mixtures_that_no_fit_gives(beta, mixture):
    calibrator, logits = mixed(3, beta, mixture), logits_of(3)
    found, exact = calibrator(logits), torch.log_softmax(calibrator.scores(logits), 1)
    assert torch.equal(found.isnan(), exact.isnan())
    torch.testing.assert_close(found[~found.isnan()], exact[~exact.isnan()], rtol=1e-5, atol=1e-5)


def test_weights_of_a_mixture_need_not_sum_to_one(device):
    calibrator, logits = mixed(5, 1.2, (0.6, 0.3, 0.2), device), logits_of(5, device=device)
    torch.testing.assert_close(calibrator(logits).double(), exact_of(calibrator, logits), rtol=4e-6, atol=4e-6)


def table(classes, points, values):
    calibrator = make_calibrator("isotonic", classes, knots=len(points))
    calibrator.points.copy_(torch.as_tensor(points, dtype=torch.float64))
    calibrator.values.copy_(torch.as_tensor(values, dtype=torch.float64))
    calibrator.used.fill_(1)
    return calibrator


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
    calibrator, seen = table(3, points, values), torch.tensor(logits, dtype=torch.float32)
    assert calibrator.served(seen).by == "numba"
    torch.testing.assert_close(calibrator(seen).double(), calibrator(seen.double()), rtol=1e-6, atol=1e-6)


def test_where_a_table_is_flat_the_winner_has_a_lead(device):
    calibrator, logits = moved("isotonic", 4, device), logits_of(4, device=device)
    calibrator.values.fill_(0.3)
    top = calibrator(logits).topk(2, 1)
    assert torch.equal(top.indices[:, 0], logits.argmax(1))
    assert bool((top.values[:, 0] > top.values[:, 1]).all())


@given(seed=st.integers(0, 2**32 - 1), classes=st.sampled_from([2, 3, 7]), knots=st.sampled_from([4, 16, 200]))
@settings(max_examples=30)
def test_tables_keep_the_order_whatever_they_are(seed, classes, knots):
    """Points at both ends of [0, 1], steps, flat parts, and logits of any scale, ties among them."""
    rng = np.random.default_rng(seed)
    small, large = 10 ** rng.uniform(-30, 0, knots // 2 - 1), 1 - 10 ** rng.uniform(-16, 0, knots - knots // 2 - 1)
    values = np.sort(rng.random(knots) ** rng.choice([1, 4, 20]))
    values[rng.integers(0, knots) :] = values[-1]
    calibrator = table(classes, np.sort(np.concatenate([[0, 1], small, large])), values)
    logits = torch.from_numpy(rng.normal(size=(50, classes)) * 10 ** rng.uniform(-6, 3)).float()
    logits = logits.round() if seed % 2 else logits
    assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))
    order = logits.sort(dim=1, descending=True, stable=True).indices
    assert bool((calibrator.quick_scores(logits).gather(1, order).diff(dim=1) <= 0).all())


@given(data=st.data())
@settings(max_examples=40)
def test_decisions_stay_whatever_the_logits(data):
    name = data.draw(st.sampled_from(KEEPING))
    classes = data.draw(st.sampled_from([2, 3, 7]))
    kind = data.draw(st.sampled_from([torch.float16, torch.float32]))
    near = st.floats(-40, 40, width=16)
    rows = data.draw(st.lists(st.lists(near, min_size=classes, max_size=classes), min_size=1, max_size=9))
    logits = torch.tensor(rows, dtype=torch.float32)
    nudge = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).round() * 1e-6
    logits = (logits + nudge * logits.abs()).to(kind)
    options = {"contexts": []} if "conic" in name else {}
    calibrator = moved(name, classes, seed=data.draw(st.integers(0, 3)), **options)
    for place in (None, torch.empty_like(logits), torch.empty_like(logits, dtype=torch.float32)):
        assert torch.equal(calibrator(logits, out=place).argmax(1), logits.argmax(1))
    if calibrator.preserves == "order":
        scores, order = calibrator.quick_scores(logits), logits.sort(dim=1, descending=True, stable=True).indices
        assert bool((scores.gather(1, order).diff(dim=1) <= 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", KEEPING)
def test_decisions_stay_in_half_types_with_ties_and_in_place(name, dtype, device):
    for classes in (2, 20, 33):
        calibrator, logits = moved(name, classes, device), logits_of(classes, dtype=dtype, device=device)
        before = logits.argmax(1)
        assert torch.equal(calibrator(logits).argmax(1), before)
        place = torch.empty_like(logits)
        assert calibrator(logits, out=place) is place
        assert torch.equal(place.argmax(1), before)
        held = logits.clone()
        assert torch.equal(calibrator(held, out=held), place)


@pytest.mark.parametrize("name", INVARIANT)
def test_an_offset_does_not_matter(name, device):
    calibrator, logits = moved(name, 5, device), (logits_of(5, device=device) * 4).round() / 4
    torch.testing.assert_close(calibrator(logits + 2.0**15), calibrator(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize("classes", [3, 33])
def test_a_broken_promise_is_not_hidden(classes, device):
    broken, turned = moved("cms_ap", classes, device), moved("ts", classes, device)
    broken.weight.fill_(0)
    broken.weight[0, 0, 0] = -1.0
    turned.inverse_temperature.fill_(-1.0)
    logits = torch.zeros(1, classes, 2, device=device)
    logits[:, 0], logits[:, 1, 1] = 2.0, 2.0
    for calibrator in (broken, turned):
        assert calibrator.served(logits).by == BY[device]
        torch.testing.assert_close(calibrator(logits).double(), exact_of(calibrator, logits), rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["ts", "cms_op", "conic_class"])
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


def test_a_place_of_any_type(device):
    calibrator, logits = moved("ts", 5, device), logits_of(5, device=device)
    # Of a tie the other class is lowered by eight units of the type.
    for dtype, bound in ((torch.float16, 1e-2), (torch.float64, 1e-6)):
        place = torch.empty(logits.shape, dtype=dtype, device=device)
        assert calibrator(logits, out=place) is place
        torch.testing.assert_close(place.float(), calibrator(logits), rtol=bound, atol=bound)


def test_a_crop_or_a_turned_place_is_written_too():
    for name in ("identity", "cms_op"):
        calibrator, logits = moved(name, 3), logits_of(3, (6, 6))
        whole = torch.full((2, 3, 10, 10), 7.0)
        for place in (whole[:, :, 2:8, 2:8], whole[:, :, 2:8, 2:8].transpose(2, 3)):
            assert torch.equal(calibrator(logits, out=place), calibrator(logits))
        crop = whole[:, :, 2:8, 2:8].copy_(logits)
        assert torch.equal(calibrator(crop, out=crop), calibrator(logits))
        turned = logits.clone()
        assert torch.equal(calibrator(turned, out=turned.transpose(2, 3)), calibrator(logits))


def test_a_place_that_does_not_fit_is_refused():
    for out in (torch.empty(2, 3), torch.empty(2, 3, 13, 21, dtype=torch.int32)):
        with pytest.raises(InputError, match=r"out has shape .*, but a floating type, the shape \(2, 3, 13, 21\)"):
            moved("ts", 3)(logits_of(3), out=out)


def test_layouts_batches_and_single_voxels_agree_to_the_last_bit(device):
    for name in FUSED if device == "cpu" else ["cms_ap"]:
        calibrator, logits = moved(name, 5, device), logits_of(5, device=device)
        whole = calibrator(logits)
        assert torch.equal(calibrator(logits.movedim(1, -1).contiguous().movedim(-1, 1)), whole)
        assert torch.equal(calibrator(logits[1:]), whole[1:])
        if calibrator.pointwise:
            assert torch.equal(calibrator(logits.movedim(1, -1).reshape(-1, 5)), whole.movedim(1, -1).reshape(-1, 5))
        assert calibrator(logits[:0]).shape == (0, 5, 13, 21)


@pytest.mark.parametrize("name", ["conic", "conic_class"])
def test_curves_with_contexts(name, device):
    calibrator = moved(name, 4, device, contexts=["disagreement", "gap_far", "share_far", "gap_image"])
    disagreement = torch.rand(2, 50, 47, generator=torch.Generator().manual_seed(0)).to(device)
    for dtype, bound in (
        ((torch.float32, 4e-5), (torch.float64, 1e-13)) if device == "cpu" else ((torch.float32, 4e-5),)
    ):
        logits = logits_of(4, (50, 47), dtype, device)
        exact = exact_of(calibrator, logits, Context(disagreement=disagreement.double()))
        found = calibrator(logits, Context(disagreement=disagreement.to(dtype))).double()
        torch.testing.assert_close(found, exact, rtol=bound / 10, atol=bound)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_what_cannot_be_computed_with_is_refused(value, device):
    for name in FUSED if device == "cuda" else ["ts"]:  # the loops are given what was checked
        logits = logits_of(5, device=device)
        logits[1, 2, 12, 20] = value
        for place in (None, logits):
            with pytest.raises(InputError, match="logits has"):
                moved(name, 5, device)(logits, out=place)


@pytest.mark.parametrize("name", ["ts", "vs", "dc", "ets", "cms_ap", "cms_op", "conic_class", "isotonic"])
def test_a_change_of_parameters_is_noticed(name, device):
    """Also one of which the parameter knows nothing, and one that takes another back."""
    calibrator, logits = (
        moved(name, 3, device, **({"contexts": []} if "conic" in name else {})),
        logits_of(3).to(device),
    )
    tables = calibrator.buffers() if name == "isotonic" else calibrator.parameters()
    before, first = calibrator(logits), max(tables, key=torch.numel)
    held = first.clone()
    with torch.no_grad():  # not all alike: weights of a mixture need not sum to one
        first.mul_(torch.linspace(0.5, 0.9, first.numel(), device=first.device).reshape(first.shape))
    after = calibrator(logits)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after.double(), exact_of(calibrator, logits), rtol=1e-5, atol=4e-5)
    first.data.copy_(0.7 * held)
    torch.testing.assert_close(calibrator(logits).double(), exact_of(calibrator, logits), rtol=1e-5, atol=4e-5)
    first.data = held
    assert torch.equal(calibrator(logits), before)


def test_who_serves_whom_can_be_read():
    assert {"ts", "ets", "vs", "ms_c", "dc", "cdc", "cms_ap", "cms_op", "conic", "conic_class", "isotonic"} <= {*FUSED}
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


def test_a_subclass_with_other_scores_or_features_is_not_served_by_its_parents_plan():
    class Halved(type(make_calibrator("ts", 3))):
        def scores(self, logits, context=None):
            return 0.5 * logits

    class Doubled(type(make_calibrator("ms", 3))):
        def frame(self, logits, context=None):
            return super().frame(2 * logits)

    logits = logits_of(3)
    for calibrator, factor in ((Halved(3), 0.5), (Doubled(3), 2)):
        calibrator.requires_grad_(False)
        assert calibrator.served(logits) == ("torch", "it has no fused form")
        torch.testing.assert_close(calibrator(logits), torch.log_softmax(factor * logits, 1))


# The warning is torch's own, when it first takes derivatives forwards.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", FUSED)
def test_half_parameters_and_derivatives_forwards(name):
    calibrator, logits = moved(name, 3), logits_of(3)
    assert torch.isfinite(moved(name, 3).bfloat16()(logits)).all()
    _, tangent = torch.func.jvp(calibrator.scores, (logits,), (torch.ones_like(logits),))
    _, found = torch.func.jvp(calibrator.quick_scores, (logits,), (torch.ones_like(logits),))
    torch.testing.assert_close(found, tangent)


@pytest.mark.gpu
@no_kernels
@pytest.mark.parametrize("hidden", [(), (5,), (8, 6, 4)])
def test_a_network_of_any_depth_keeps_the_order_and_a_large_one_has_no_kernel(hidden):
    calibrator, logits = moved("pts", 7, "cuda", largest=4, hidden=hidden), 20 * logits_of(7, device="cuda")
    assert calibrator.served(logits).by == "triton"
    # A temperature near the smallest, 0.001, has four digits in float32, with tensor operations too.
    torch.testing.assert_close(calibrator(logits).double(), exact_of(calibrator, logits), rtol=2e-4, atol=4e-5)
    scores, order = calibrator.quick_scores(logits), logits.sort(dim=1, descending=True, stable=True).indices
    assert bool((scores.gather(1, order).diff(dim=1) <= 0).all())
    large = moved("pts", 7, "cuda", hidden=(64, 64))
    assert large.served(logits) == ("torch", "its network has more than the 256 weights of this kernel")


@pytest.mark.gpu
@no_kernels
def test_more_images_than_a_grid_has():
    calibrator, logits = moved("vs", 3, "cuda"), torch.randn(70_000, 3, 1, device="cuda")
    assert calibrator.served(logits) == ("torch", "70000 images are more than the 65535 of this kernel")
    torch.testing.assert_close(calibrator(logits).double(), exact_of(calibrator, logits), rtol=4e-6, atol=4e-5)


@pytest.mark.gpu
@no_kernels
def test_steps_of_functions_are_monotone_for_all_numbers():
    """Order is kept without sorting because the exponential and the logarithm do not fall, for any float32."""
    import triton
    import triton.language as tl

    from segcal.kernels.triton_classes import exp_below_zero, log_normal

    @triton.jit
    def falls(first, found_ptr, KIND: tl.constexpr, BLOCK: tl.constexpr):
        bits = first + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        low, high = bits.to(tl.int32).to(tl.float32, bitcast=True), (bits + 1).to(tl.int32).to(tl.float32, bitcast=True)
        falling = log_normal(high) < log_normal(low) if KIND == 0 else exp_below_zero(-high) > exp_below_zero(-low)
        tl.atomic_add(found_ptr, tl.sum(falling.to(tl.int32), 0))

    for kind, begin, end in ((0, 1e-37, 4.0), (1, 1e-30, 90.0)):
        first, last = (int(torch.tensor(x).view(torch.int32)) for x in (begin, end))
        found = torch.zeros(1, dtype=torch.int32, device="cuda")
        falls[((last - first) // 1024,)](first, found, kind, 1024, enable_fp_fusion=False)
        assert int(found) == 0


@pytest.mark.gpu
@no_kernels
def test_extra_memory_is_the_output():
    logits = torch.randn(2, 20, 256, 512, device="cuda")
    for name in FUSED:
        calibrator = moved(name, 20, "cuda")
        calibrator(logits)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        calibrator(logits)
        assert torch.cuda.max_memory_allocated() - before < 1.1 * logits.numel() * 4, name
