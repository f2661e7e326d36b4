import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from segcal import ArrayCases, FitConfig, fit, make_calibrator
from segcal.errors import ArtifactError, InputError
from segcal.fitting.adam import ADAM_EPS, Adam, FileKeeper, Softplus, TrainOptions, train_rounds, trainable
from segcal.fitting.batches import TileBatches
from segcal.fitting.crops import TileSource, Window
from segcal.fitting.gradient_fit import is_new

NAMES = ["lts", "lts_ti", "ibts", "pts", "iop"]
SHORT = FitConfig(max_steps=3, voxels=2000, learning_rate=3e-3)


def images(count, seed=0, classes=3, space=(30, 26), ids=None, channels=0):
    """Images in which the left half is far too sure of itself; the first class tells where that is."""
    rng = np.random.default_rng(seed)
    logits, labels, pictures = [], [], []
    for _ in range(count):
        scores = 3 * rng.normal(size=(classes, *space)).astype("float32")
        left = np.arange(space[-1]) < space[-1] // 2
        scores[0] += 3 * left
        labels.append((scores / np.where(left, 4.0, 1.0) + rng.gumbel(size=scores.shape)).argmax(0))
        logits.append(scores)
        pictures.append(np.broadcast_to(200 * left, (channels, *space)).astype("float32"))
    return ArrayCases(logits, labels, ids=ids, images=pictures if channels else None)


