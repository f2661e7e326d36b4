from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from paper.loss_study import together
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import train, train_steps
from paper.loss_study.training import TrainConfig
from segcal.demo.unet import UNet
from segcal.errors import InputError
from segcal.losses import make_loss

CONFIG = TrainConfig(epochs=4, batch_size=2, learning_rate=1e-2, flips=(0, 1), validate_every=2)
# Name: loss, epochs and seed.
TRAININGS = {"short": ("ce", 2, 1), "long": ("ce_dice", 4, 0), "middle": ("nacl", 3, 2), "late": ("svls", 2, 3)}


def drawn_cases(count, seed):
    images = torch.rand(count, 2, 9, 11, generator=torch.Generator().manual_seed(seed))
    return [(image, (image[0] > 0.5).long()) for image in images]


def arguments(name):
    loss, epochs, seed = TRAININGS[name]
    torch.manual_seed(seed)
    config = replace(CONFIG, epochs=epochs, seed=seed)
    return UNet(2, 2, widths=(3, 4)), make_loss(loss), drawn_cases(5, seed), config, drawn_cases(2, 9)


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


@pytest.mark.parametrize("at_once", [2, 4])
def test_each_training_ends_as_if_it_had_been_alone(at_once):
    trainings = ((name, train_steps(*arguments(name))) for name in TRAININGS)
    ended = {one.name: one.trained for one in take_turns(trainings, at_once, "cpu")}
    assert set(ended) == set(TRAININGS)
    for name, together_ in ended.items():
        alone = train(*arguments(name))
        assert together_.history == alone.history
        assert (together_.best_dice, together_.best_epoch) == (alone.best_dice, alone.best_epoch)
        for mine, its in zip(together_.network.state_dict().values(), alone.network.state_dict().values(), strict=True):
            assert torch.equal(mine, its)


def test_steps_alternate():
    log = Log()
    list(take_turns(log.asked({"a": 3, "b": 1, "c": 2}), 3, "cpu"))
    assert log[3:] == ["a", "b", "c", "a", "c", "a"]


@pytest.mark.parametrize(("at_once", "order"), [(1, "abcd"), (2, "bcda"), (4, "dbca")])
def test_trainings_come_back_with_their_names_as_they_end(at_once, order):
    ended = list(take_turns(Log().asked({"a": 6, "b": 1, "c": 2, "d": 0}), at_once, "cpu"))
    assert [one.name for one in ended] == list(order)
    assert [one.trained for one in ended] == [f"result of {name}" for name in order]
    assert all(one.error is None for one in ended)


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_the_next_training_is_asked_for_when_a_place_is_free(at_once):
    log = Log()
    running = take_turns(log.asked({"a": 3, "b": 5, "c": 1, "d": 2, "e": 4}), at_once, "cpu")
    assert not log  # not before anybody wants a result
    ended = 0
    for _ in running:
        asked = sum(entry.endswith("asked for") for entry in log)
        assert asked <= min(at_once + ended, 5)
        ended += 1
    assert ended == 5


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_as_many_are_in_progress_as_there_are_places(at_once):
    in_progress, most = set(), []

    def steps(name):
        in_progress.add(name)
        for _ in range(name):
            most.append(len(in_progress))
            yield
        in_progress.remove(name)

    assert len(list(take_turns(((name, steps(name)) for name in (3, 5, 1, 2, 4)), at_once, "cpu"))) == 5
    assert max(most) == min(at_once, 5)


def test_a_training_that_fails_ends_alone():
    log, broken = Log(), ArithmeticError("diverged")
    trainings = {"a": log.steps("a", 3), "b": log.steps("b", 1, broken), "c": log.steps("c", 2)}
    ended = {one.name: one for one in take_turns(iter(trainings.items()), 2, "cpu")}
    assert ended["b"].error is broken
    assert ended["b"].trained is None
    assert [ended[name].trained for name in "ac"] == ["result of a", "result of c"]
    assert sorted(log) == ["a", "a", "a", "b", "c", "c"]


def test_a_training_that_cannot_begin_is_returned_too():
    network, loss, _, config, _ = arguments("short")
    trainings = iter([("empty", train_steps(network, loss, [], config)), ("short", train_steps(*arguments("short")))])
    empty, short = take_turns(trainings, 1, "cpu")
    assert (empty.name, short.name) == ("empty", "short")
    assert isinstance(empty.error, InputError)
    assert len(short.trained.history) == 2


def test_an_interruption_is_no_failure_of_a_training():
    running = take_turns(iter([("a", Log().steps("a", 1, KeyboardInterrupt()))]), 1, "cpu")
    with pytest.raises(KeyboardInterrupt):
        next(running)


def test_nothing_to_train_is_nothing():
    assert list(take_turns(iter([]), 3, "cpu")) == []


def test_there_is_at_least_one_place():
    with pytest.raises(InputError, match="at_once is 0, but at least 1 is needed"):
        next(take_turns(Log().asked({"a": 1}), 0, "cpu"))


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
