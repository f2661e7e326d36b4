"""Training: networks, single steps, checkpoints, several trainings that take turns, steps that a GPU has recorded."""

import math
import pickle
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate, max_pool2d, one_hot

from paper.loss_study import together, trainer
from paper.loss_study.backbones import BACKBONES, AttentionUNet, Gate, UNetPlusPlus
from paper.loss_study.data import Stored
from paper.loss_study.network import LOGIT_EDGES, Data, Effort, logit_histogram, make_network, unit_steps
from paper.loss_study.plan import CONFIGS, Unit
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import case_dice, train, train_steps, validation_dice
from paper.loss_study.training import TrainConfig, Training, load_checkpoint, save_checkpoint
from segcal.demo.unet import UNet, upsample
from segcal.errors import ArtifactError, InputError
from segcal.losses import LOSSES, make_loss
from segcal.types import IGNORED

CONFIG = TrainConfig(epochs=6, batch_size=3, learning_rate=1e-2, flips=(0, 1), validate_every=2, seed=4)
SPACES = {2: (13, 19), 3: (7, 9, 11)}


def test_a_gate_multiplies_each_place_by_a_number_between_zero_and_one():
    torch.manual_seed(1)
    gate = Gate(2, 3, 4)
    coarse, fine = torch.rand(1, 3, 5, 6), torch.rand(1, 4, 5, 6) + 0.1
    share = gate(coarse, fine) / fine
    assert bool(((share > 0) & (share < 1)).all())
    torch.testing.assert_close(share, share[:, :1].expand_as(share))
    features = torch.relu(gate.of_coarse(coarse) + gate.of_fine(fine))
    torch.testing.assert_close(share[:, :1], 1 / (1 + torch.exp(-gate.score(features))))


def test_a_shut_gate_keeps_the_skip_connection_out():
    torch.manual_seed(2)
    network = AttentionUNet(1, 2, widths=(4, 6)).eval()
    with torch.no_grad():
        network.gates[0].score.weight.zero_()
        network.gates[0].score.bias.fill_(-100.0)
    image = torch.rand(1, 1, 8, 8)
    coarse = interpolate(network.down[1](max_pool2d(network.down[0](image), 2)), (8, 8))
    expected = network.head(network.up[0](torch.cat([coarse, torch.zeros(1, 4, 8, 8)], 1)))
    torch.testing.assert_close(network(image), expected)


def test_nodes_are_joined_as_written():
    """Three levels, every node by hand; one level is a plain network."""
    torch.manual_seed(3)
    network = UNetPlusPlus(1, 2, widths=(4, 5, 6)).eval()
    image = torch.rand(1, 1, 12, 8)
    x00 = network.down[0](image)
    x10 = network.down[1](max_pool2d(x00, 2))
    x20 = network.down[2](max_pool2d(x10, 2))
    (l01, l11), (l02,) = network.columns
    x01 = l01(torch.cat([x00, interpolate(x10, (12, 8))], 1))
    x11 = l11(torch.cat([x10, interpolate(x20, (6, 4))], 1))
    x02 = l02(torch.cat([x00, x01, interpolate(x11, (12, 8))], 1))
    torch.testing.assert_close(network(image), network.head(x02))
    assert UNetPlusPlus(1, 2, widths=(4,))(torch.rand(1, 1, 5, 6)).shape == (1, 2, 5, 6)


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("dims", [2, 3])
def test_a_backbone_gives_logits_of_the_size_of_the_image_and_all_its_parameters_have_a_say(name, dims):
    torch.manual_seed(0)
    network = BACKBONES[name](channels=3, num_classes=5, dims=dims, widths=(4, 6, 8))
    logits = network(torch.rand(2, 3, *SPACES[dims]))
    assert logits.shape == (2, 5, *SPACES[dims])
    logits.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in network.parameters())
    with pytest.raises(InputError, match="dims is 1, but 2 or 3 is needed"):
        BACKBONES[name](1, 2, dims=1)
    with pytest.raises(InputError, match=r"image has shape \(1, 8, 8\)"):
        BACKBONES[name](1, 2)(torch.rand(1, 8, 8))


