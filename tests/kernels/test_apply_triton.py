"""The kernels for CUDA devices against the tensor operations in float64."""

import pytest
import torch

from segcal import Context, make_calibrator
from segcal.errors import InputError

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

FUSED = ["identity", "ts", "ets", "vs", "vs_ti", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op", "conic", "conic_class"]
FUSED += ["isotonic"]
MULTIPLIED = ("ms", "ms_c", "dc", "cdc", "cms_ap")


def moved(name, classes, **options):
    calibrator = make_calibrator(name, classes, **options)
    generator = torch.Generator().manual_seed(classes)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.2 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.requires_grad_(False)
        if name == "ets":
            calibrator.mixture /= calibrator.mixture.sum()
        if name == "isotonic":
            calibrator.used.fill_(1)
            calibrator.values.copy_(calibrator.points.sqrt())
    return calibrator.cuda()


def logits_of(classes, space=(13, 21), dtype=torch.float32, offset=0.0):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2, classes, *space, generator=generator)
    logits[:, 0, :5] = logits[:, -1, :5]  # ties
    return (logits + offset).to("cuda", dtype)


@pytest.mark.parametrize("classes", [2, 3, 5, 19, 20, 32, 33, 64, 150, 500])
@pytest.mark.parametrize("name", FUSED)
def test_kernels_give_what_tensor_operations_give(name, classes):
    calibrator, logits = moved(name, classes), logits_of(classes)
    served = calibrator.served(logits)
    most = 64 if name in MULTIPLIED else {"cms_op": 32, "conic": 512, "conic_class": 512}.get(name, 192)
    if classes > most:
        assert served == ("torch", f"{classes} classes are more than the {most} of this kernel")
        return
    assert served == ("triton", "")
    exact = torch.log_softmax(calibrator.scores(logits.double()), 1)
    found = calibrator(logits).double()
    scale = calibrator.scores(logits.double()).abs().amax(1, keepdim=True).clamp(min=1)
    assert float(((found - exact).abs() / scale).max()) < 4e-6
    if classes == 5:
        quick = calibrator.quick_scores(logits).double().log_softmax(1)
        torch.testing.assert_close(quick, exact, rtol=4e-6, atol=4e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [name for name in FUSED if make_calibrator(name, 3).preserves])
def test_decisions_stay_in_half_types_with_ties_and_in_place(name, dtype):
    for classes in (2, 5, 20, 33):
        calibrator, logits = moved(name, classes), logits_of(classes, dtype=dtype)
        before = logits.argmax(1)
        assert torch.equal(calibrator(logits).argmax(1), before)
        place = torch.empty_like(logits)
        assert calibrator(logits, out=place) is place
        assert torch.equal(place.argmax(1), before)
        held = logits.clone()
        assert torch.equal(calibrator(held, out=held), place)


@pytest.mark.parametrize(
    "name", ["ts", "vs_ti", "dc", "cdc", "cms_ap", "cms_op", "conic", "conic_class", "ets", "isotonic"]
)
def test_an_offset_does_not_matter(name):
    calibrator = moved(name, 5)
    logits = (logits_of(5) * 4).round() / 4
    torch.testing.assert_close(calibrator(logits + 2.0**15), calibrator(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize("classes", [3, 33])
def test_a_broken_promise_is_not_hidden(classes):
    broken = moved("cms_ap", classes)
    broken.weight.fill_(0)
    broken.weight[0, 0, 0] = -1.0
    turned = moved("ts", classes)
    turned.inverse_temperature.fill_(-1.0)
    logits = torch.zeros(1, classes, 2, device="cuda")
    logits[:, 0], logits[:, 1, 1] = 2.0, 2.0
    for calibrator in (broken, turned):
        assert calibrator.served(logits).by == "triton"
        exact = torch.log_softmax(calibrator.scores(logits.double()), 1)
        torch.testing.assert_close(calibrator(logits).double(), exact, rtol=4e-6, atol=4e-6)


def test_weights_of_a_mixture_need_not_sum_to_one():
    calibrator, logits = moved("ets", 5), logits_of(5)
    calibrator.mixture.copy_(torch.tensor([0.6, 0.3, 0.2]))
    exact = torch.log_softmax(calibrator.scores(logits.double()), 1)
    torch.testing.assert_close(calibrator(logits).double(), exact, rtol=4e-6, atol=4e-6)


def test_where_a_table_is_flat_the_winner_has_a_lead():
    calibrator, logits = moved("isotonic", 4), logits_of(4)
    calibrator.values.fill_(0.3)
    found = calibrator(logits)
    top = found.topk(2, 1)
    assert torch.equal(top.indices[:, 0], logits.argmax(1))
    assert bool((top.values[:, 0] > top.values[:, 1]).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_place_of_any_type(dtype):
    calibrator, logits = moved("ts", 5), logits_of(5)
    place = torch.empty(logits.shape, dtype=dtype, device="cuda")
    assert calibrator(logits, out=place) is place
    torch.testing.assert_close(place.float(), calibrator(logits), rtol=1e-3, atol=1e-3)


def test_more_images_than_a_grid_has():
    calibrator, logits = moved("vs", 3), torch.randn(70_000, 3, 1, device="cuda")
    assert calibrator.served(logits) == ("torch", "70000 images are more than the 65535 of this kernel")
    exact = torch.log_softmax(calibrator.scores(logits.double()), 1)
    torch.testing.assert_close(calibrator(logits).double(), exact, rtol=4e-6, atol=4e-5)


def test_any_layout_and_no_space():
    calibrator = moved("cms_ap", 5)
    logits = logits_of(5)
    whole = calibrator(logits)
    last = logits.movedim(1, -1).contiguous().movedim(-1, 1)
    assert not last.is_contiguous()
    assert torch.equal(calibrator(last), whole)
    rows = logits.movedim(1, -1).reshape(-1, 5)
    assert torch.equal(calibrator(rows), whole.movedim(1, -1).reshape(-1, 5))
    assert calibrator(logits[:0]).shape == (0, 5, 13, 21)


@pytest.mark.parametrize("by_class", ["conic", "conic_class"])
def test_curves_with_contexts(by_class):
    calibrator = moved(by_class, 4, contexts=["disagreement", "gap_far", "share_far", "gap_image"])
    logits = logits_of(4, (50, 47))
    context = Context(disagreement=torch.rand(2, 50, 47, device="cuda"))
    exact = torch.log_softmax(
        calibrator.scores(logits.double(), Context(disagreement=context.disagreement.double())), 1
    )
    torch.testing.assert_close(calibrator(logits, context).double(), exact, rtol=4e-6, atol=4e-5)


@pytest.mark.parametrize("name", FUSED)
def test_what_cannot_be_computed_with_is_refused(name):
    for value in (float("nan"), float("inf"), -1e30):
        logits = logits_of(5)
        logits[1, 2, 12, 20] = value
        with pytest.raises(InputError, match="logits has"):
            moved(name, 5)(logits)
        with pytest.raises(InputError, match="logits has"):
            moved(name, 5)(logits, out=logits)


def test_steps_of_functions_are_monotone_for_all_numbers():
    """Order is kept without sorting because the exponential and the logarithm do not fall, for any float32."""
    import triton
    import triton.language as tl

    from segcal.kernels.triton_arithmetic import exp_below_zero, log_normal

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


def test_extra_memory_is_the_output():
    logits = torch.randn(2, 20, 256, 512, device="cuda")
    for name in FUSED:
        calibrator = moved(name, 20)
        calibrator(logits)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        calibrator(logits)
        assert torch.cuda.max_memory_allocated() - before < 1.1 * logits.numel() * 4, name
