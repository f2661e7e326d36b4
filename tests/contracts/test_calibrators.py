"""The contract of every calibrator: whoever is listed in CALIBRATORS is held to it, with random weights."""

import copy

import pytest
import torch

from segcal import CALIBRATORS, make_calibrator
from segcal.errors import InputError

NAMES = list(CALIBRATORS)
CLASSES = (2, 5)
PRESERVING = [name for name in NAMES if make_calibrator(name, 3).preserves]
INVARIANT = [name for name in NAMES if make_calibrator(name, 3).translation_invariant]
POINTWISE = [name for name in NAMES if make_calibrator(name, 3).pointwise]
# One name of each class: what is traced is its code, whatever its options.
OF_EACH_CLASS = list({type(make_calibrator(name, 3)): name for name in POINTWISE}.values())


def logits_of(*shape, seed=0, scale=4.0, dtype=torch.float64):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def as_taken(calibrator, voxels):
    """Voxels (count, classes) as a calibrator takes them: as they are, or as one image if it sees neighbours."""
    return voxels if calibrator.pointwise else voxels.T.reshape(1, voxels.shape[1], 5, -1)


def as_voxels(values):
    return values.movedim(1, -1).reshape(-1, values.shape[1])


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=CLASSES)
def classes(request):
    return request.param


@pytest.mark.parametrize("name", POINTWISE)
def test_any_number_of_space_axes_gives_what_single_voxels_give(name, classes, randomise):
    calibrator = randomise(make_calibrator(name, classes))
    for space in [(), (7,), (7, 6), (3, 4, 5)]:
        logits = logits_of(4, classes, *space)
        out = calibrator(logits)
        assert out.shape == logits.shape
        voxels = logits.movedim(1, -1).reshape(-1, classes)
        torch.testing.assert_close(out.movedim(1, -1).reshape(-1, classes), calibrator(voxels), rtol=0, atol=1e-10)


def test_half_types_are_computed_in_float32_and_others_in_their_own_and_all_sum_to_one(name, classes, randomise):
    calibrator = randomise(make_calibrator(name, classes))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        logits = logits_of(4, classes, 7, 6, dtype=dtype)
        out, result = calibrator(logits), torch.float64 if dtype == torch.float64 else torch.float32
        assert out.dtype == result
        assert torch.equal(out, calibrator(logits.to(result)))
        torch.testing.assert_close(out.double(), calibrator(logits.double()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(4, 7, 6, dtype=torch.float64), rtol=0, atol=1e-12)


def test_an_offset_per_voxel_changes_nothing_where_that_is_promised(name, classes, randomise):
    calibrator = randomise(make_calibrator(name, classes))
    if name not in INVARIANT:
        logits = as_taken(calibrator, logits_of(40, classes))
        with torch.no_grad():
            change = calibrator(logits + 10).exp() - calibrator(logits).exp()
        assert float(change.abs().max()) > 0.05
        return
    generator = torch.Generator().manual_seed(5)
    shift = 2000 * torch.rand(4, 1, 7, 6, generator=generator, dtype=torch.float64) - 1000
    logits = logits_of(4, classes, 7, 6)
    torch.testing.assert_close(calibrator(logits + shift), calibrator(logits), rtol=0, atol=1e-6)
    # What float32 keeps of z + c, taken back exactly: the calibrator may add only its own rounding to that.
    moved = logits.float() + shift.float()
    kept = calibrator(moved.double() - shift.float().double())
    torch.testing.assert_close(calibrator(moved).double(), kept, rtol=2e-5, atol=2e-4)


def near_ties(classes, magnitude, seed):
    """Float32 voxels whose classes stand on three levels, 0 to 3 units in the last place apart on each."""
    generator = torch.Generator().manual_seed(seed)
    count = 1000
    top = magnitude * (1 + torch.rand(count, 1, generator=generator))
    top = top * (torch.randint(0, 2, (count, 1), generator=generator) * 2 - 1)
    level = torch.randint(0, 3, (count, classes), generator=generator)
    logits = (top - level * magnitude * torch.rand(count, 1, generator=generator)).float()
    steps = torch.randint(0, 4, (count, classes), generator=generator)
    for step in range(3):
        logits = torch.where(steps > step, torch.nextafter(logits, torch.full_like(logits, -torch.inf)), logits)
    return logits


@pytest.mark.parametrize("classes", [2, 5, 20])
@pytest.mark.parametrize("name", PRESERVING)
def test_near_ties_in_float32_are_never_reversed(name, classes, randomise):
    for seed, magnitude in enumerate([1e-30, 1.0, 5.0, 30.0, 1e3]):
        calibrator = randomise(make_calibrator(name, classes), seed, edge=True)
        logits = near_ties(classes, magnitude, seed)
        with torch.no_grad():
            scores = as_voxels(calibrator.scores(as_taken(calibrator, logits)))
        descending = logits.argsort(dim=1, descending=True, stable=True)
        ordered = scores.gather(1, descending)
        above = ordered[:, 1:] > (ordered[:, :-1] if calibrator.preserves == "order" else ordered[:, :1])
        assert int(above.sum()) == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PRESERVING])
def test_a_calibrator_without_the_promise_does_change_decisions(name, classes, randomise):
    calibrator = randomise(make_calibrator(name, classes))
    logits = logits_of(500, classes, scale=1.0)
    assert bool((calibrator.scores(logits).argmax(1) != logits.argmax(1)).any())