def test_an_encoder_halves_the_space_and_an_upsampling_undoes_it():
    levels = []
    network = UNet(1, 2, widths=(2, 3, 4)).eval()
    network.decode = lambda found: levels.extend(found) or found[0]
    network(torch.rand(1, 1, 9, 14))
    assert [tuple(features.shape) for features in levels] == [(1, 2, 9, 14), (1, 3, 4, 7), (1, 4, 2, 3)]
    assert upsample(levels[2], levels[0]).shape == (1, 4, 9, 14)
    with pytest.raises(InputError, match=r"widths is \(\), but positive numbers are needed"):
        UNet(1, 2, widths=())
    with pytest.raises(InputError, match="with 3 axes of space"):
        UNet(1, 2, dims=3)(torch.zeros(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"epochs": 0}, "epochs is 0, but at least 1 is needed"),
        ({"learning_rate": float("nan")}, "learning_rate is nan, but more than 0 is needed"),
        ({"optimizer": "lion"}, "optimizer is 'lion', but adam or sgd is needed"),
        ({"seed": -1}, "seed is -1"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"graph": True}, "graph is True with device 'cpu', but graphs are recorded on a CUDA device"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(option, text):
    with pytest.raises(InputError, match=text):
        TrainConfig(**option)


def bright_squares(count, seed, space=(12, 17)):
    """Noise with a brighter rectangle whose pixels are class 1; the first row is void."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for _ in range(count):
        image = torch.rand(2, *space, generator=generator)
        labels = torch.zeros(space, dtype=torch.int64)
        top, left = (int(torch.randint(1, size - 6, (1,), generator=generator)) for size in space)
        labels[top : top + 5, left : left + 6] = 1
        labels[0] = IGNORED
        cases.append((image + 1.5 * (labels == 1), labels))
    return cases


def small_network(seed=0):
    torch.manual_seed(seed)
    return UNet(2, 2, widths=(4, 6))


def weights(network):
    return torch.cat([value.flatten().double() for value in network.state_dict().values()])


def run(config=CONFIG, network=None, **options):
    network = small_network() if network is None else network
    return train(network, make_loss("ce_dice"), bright_squares(7, 0), config, bright_squares(3, 1), **options)


@pytest.fixture(scope="module")
def whole():
    return run()


def assert_same(one, other):
    assert one.history == other.history
    assert (one.best_dice, one.best_epoch) == (other.best_dice, other.best_epoch)
    assert torch.equal(weights(one.network), weights(other.network))


def test_steps_that_are_taken_one_by_one_are_the_training(whole):
    network = small_network()
    norm = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d))
    steps = train_steps(network, make_loss("ce_dice"), bright_squares(7, 0), CONFIG, bright_squares(3, 1))
    parameters, batches, ended = [nn.utils.parameters_to_vector(network.parameters()).detach()], [], []

    def all_steps():
        ended.append((yield from steps))

    for _ in all_steps():
        parameters.append(nn.utils.parameters_to_vector(network.parameters()).detach())
        batches.append(int(norm.num_batches_tracked))
    assert_same(ended[0], whole)
    assert not ended[0].network.training
    assert batches == list(range(1, 13))  # six epochs; of 7 cases in batches of 3 the last one is left out
    assert all(not torch.equal(before, after) for before, after in pairwise(parameters))


def test_it_learns_what_is_there_also_in_mixed_precision_and_of_volumes():
    untrained = run(replace(CONFIG, epochs=1, learning_rate=1e-9))
    trained = run(replace(CONFIG, epochs=20))
    assert trained.history[-1].loss < 0.5 * trained.history[0].loss
    assert trained.best_dice > 0.9 > 0.6 > untrained.best_dice
    mixed = run(replace(CONFIG, epochs=12, amp=True))
    assert mixed.best_dice > 0.8
    assert next(mixed.network.parameters()).dtype == torch.float32
    assert TrainConfig().amp_dtype() == torch.bfloat16
    image = torch.rand(2, 5, 6, 7, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    volumes = UNet(2, 2, dims=3, widths=(4, 4)), make_loss("ce_dice"), [(image, (image[0] > 0.5).long())]
    history = train(*volumes, replace(CONFIG, epochs=40, flips=(2,))).history
    assert history[-1].loss < 0.7 * history[0].loss


def test_a_seed_fixes_the_result_and_another_one_changes_it(whole):
    assert_same(run(), whole)
    assert not torch.equal(weights(run(replace(CONFIG, seed=5)).network), weights(whole.network))


def with_dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 2, 1))


@pytest.mark.parametrize(
    ("optimizer", "make"), [("adam", small_network), ("sgd", small_network), ("adam", with_dropout)]
)
def test_a_killed_training_goes_on_to_the_same_weights_and_a_finished_one_is_not_run_again(tmp_path, optimizer, make):
    config, path = replace(CONFIG, optimizer=optimizer), tmp_path / "state.pt"

    def kill(epoch):
        if epoch.number == 5:  # one epoch after the checkpoint of epoch 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, make(), checkpoint=path, on_epoch=kill)
    numbers = []
    resumed = run(config, make(), checkpoint=str(path), on_epoch=lambda epoch: numbers.append(epoch.number))
    assert numbers == [5, 6]
    assert_same(resumed, run(config, make()))
    assert_same(run(config, make(), checkpoint=path, on_epoch=lambda _: pytest.fail("ran")), resumed)


def test_the_weights_of_the_best_validation_are_kept_and_without_one_the_last():
    trained = run(replace(CONFIG, epochs=12, learning_rate=0.3))
    validated = {epoch.number: epoch.dice for epoch in trained.history if epoch.dice is not None}
    assert list(validated) == [2, 4, 6, 8, 10, 12]
    assert trained.best_dice == max(validated.values())
    assert validated[trained.best_epoch] == trained.best_dice
    scores = []
    for image, labels in bright_squares(3, 1):
        predicted = trained.network(image[None])[0].argmax(0)
        mine, true = (predicted == 1) & (labels != IGNORED), labels == 1
        scores.append(2 * float((mine & true).sum()) / float(mine.sum() + true.sum()))
    assert sum(scores) / 3 == pytest.approx(trained.best_dice, abs=1e-6)
    last = train(small_network(), make_loss("ce"), bright_squares(4, 0), replace(CONFIG, epochs=3))
    assert (last.best_dice, last.best_epoch, last.network.training) == (None, 3, False)


class Spy(nn.Module):
    """Records what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, images):
        self.seen.append(images.clone())
        return torch.cat([images[:, :1], images[:, :1] * self.weight], 1)


