import itertools
import math
import pickle

import pytest
import torch
from torch import nn

from segcal.calibrators import make_calibrator
from segcal.errors import ArtifactError, InputError
from segcal.fitting.adam import FileKeeper, Softplus, TrainOptions, train_rounds, trainable


def train(parameters, loss, validate, options):
    """One step a round."""
    return train_rounds(parameters, lambda number: [loss()], validate, options)


def _parameter(*values):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_the_parameters_end_where_validation_was_best_not_where_training_stopped():
    x = _parameter(0.0)
    result = train([x], lambda: -x.sum(), lambda: (float(x.detach()) - 0.5) ** 2, TrainOptions(0.01, 10, 1000))
    assert float(x.detach()) == pytest.approx(0.5, abs=0.006)
    assert result.ran_out_of_patience
    assert result.steps == result.curve.index(min(result.curve)) + 10


def test_training_that_never_helps_stops_after_the_patience_and_keeps_the_start():
    x = _parameter(1.0)
    result = train([x], lambda: -x.sum(), lambda: float(x.detach()), TrainOptions(0.01, 7, 1000))
    assert (result.steps, result.ran_out_of_patience, float(x.detach())) == (7, True, 1.0)


def test_training_stops_at_the_largest_number_of_steps():
    x = _parameter(0.0)
    result = train([x], lambda: -x.sum(), lambda: -float(x.detach()), TrainOptions(0.01, 5, 12))
    assert (result.steps, result.ran_out_of_patience) == (12, False)


def test_the_learning_rate_halves_after_half_the_patience_without_improvement():
    # Under a constant gradient every step of Adam is as long as the learning rate.
    x, seen = _parameter(0.0), []

    def validate():
        seen.append(float(x.detach()))
        return 1.0

    train([x], lambda: x.sum(), validate, TrainOptions(0.01, 10, 1000))
    steps = [before - after for before, after in itertools.pairwise(seen)]
    # The first reading of the schedule is its reference; five more are tolerated.
    assert steps[:7] == pytest.approx([0.01] * 7, rel=1e-6)
    assert steps[7:] == pytest.approx([0.005] * 3, rel=1e-6)


def test_softplus_starts_zero_at_its_smallest_number():
    free = Softplus(1e-3).right_inverse(torch.zeros(1, dtype=torch.float64))
    assert float(free) == pytest.approx(math.log(math.expm1(1e-3)))


@pytest.mark.parametrize("classes", [2, 20])
@pytest.mark.parametrize("name", ["ets", "vs", "ms_c", "cms_ap", "cms_op"])
def test_training_starts_at_the_identity(name, classes):
    logits = 4 * torch.randn(500, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = trainable(make_calibrator(name, classes))(logits).exp().detach()
    assert float((start - torch.softmax(logits, 1)).abs().max()) < 1e-2


@pytest.mark.parametrize("name", ["ts", "ets", "vs", "cms_ap", "cms_op"])
def test_any_free_numbers_give_parameters_within_their_bounds(name):
    model = trainable(make_calibrator(name, 4))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(10 * torch.randn(parameter.shape, generator=generator))
    for bounded in ("inverse_temperature", "mixture", "scale", "weight"):
        if hasattr(model, bounded):
            assert bool((getattr(model, bounded) > 0).all())
    if name == "ets":
        assert float(model.mixture.detach().sum()) == pytest.approx(1)
    if name.startswith("cms"):
        assert bool((model.bias > 0).all())


IDENTITY = {"config": {"seed": 0}, "start": [1.0, 2.0]}


def test_what_was_saved_last_is_loaded(tmp_path):
    keeper = FileKeeper(tmp_path / "deep" / "trial_0.pt", IDENTITY)
    assert keeper.load() is None
    for value in (1.0, 2.0):
        keeper.save({"curve": [value], "kept": [torch.full((2,), value)]})
    found = FileKeeper(tmp_path / "deep" / "trial_0.pt", IDENTITY).load()
    assert found["curve"] == [2.0]
    assert torch.equal(found["kept"][0], torch.full((2,), 2.0))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["trial_0.pt"]


def test_a_state_of_another_fit_is_refused(tmp_path):
    FileKeeper(tmp_path / "a.pt", IDENTITY).save({})
    other = FileKeeper(tmp_path / "a.pt", IDENTITY | {"config": {"seed": 1}})
    with pytest.raises(InputError, match=r"a.pt belongs to a fit with another config, but the fit goes on only with"):
        other.load()


def test_a_file_that_is_no_checkpoint_is_refused_and_not_run(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=r"a.pt is not readable as a checkpoint"):
        FileKeeper(tmp_path / "a.pt", IDENTITY).load()

    class Evil:
        def __reduce__(self):
            return print, ("it ran",)

    (tmp_path / "b.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(ArtifactError, match=r"b.pt is not readable as a checkpoint"):
        FileKeeper(tmp_path / "b.pt", IDENTITY).load()
    torch.save({"version": 0}, tmp_path / "c.pt")
    with pytest.raises(ArtifactError, match=r"c.pt is no checkpoint of version 1"):
        FileKeeper(tmp_path / "c.pt", IDENTITY).load()