def mean_nll(calibrator, cases):
    """Mean over the labelled voxels, class by class."""
    total = count = 0.0
    with torch.no_grad():
        for case in cases:
            own = calibrator(case.logits[None], case.context)[0].double()
            total -= sum(float(own[label][case.labels == label].sum()) for label in range(len(own)))
            count += int((case.labels >= 0).sum())
    return total / count


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_lowers_the_nll_of_cases_it_has_not_seen(name):
    fitted = fit(name, images(3), validation=images(2, seed=1), config=FitConfig(max_steps=30, learning_rate=1e-2))
    test = images(2, seed=2)
    before = mean_nll(make_calibrator("identity", 3), test)
    assert mean_nll(fitted.calibrator, test) < before - 0.1
    certificate = fitted.certificate
    assert (certificate.method, certificate.kkt_residual) == ("gradient", None)
    assert certificate.validation_nll == min(certificate.curve) <= certificate.curve[0]
    assert certificate.passes == len(certificate.curve) - 1
    assert certificate.voxels_available == 3 * 30 * 26
    assert "held_back" not in certificate.details


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.05, 900.0])
def test_each_can_be_temperature_scaling(name, temperature, randomise):
    calibrator, scaling = randomise(make_calibrator(name, 3)), make_calibrator("ts", 3)
    calibrator.become_temperature(temperature)
    with torch.no_grad():
        scaling.inverse_temperature.fill_(1 / temperature)
        logits = 5 * torch.randn(1, 3, 12, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(calibrator(logits), scaling(logits), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["ibts", "iop"])
def test_a_fit_starts_at_temperature_scaling_and_never_ends_worse(name):
    """With a learning rate this large nothing is learned: the start is what comes back, and the certificate says so."""
    cal, val = images(3), images(2, seed=1)
    certificate = (
        fitted := fit(name, cal, validation=val, config=FitConfig(max_steps=3, learning_rate=1e3))
    ).certificate
    scaling = fit("ts", cal)
    assert certificate.details["start"] == certificate.details["returned"] == "ts"
    temperature = 1 / float(scaling.calibrator.inverse_temperature)
    assert certificate.details["temperature"] == pytest.approx(temperature, rel=1e-5)
    assert certificate.validation_nll == certificate.curve[0] == certificate.details["ts_validation_nll"]
    test = images(2, seed=2)
    assert mean_nll(fitted.calibrator, test) == pytest.approx(mean_nll(scaling.calibrator, test), rel=1e-5)


def test_a_given_start_is_kept_unless_temperature_scaling_is_better():
    cal, val = images(3), images(2, seed=1)
    first = fit("lts_ti", cal, validation=val, config=FitConfig(max_steps=20, learning_rate=1e-2))
    assert (first.certificate.details["start"], first.certificate.details["returned"]) == ("ts", "trained")
    again = fit(first.calibrator, cal, validation=val, config=FitConfig(max_steps=1))
    assert again.certificate.details["start"] == "given"
    assert again.certificate.curve[0] == first.certificate.validation_nll
    bad = make_calibrator("lts_ti", 3)
    bad.become_temperature(50.0)
    found = fit(bad, cal, validation=val, config=FitConfig(max_steps=1)).certificate
    assert (found.details["start"], found.details["returned"]) == ("given", "ts")
    assert found.validation_nll == found.details["ts_validation_nll"] < min(found.curve)


def test_an_image_branch_sees_the_image():
    """The logits do not tell where they are too sure; the image does."""
    parts = []
    for count, seed in ((3, 0), (2, 1)):
        cases = images(count, seed, channels=1)
        for case_id in cases.ids:
            cases._raw[case_id].logits[0] -= 3 * (np.arange(26) < 13)
        parts.append(cases)
    config = FitConfig(max_steps=25, learning_rate=1e-2)
    seen = fit(make_calibrator("lts_ti", 3, image_channels=1), parts[0], validation=parts[1], config=config)
    blind = fit("lts_ti", parts[0], validation=parts[1], config=config)
    assert seen.certificate.validation_nll < blind.certificate.validation_nll - 0.02
    assert mean_nll(seen.calibrator, parts[1]) == pytest.approx(seen.certificate.validation_nll, rel=0.05)
    assert 50 < float(seen.calibrator.tree.image_centre) < 150


@pytest.mark.parametrize("name", ["lts_ti", "iop"])
def test_the_same_seed_gives_the_same_result_and_another_another(name):
    cal, val = images(6), images(2, seed=1)
    first, same, other = (
        fit(name, cal, validation=val, config=FitConfig(max_steps=4, voxels=300, seed=seed)) for seed in (0, 0, 1)
    )
    assert first.certificate == same.certificate
    for key, value in first.calibrator.state_dict().items():
        assert torch.equal(value, same.calibrator.state_dict()[key])
    assert first.certificate.curve != other.certificate.curve


class StopError(Exception):
    """Raised where a kill is played."""


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_a_fit_that_was_killed_goes_on_to_the_identical_result(name, tmp_path, monkeypatch):
    cal, val = images(5), images(2, seed=1)
    options = {"max_steps": 8, "voxels": 500, "patience": 3, "learning_rate": 3e-3}
    whole = fit(name, cal, validation=val, config=FitConfig(**options))
    config = FitConfig(**options, checkpoint=str(tmp_path / "state"))
    from segcal.fitting import adam

    save, saved = adam.FileKeeper.save, []

    def save_and_stop(self, state):
        save(self, state)
        saved.append(state)
        if len(saved) == 2:
            raise StopError

    monkeypatch.setattr(adam.FileKeeper, "save", save_and_stop)
    with pytest.raises(StopError):
        fit(name, cal, validation=val, config=config)
    resumed = fit(name, cal, validation=val, config=config)
    assert len(saved) == len(whole.certificate.curve) - 1
    assert resumed.certificate == whole.certificate
    for key, value in whole.calibrator.state_dict().items():
        assert torch.equal(value, resumed.calibrator.state_dict()[key])
    with pytest.raises(InputError, match="belongs to a fit with another set of calibration cases"):
        fit(name, images(5, ids=list("abcde")), validation=val, config=config)


@pytest.mark.parametrize("name", ["pts"])
def test_the_papers_search_tries_weight_decay(name):
    pytest.importorskip("optuna")
    config = FitConfig.paper(trials=3, max_steps=4, voxels=300)
    certificate = fit(name, images(4), validation=images(2, seed=1), config=config).certificate
    assert len(certificate.path) == 3
    assert {"learning_rate", "weight_decay", "validation_nll"} == set(certificate.path[0])
    assert certificate.validation_nll == min(trial["validation_nll"] for trial in certificate.path)
    assert 1e-4 <= certificate.details["learning_rate"] <= 3e-2
    assert "returned" not in certificate.details  # its trials start at the identity, as published


def test_weight_decay_is_part_of_the_objective_and_shrinks_weights():
    cal, val = images(4), images(2, seed=1)
    free, tied = (
        fit("lts_ti", cal, validation=val, config=FitConfig(max_steps=6, voxels=900, weight_decay=decay))
        for decay in (0.0, 1.0)
    )
    squares = [float(each.calibrator.tree.weight.detach().square().sum()) for each in (free, tied)]
    assert squares[1] < squares[0]
    assert tied.certificate.objective == pytest.approx(tied.certificate.nll + squares[1] / 2)
    assert free.certificate.objective == free.certificate.nll


def test_progress_tells_the_validation_nll():
    messages = []
    config = FitConfig(max_steps=2, voxels=300)
    certificate = fit("lts_ti", images(2), validation=images(1, 1), config=config, progress=messages.append).certificate
    assert f"lts_ti: round 1 of at most 2: validation NLL {certificate.curve[1]:.5f}" in messages


@pytest.mark.parametrize("name", ["lts_ti", "ibts"])
def test_volumes_and_single_slices_are_fitted(name):
    for space in ((3, 20, 18), (1, 12, 14), (4, 3)):
        fitted = fit(name, images(3, space=space), validation=images(2, seed=1, space=space), config=SHORT)
        assert fitted.certificate.validation_nll <= fitted.certificate.curve[0]


@pytest.mark.parametrize("name", ["identity", "ts", "conic", "lts_ti", "selective", "isotonic"])
def test_what_was_made_is_new_until_it_is_changed(name, randomise):
    assert is_new(make_calibrator(name, 3))
    if make_calibrator(name, 3).num_parameters():
        assert not is_new(randomise(make_calibrator(name, 3)))


CPU = torch.device("cpu")


def ignoring(count, classes=3, space=(20, 17), seed=0, ignored=0.2):
    rng = np.random.default_rng(seed)
    logits = [3 * rng.normal(size=(classes, *space)).astype("float32") for _ in range(count)]
    labels = [rng.integers(classes, size=space) for _ in range(count)]
    for each in labels:
        each[rng.random(space) < ignored] = 9
    return ArrayCases(logits, labels, ignore=9)


@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
def test_all_tiles_give_the_mean_nll_of_the_cases(name, randomise):
    calibrator = randomise(make_calibrator(name, 3))
    cases = ignoring(6)
    tiles = TileSource(cases, Window(2, 8, 4), FitConfig(voxels=100_000)).draw(0)
    batches = TileBatches(lambda number: tiles, CPU, 0, whole=name == "ibts")
    assert batches.mean(calibrator) == pytest.approx(mean_nll(calibrator, cases), rel=1e-5)
    assert (batches.count, batches.used) == (1, sum(int((case.labels >= 0).sum()) for case in cases))


def test_a_batch_without_a_labelled_voxel_is_passed_over(randomise):
    cases = ignoring(9)
    tiles = TileSource(cases, Window(2, 8, 4), FitConfig(voxels=100_000)).draw(0)
    tiles.labels[:8] = -1
    calibrator = randomise(make_calibrator("ibts", 3))
    batches = TileBatches(lambda number: tiles, CPU, 0, whole=True)
    for number in range(1, 6):
        losses = [float(loss.detach()) for loss in batches.losses(calibrator, number)]
        assert len(losses) == 1
        assert np.isfinite(losses).all()


BRIEF = FitConfig(max_steps=3, voxels=5000)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_without_validation_a_fifth_of_the_cases_is_held_back(name):
    certificate = fit(name, images(10, space=(40, 34)), config=BRIEF).certificate
    held = certificate.details["held_back"]
    assert len(held) == 2
    assert certificate.voxels_available == 8 * 40 * 34
    assert certificate.validation_nll == min(certificate.curve)
    assert fit(name, images(10, space=(40, 34)), config=BRIEF).certificate == certificate


@pytest.mark.parametrize("name", ["ibts", "pts"])
def test_a_single_case_holds_back_a_fifth_of_itself_and_says_so(name):
    certificate = fit(name, images(1, space=(40, 34)), config=BRIEF).certificate
    assert "a fifth of the" in certificate.details["held_back"]
    assert certificate.validation_nll <= certificate.curve[0]
    assert certificate.voxels_available == 40 * 34


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_a_single_tiny_case_is_fitted_on_all_it_has(name):
    certificate = fit(name, images(1, space=(2, 2)), config=BRIEF).certificate
    assert certificate.voxels == 4
    assert np.isfinite(certificate.validation_nll)


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_all_voxels_means_other_tiles_in_every_round(name):
    cases, held = images(4, space=(40, 34)), images(2, seed=1, space=(40, 34))
    certificate = fit(name, cases, validation=held, config=FitConfig(max_steps=3, voxels="all")).certificate
    assert certificate.voxels_available == 4 * 40 * 34
    assert np.isfinite(certificate.curve).all()


def trained(parameters, loss, validate, options):
    """One step a round."""
    return train_rounds(parameters, lambda number: [loss()], validate, options)


def _parameter(*values):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_the_parameters_end_where_validation_was_best_not_where_training_stopped():
    x = _parameter(0.0)
    result = trained([x], lambda: -x.sum(), lambda: (float(x.detach()) - 0.5) ** 2, TrainOptions(0.01, 10, 1000))
    assert float(x.detach()) == pytest.approx(0.5, abs=0.006)
    assert result.ran_out_of_patience
    assert result.steps == result.curve.index(min(result.curve)) + 10


def test_training_that_never_helps_stops_after_the_patience_and_keeps_the_start():
    x = _parameter(1.0)
    result = trained([x], lambda: -x.sum(), lambda: float(x.detach()), TrainOptions(0.01, 7, 1000))
    assert (result.steps, result.ran_out_of_patience, float(x.detach())) == (7, True, 1.0)


def test_training_stops_at_the_largest_number_of_steps():
    x = _parameter(0.0)
    result = trained([x], lambda: -x.sum(), lambda: -float(x.detach()), TrainOptions(0.01, 5, 12))
    assert (result.steps, result.ran_out_of_patience) == (12, False)


def test_the_learning_rate_halves_after_half_the_patience_without_improvement():
    # Under a constant gradient every step of Adam is as long as the learning rate.
    x, seen = _parameter(0.0), []

    def validate():
        seen.append(float(x.detach()))
        return 1.0

    trained([x], lambda: x.sum(), validate, TrainOptions(0.01, 10, 1000))
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
    with pytest.raises(ArtifactError, match=r"c.pt is no checkpoint of version 2"):
        FileKeeper(tmp_path / "c.pt", IDENTITY).load()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_and_its_schedule_are_those_of_torch(decay):
    torch.manual_seed(0)
    own = [torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64)), torch.nn.Parameter(torch.randn(3))]
    theirs = [torch.nn.Parameter(values.detach().clone()) for values in own]
    adam = Adam(own, TrainOptions(0.03, patience=6, max_steps=100, weight_decay=decay))
    groups = [{"params": theirs[:1], "weight_decay": decay}, {"params": theirs[1:]}]
    reference = torch.optim.Adam(groups, lr=0.03, eps=ADAM_EPS)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, factor=0.5, patience=3, threshold=0.0)
    losses = [1.0, 0.5, *[0.6] * 5, 0.4, *[0.5] * 9]
    for number, loss in enumerate(losses, 1):
        for values in (own, theirs):
            for parameter in values:
                parameter.grad = None
            (values[0].square().sum() + (values[0].sum(0) * values[1]).sin().sum()).backward()
        adam.step(number)
        reference.step()
        adam.look(loss)
        schedule.step(loss)
        assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))
        assert adam.state.rate == reference.param_groups[0]["lr"]
    assert adam.state.rate == 0.03 / 8