class AgreesWithLabels(nn.Module):
    """Checks that an image was mirrored as its labels were."""

    def forward(self, logits, labels):
        assert torch.equal(logits[:, 0].detach().long(), labels)
        return logits.mean()


def test_every_case_is_used_once_an_epoch_and_mirrored_with_its_labels():
    values = torch.arange(6 * 2 * 3.0).reshape(6, 1, 2, 3)
    cases = [(image, image[0].long()) for image in values]
    spy = Spy()
    train(spy, AgreesWithLabels(), cases, TrainConfig(epochs=40, batch_size=2, flips=(1,), gradient_clip=1e9))
    epochs = torch.cat(spy.seen).reshape(40, 6, 2, 3)
    assert all(sorted(epoch.flatten().tolist()) == list(range(36)) for epoch in epochs)
    assert 0.35 < float((epochs[..., 0] > epochs[..., 2]).double().mean()) < 0.65
    assert (epochs[..., 0, :] < epochs[..., 1, :]).all()  # the other axis is never turned
    assert len({tuple(epoch[:, 0].min(1).values.tolist()) for epoch in epochs}) > 30  # another order each time


def test_the_learning_rate_falls_to_zero_polynomially():
    class Rates(nn.Module):
        def forward(self, logits, labels):
            return logits[:, 1].sum() / logits[:, 0].sum()  # gradient 1 in the weight

    spy = Spy()
    cases = [(torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.int64))]
    train(spy, Rates(), cases, TrainConfig(epochs=4, batch_size=1, learning_rate=0.1, weight_decay=0, optimizer="adam"))
    # Adam moves by the learning rate when the gradient never changes.
    expected = -0.1 * sum((1 - step / 4) ** 0.9 for step in range(4))
    assert math.isclose(float(spy.weight.detach()), expected, rel_tol=1e-5)