def test_a_new_calibrator_is_the_identity(name, classes):
    calibrator = make_calibrator(name, classes)
    logits = as_taken(calibrator, logits_of(200, classes, scale=5.0))
    torch.testing.assert_close(calibrator(logits), logits.log_softmax(1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if make_calibrator(name, 3).fitted_by != "gradient"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_identifiable_count_is_the_rank_of_the_jacobian(name, classes, randomise):
    calibrator = randomise(make_calibrator(name, classes))
    logits = logits_of(40 * classes, classes, scale=2.0)
    columns = []
    with torch.no_grad():
        for parameter in calibrator.parameters():
            flat = parameter.view(-1)
            for i in range(flat.numel()):
                value, ends = float(flat[i]), []
                for step in (1e-5, -1e-5):
                    flat[i] = value + step
                    ends.append(calibrator(logits))
                flat[i] = value
                columns.append(((ends[0] - ends[1]) / 2e-5).flatten())
    if not columns:  # nothing, or tables
        assert calibrator.num_identifiable() <= sum(table.numel() for table in calibrator.buffers())
        return
    sizes = torch.linalg.svdvals(torch.stack(columns))
    assert int((sizes > 1e-7 * sizes[0]).sum()) == calibrator.num_identifiable()
    assert calibrator.num_parameters() == len(columns)


@pytest.mark.parametrize("name", [name for name in NAMES if list(make_calibrator(name, 3).parameters())])
def test_gradients_reach_the_parameters_and_are_right(name, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    parameters = [p for p in calibrator.parameters() if p.numel()]
    logits = as_taken(calibrator, logits_of(60, 5))
    calibrator(logits)[:, 2].sum().backward()
    found, ends = 0.0, []
    directions = [logits_of(*p.shape, seed=9, scale=1.0) for p in parameters]
    for parameter, direction in zip(parameters, directions, strict=True):
        if parameter.grad is not None:
            found += float((parameter.grad * direction).sum())
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            moved = copy.deepcopy(calibrator)
            for parameter, direction in zip((p for p in moved.parameters() if p.numel()), directions, strict=True):
                parameter.add_(step * direction)
            ends.append(float(moved(logits)[:, 2].sum()))
    expected = (ends[0] - ends[1]) / 2e-5
    assert abs(expected) > 1e-3
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", POINTWISE)
def test_voxels_do_not_see_each_other(name, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    logits = logits_of(101, 5)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(calibrator(logits[order]), calibrator(logits)[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(calibrator(logits[7:8]), calibrator(logits)[7:8], rtol=0, atol=1e-12)


def test_mode_and_gradient_switch_change_nothing_and_the_input_stays(name, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    logits = logits_of(4, 5, 7, 6)
    before = logits.clone()
    trained = calibrator.train()(logits)
    with torch.no_grad():
        evaluated = calibrator.eval()(logits)
        assert torch.equal(evaluated, calibrator.train()(logits))
    # Without gradients a fused kernel may compute, which rounds in another order.
    torch.testing.assert_close(trained, evaluated, rtol=1e-13, atol=1e-13)
    assert torch.equal(logits, before)
    assert not evaluated.requires_grad


@pytest.mark.parametrize("name", OF_EACH_CLASS)
def test_an_exported_calibrator_gives_the_same_on_another_shape(name, randomise, tmp_path):
    calibrator = randomise(make_calibrator(name, 5))
    dynamic = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    program = torch.export.export(calibrator, (logits_of(4, 5, 7, 6, dtype=torch.float32),), dynamic_shapes=(dynamic,))
    torch.export.save(program, tmp_path / "calibrator.pt2")
    loaded = torch.export.load(tmp_path / "calibrator.pt2").module()
    other = logits_of(3, 5, 9, 8, seed=3, dtype=torch.float32)
    torch.testing.assert_close(loaded(other), calibrator(other), rtol=1e-6, atol=1e-5)


def test_the_options_make_the_same_calibrator_again(name):
    calibrator = make_calibrator(name, 4)
    again = type(calibrator)(4, **calibrator.options)
    assert again.state_dict().keys() == calibrator.state_dict().keys()
    assert (again.translation_invariant, again.preserves) == (calibrator.translation_invariant, calibrator.preserves)


@pytest.mark.parametrize(
    ("logits", "text"),
    [
        (
            torch.zeros(4, 512, 5),
            r"logits has shape \(4, 512, 5\), but this calibrator has 5 classes and needs \(batch, 5, \*space\). "
            r"If classes are the last axis, call logits.movedim\(-1, 1\) first.",
        ),
        (torch.zeros(5, 8, 9), r"logits has shape \(5, 8, 9\), .* Add the batch axis with logits\[None\]"),
        (torch.zeros(5), r"logits has shape \(5,\), .* Add the batch axis with logits\[None\]"),
        (torch.zeros(4, 7, 8), "Use the calibrator that was fitted for this number of classes"),
        (torch.full((1, 5), torch.nan), "logits has 5 values that are NaN or infinite, but all must be finite"),
        (torch.tensor([[0.0, 1, 2, 3, -torch.inf]]), "logits has 1 values .* Zero probabilities give -inf"),
        (torch.zeros(1, 5, dtype=torch.int64), "logits has dtype int64, but floating-point values are needed"),
        ([[0.0] * 5], r"logits is list, but a tensor is needed. Convert with torch.as_tensor\(logits\)"),
    ],
)
def test_what_is_not_a_batch_of_logits_is_refused(logits, text):
    for name in NAMES:
        with pytest.raises(InputError, match=text):
            make_calibrator(name, 5)(logits)


def test_a_count_of_classes_that_is_none_is_refused_and_so_are_unknown_options(name):
    for count in (1, 0, -3, 2.0, True, "5", None):
        with pytest.raises(InputError, match=r"num_classes is .*, but a whole number (of at least 2 )?is needed"):
            make_calibrator(name, count)
    with pytest.raises(InputError, match=f"{name} has no option 'temprature'. It"):
        make_calibrator(name, 3, temprature=2)