def test_the_ignored_label_decides_nothing_but_its_name():
    cases, validation = bright_squares(7, 0), bright_squares(3, 1)
    plain = train(small_network(), make_loss("ce"), cases, CONFIG, validation)
    with pytest.raises(InputError, match=r"the loss ignores 255, but config\.ignore_index is -1\. Give"):
        train(small_network(), make_loss("ce", ignore_index=255), cases, CONFIG)
    with pytest.raises(InputError, match="cases is empty, but training needs at least one case"):
        train(small_network(), make_loss("ce"), [], CONFIG)
    cases, validation = (
        [(image, torch.where(labels == IGNORED, 255, labels)) for image, labels in part] for part in (cases, validation)
    )
    config = replace(CONFIG, ignore_index=255)
    other = train(small_network(), make_loss("ce", ignore_index=255), cases, config, validation)
    assert other.history == plain.history


def scores_of(predicted, classes):
    return one_hot(torch.tensor(predicted), classes).T.float()


def test_dice_of_worked_cases():
    labels = torch.tensor([0, 0, 1, 1, 0, 0])
    logits = scores_of([0, 1, 1, 1, 0, 2], 3)
    assert float(case_dice(logits, labels)) == pytest.approx((0.8 + 0) / 2)
    assert float(case_dice(logits, labels, include_background=True)) == pytest.approx((2 / 3 + 0.8 + 0) / 3)
    # A class that is nowhere is left out, and voxels that are ignored do not count even if predicted.
    assert float(case_dice(scores_of([0, 1, 1, 1], 4), torch.tensor([0, 0, 1, 1]))) == pytest.approx(0.8)
    assert math.isnan(float(case_dice(scores_of([0, 0], 3), torch.tensor([0, 0]))))
    for ignored in (IGNORED, 255, -100, 0):
        labels = torch.tensor([1, 1, ignored, ignored])
        assert float(case_dice(scores_of([1, 2, 1, 2], 3), labels, ignore_index=ignored)) == pytest.approx(1 / 3)
    for strange in (3, -1):
        with pytest.raises(InputError, match=f"labels contains {strange}, but there are classes 0 to 2"):
            case_dice(torch.zeros(3, 2), torch.tensor([strange, 1]), ignore_index=-7)


class Fixed(nn.Module):
    """Predicts its image."""

    def forward(self, image):
        assert not self.training
        return image


def test_cases_are_averaged_and_the_mode_is_given_back():
    truth = torch.tensor([0, 1, 1, 0])
    good, bad = (scores_of(predicted, 2) for predicted in ([0, 1, 1, 0], [1, 0, 0, 1]))
    empty = scores_of([0, 0], 2), torch.tensor([0, 0])
    network = Fixed().train()
    assert validation_dice(network, [(good, truth), (bad, truth), empty], "cpu") == pytest.approx(0.5)
    assert network.training


def training(loss="CrossEntropy()", cases=7, **options):
    return Training(TrainConfig(**options), loss, cases)


def test_a_state_comes_back_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "state.pt"
    save_checkpoint(path, {"done": 3, "network": {"w": torch.arange(4.0)}}, training(flips=(0, 1)))
    state = load_checkpoint(path, training(flips=(0, 1)))
    assert (state["done"], state["network"]["w"].tolist()) == (3, [0, 1, 2, 3])
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]


def test_other_settings_are_refused_but_another_device_is_not(tmp_path):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {}, training(learning_rate=0.1))
    load_checkpoint(path, training(learning_rate=0.1, device="meta"))
    for other, message in (
        (training(learning_rate=0.2), r"written with learning_rate = 0\.1, but the training now has 0\.2"),
        (
            training("Focal()", learning_rate=0.1),
            r"written with loss = 'CrossEntropy\(\)', but the training now has 'F",
        ),
        (training(cases=8, learning_rate=0.1), "written with cases = 7, but the training now has 8"),
    ):
        with pytest.raises(InputError, match=message):
            load_checkpoint(path, other)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_damaged_checkpoint_is_named_and_none_can_run_code(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ArtifactError, match=r"state\.pt is not readable as a checkpoint"):
        load_checkpoint(path, training())
    torch.save({"version": 99}, path)
    with pytest.raises(ArtifactError, match=r"state\.pt is not a checkpoint of version 2"):
        load_checkpoint(path, training())
    torch.save({"version": 2, "trap": Trap(tmp_path / "sprung")}, path, pickle_module=pickle)
    with pytest.raises(ArtifactError, match="not readable as a checkpoint"):
        load_checkpoint(path, training())
    assert not (tmp_path / "sprung").exists()


class Log(list):
    """The events, in order."""

    def steps(self, name, count, error=None):
        """A training of so many steps, that may fail after them."""
        for _ in range(count):
            self.append(name)
            yield
        if error is not None:
            raise error
        return f"result of {name}"

    def asked(self, counts):
        for name, count in counts.items():
            self.append(f"{name} asked for")
            yield name, self.steps(name, count)


def test_each_training_ends_as_if_it_had_been_alone():
    def arguments(name):
        config = replace(CONFIG, epochs=2, batch_size=2, seed=len(name))
        return small_network(), make_loss(name), bright_squares(5, 0), config, bright_squares(2, 9)

    names = ("ce", "ce_dice", "nacl", "svls")
    ended = {one.name: one.trained for one in take_turns(((n, train_steps(*arguments(n))) for n in names), 3, "cpu")}
    assert set(ended) == set(names)
    for name, found in ended.items():
        assert_same(found, train(*arguments(name)))


@pytest.mark.parametrize(("at_once", "order"), [(1, "abcd"), (2, "bcda"), (4, "dbca")])
def test_steps_alternate_and_trainings_come_back_as_they_end(at_once, order):
    log = Log()
    ended = list(take_turns(log.asked({"a": 6, "b": 1, "c": 2, "d": 0}), at_once, "cpu"))
    assert [one.name for one in ended] == list(order)
    assert [one.trained for one in ended] == [f"result of {name}" for name in order]
    assert all(one.error is None for one in ended)
    if at_once == 4:
        assert log[4:] == ["a", "b", "c", "a", "c", "a", "a", "a", "a"]
    with pytest.raises(InputError, match="at_once is 0, but at least 1 is needed"):
        next(take_turns(log.asked({"a": 1}), 0, "cpu"))
    assert list(take_turns(iter([]), at_once, "cpu")) == []


@pytest.mark.parametrize("at_once", [1, 3, 9])
def test_the_next_training_is_asked_for_when_a_place_is_free(at_once):
    log = Log()
    running = take_turns(log.asked({"a": 3, "b": 5, "c": 1, "d": 2, "e": 4}), at_once, "cpu")
    assert not log  # not before anybody wants a result
    for ended, _ in enumerate(running):
        assert sum(entry.endswith("asked for") for entry in log) == min(at_once + ended, 5)


def test_a_training_that_fails_ends_alone_and_an_interruption_is_no_failure():
    log, broken = Log(), ArithmeticError("diverged")
    network = small_network()
    trainings = {"a": log.steps("a", 3), "b": log.steps("b", 1, broken), "c": log.steps("c", 2)}
    trainings["empty"] = train_steps(network, make_loss("ce"), [], CONFIG)
    ended = {one.name: one for one in take_turns(iter(trainings.items()), 2, "cpu")}
    assert (ended["b"].error, ended["b"].trained) == (broken, None)
    assert isinstance(ended["empty"].error, InputError)
    assert [ended[name].trained for name in "ac"] == ["result of a", "result of c"]
    assert sorted(log) == ["a", "a", "a", "b", "c", "c"]
    with pytest.raises(KeyboardInterrupt):
        next(take_turns(iter([("a", Log().steps("a", 1, KeyboardInterrupt()))]), 1, "cpu"))


class Stream:
    """Stands in for a stream of a GPU: knows whose steps it has run, and what was still waiting when one came back."""

    def __init__(self, device):
        self.device, self.names, self.waiting = device, [], False

    def synchronize(self):
        self.waiting = False


def test_on_a_gpu_each_place_has_a_stream_that_is_done_when_its_training_is(monkeypatch):
    streams, current = [], []

    def make(device):
        streams.append(Stream(device))
        return streams[-1]

    @contextmanager
    def turn(stream):
        current.append(stream)
        try:
            yield
        finally:
            current.pop()

    def steps(name, count):
        for _ in range(count):
            current[-1].names.append(name)
            current[-1].waiting = True
            yield
        current[-1].waiting = True  # the best weights are put back

    monkeypatch.setattr(together.torch.cuda, "Stream", make)
    monkeypatch.setattr(together.torch.cuda, "stream", turn)
    running = take_turns(((name, steps(name, count)) for name, count in (("a", 4), ("b", 2), ("c", 3))), 2, "cuda:1")
    for one in running:
        (mine,) = (stream for stream in streams if one.name in stream.names)
        assert not mine.waiting
    assert not current
    assert [stream.device for stream in streams] == ["cuda:1"] * 2
    assert sorted("".join(stream.names) for stream in streams) == ["aaaa", "bbccc"]


def test_a_step_is_recorded_in_the_precision_of_the_training_unless_its_loss_is_scaled(monkeypatch):
    def state_of(config):
        return trainer._State(nn.Conv2d(1, 2, 1), nn.CrossEntropyLoss(), config, num_cases=1)

    monkeypatch.setattr(trainer, "GraphedGradients", lambda *arguments: arguments)
    assert TrainConfig(graph=True, device="cuda:0", amp=True).graph
    for amp, half in ((False, None), (True, torch.bfloat16)):
        state = state_of(TrainConfig(amp=amp))
        assert state._recorded() == (state.network, state.loss, half)
    monkeypatch.setattr(TrainConfig, "amp_dtype", lambda config: torch.float16)
    with pytest.raises(InputError, match="graph is True with mixed precision in float16, but a recorded step cannot"):
        state_of(TrainConfig(amp=True))._recorded()
    assert state_of(TrainConfig(amp=False))._recorded()[2] is None


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_trainings_recorded_alone_or_side_by_side_are_the_plain_trainings(dims, amp):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    images = torch.rand(8, 2, *(12,) * dims, generator=torch.Generator().manual_seed(0))
    cases = [(image.cuda(), (image[0] > 0.5).long().cuda()) for image in images]

    def arguments(name, graph):
        torch.manual_seed(0)
        config = TrainConfig(epochs=4, batch_size=4, device="cuda", flips=(0,), amp=amp, graph=graph)
        return UNet(2, 3, dims, widths=(4, 6)), make_loss(name), cases, config

    trainings = ((name, train_steps(*arguments(name, True))) for name in LOSSES)
    ended = {one.name: one for one in take_turns(trainings, 3, "cuda")}
    assert set(ended) == set(LOSSES)
    for name, one in ended.items():
        assert one.error is None
        plain, alone = ([epoch.loss for epoch in train(*arguments(name, graph)).history] for graph in (False, True))
        # Sums on a GPU have no fixed order, and bfloat16 has 8 bits.
        for found in (alone, [epoch.loss for epoch in one.trained.history]):
            assert found == pytest.approx(plain, rel=0.05 if amp else 0.02)


class Constant(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, image):
        return self.logits.reshape(1, -1, 1, 1).expand(len(image), -1, *image.shape[2:])


def test_a_histogram_counts_the_largest_logit_of_every_voxel():
    counts = logit_histogram(Constant([-1.0, 3.2]), [torch.zeros(3, 4, 5)] * 2)
    assert sum(counts) == 40
    place = counts.index(40)
    assert LOGIT_EDGES[place] <= 3.2 < LOGIT_EDGES[place + 1]
    assert logit_histogram(Constant([0.0, 1e6]), [torch.zeros(3, 4, 5)])[-1] == 20


def small_cases(count):
    images = np.random.default_rng(0).random((count, 3, 16, 24)).astype(np.float32)
    return [Stored(str(i), image, (image[0] > 0.5).astype(np.int64)) for i, image in enumerate(images)]


def trained_unit(unit, data, effort):
    """Train a unit to its end and return the result and the histograms."""
    histograms = {}
    (ended,) = take_turns(iter([(unit, unit_steps(unit, data, effort, histograms))]), 1, effort.device)
    if ended.error is not None:
        raise ended.error
    return ended.trained, histograms


def pairs(cases):
    return [(torch.from_numpy(case.image), torch.from_numpy(case.labels)) for case in cases]


def test_a_unit_is_trained_with_its_loss_its_backbone_its_share_and_its_seed():
    unit = Unit("roads", "nacl_0.2", 1, backbone="attention_unet", share=50)
    found, histograms = trained_unit(unit, Data(small_cases(5), small_cases(2)), Effort(epochs=2))
    torch.manual_seed(1)
    network = AttentionUNet(3, 2, widths=(16, 24, 48, 72)).to(memory_format=torch.channels_last)
    config = replace(CONFIGS["roads"], epochs=2, seed=1)
    loss = make_loss("nacl", weight=0.2)
    assert_same(found, train(network, loss, pairs(small_cases(5)[:2]), config, pairs(small_cases(2))))
    assert not histograms  # which are of the main table


def test_logits_of_four_validation_cases_are_watched_at_the_first_epoch_and_at_each_validation(monkeypatch):
    monkeypatch.setitem(CONFIGS, "roads", replace(CONFIGS["roads"], validate_every=2, epochs=5))
    cases = small_cases(6)
    unit = Unit("roads", "ce", 0)
    assert sorted(trained_unit(unit, Data(cases[:2], cases[:1]), Effort())[1]) == [1, 2, 4, 5]
    found, histograms = trained_unit(unit, Data(cases[:1], cases), Effort(epochs=1))
    assert histograms == {1: logit_histogram(found.network, [image for image, _ in pairs(cases[:4])])}
    assert sum(histograms[1]) == 4 * 16 * 24
    assert len(trained_unit(unit, Data(cases[:1], cases[:1]), Effort(epochs=9))[0].history) == 5


def test_a_checkpoint_and_its_histograms_stand_where_they_are_wanted_until_they_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unit, cases, effort = Unit("roads", "ce", 0), (small_cases(1), small_cases(1)), Effort(epochs=1)
    _, histograms = trained_unit(unit, Data(*cases), effort)
    assert histograms
    assert not list(tmp_path.iterdir())
    data = Data(*cases, tmp_path / "roads-svls_0.5.pt")
    assert data.histograms() == {}
    first, histograms = trained_unit(unit, data, effort)
    assert data.histograms() == histograms
    assert {path.name for path in tmp_path.iterdir()} == {"roads-svls_0.5.pt", "roads-svls_0.5.json"}
    with pytest.raises(StopIteration) as end:  # without a single step
        next(unit_steps(unit, data, effort, {}))
    assert torch.equal(weights(end.value.value.network), weights(first.network))
    data.forget()
    assert data.histograms() == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("task", "shape", "layout"),
    [("streets", (3, 3, 8, 9), torch.channels_last), ("tumour", (2, 4, 8, 9, 10), torch.channels_last_3d)],
)
def test_weights_lie_channels_last(task, shape, layout):
    network = make_network(Unit(task, "ce", 0))
    convolutions = [value for value in network.parameters() if value.ndim == len(shape) and value.shape[-1] == 3]
    assert len(convolutions) > 10
    assert all(value.is_contiguous(memory_format=layout) for value in convolutions)
    assert network(torch.rand(shape)).shape[2:] == shape[2:]
