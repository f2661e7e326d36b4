import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from paper.loss_study.trainer import case_dice, train, train_steps, validation_dice
from paper.loss_study.training import TrainConfig
from segcal.demo.unet import UNet
from segcal.errors import InputError
from segcal.losses import make_loss
from segcal.types import IGNORED

CONFIG = TrainConfig(epochs=6, batch_size=3, learning_rate=1e-2, flips=(0, 1), validate_every=2, seed=4)


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


def exhausted(steps):
    """Return how often a training let go, and its result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_steps_that_are_taken_one_by_one_are_the_training():
    whole = run()
    cases = bright_squares(7, 0), CONFIG, bright_squares(3, 1)
    count, trained = exhausted(train_steps(small_network(), make_loss("ce_dice"), *cases))
    assert count == 6 * 2  # batches of 3 of 7 cases, and the last one is left out
    assert trained.history == whole.history
    assert (trained.best_dice, trained.best_epoch) == (whole.best_dice, whole.best_epoch)
    assert torch.equal(weights(trained.network), weights(whole.network))
    assert not trained.network.training


def test_every_step_is_one_batch_that_moves_the_weights():
    network = small_network()
    norm = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d))
    parameters = [nn.utils.parameters_to_vector(network.parameters()).detach()]
    batches = []
    for _ in train_steps(network, make_loss("ce"), bright_squares(4, 0), replace(CONFIG, epochs=2, batch_size=2)):
        parameters.append(nn.utils.parameters_to_vector(network.parameters()).detach())
        batches.append(int(norm.num_batches_tracked))
    assert batches == [1, 2, 3, 4]
    assert all(not torch.equal(before, after) for before, after in pairwise(parameters))


def test_it_learns_what_is_there():
    untrained = run(replace(CONFIG, epochs=1, learning_rate=1e-9))
    trained = run(replace(CONFIG, epochs=20))
    assert trained.history[-1].loss < 0.5 * trained.history[0].loss
    assert trained.best_dice > 0.9
    assert untrained.best_dice < 0.6


def test_a_seed_fixes_the_result_and_another_one_changes_it():
    assert torch.equal(weights(run().network), weights(run().network))
    assert not torch.equal(weights(run().network), weights(run(replace(CONFIG, seed=5)).network))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path, optimizer):
    config = replace(CONFIG, optimizer=optimizer)

    def kill(epoch):
        if epoch.number == 5:  # one epoch after the checkpoint of epoch 4
            raise KeyboardInterrupt

    path = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        run(config, checkpoint=path, on_epoch=kill)
    numbers = []
    resumed = run(config, small_network(seed=99), checkpoint=path, on_epoch=lambda epoch: numbers.append(epoch.number))
    whole = run(config)
    assert numbers == [5, 6]
    assert resumed.history == whole.history
    assert (resumed.best_dice, resumed.best_epoch) == (whole.best_dice, whole.best_epoch)
    assert torch.equal(weights(resumed.network), weights(whole.network))


def test_a_module_that_draws_numbers_goes_on_as_well(tmp_path):
    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 2, 1))

    path = tmp_path / "state.pt"
    stop = iter(range(100))

    def kill(epoch):
        if next(stop) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(network=network(), checkpoint=path, on_epoch=kill)
    resumed, whole = run(network=network(), checkpoint=path), run(network=network())
    assert torch.equal(weights(resumed.network), weights(whole.network))


def test_a_finished_training_is_not_run_again(tmp_path):
    first = run(checkpoint=tmp_path / "state.pt")
    again = run(network=small_network(seed=7), checkpoint=tmp_path / "state.pt", on_epoch=lambda _: pytest.fail("ran"))
    assert torch.equal(weights(again.network), weights(first.network))


def test_the_weights_of_the_best_validation_are_kept():
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


def test_without_validation_the_last_weights_are_kept():
    trained = train(small_network(), make_loss("ce"), bright_squares(4, 0), replace(CONFIG, epochs=3))
    assert trained.best_dice is None
    assert trained.best_epoch == 3
    assert not trained.network.training


def test_mixed_precision_learns_too():
    trained = run(replace(CONFIG, epochs=12, amp=True))
    assert trained.best_dice > 0.8
    assert next(trained.network.parameters()).dtype == torch.float32


def test_volumes_and_single_cases_train():
    image = torch.rand(2, 5, 6, 7, generator=torch.Generator().manual_seed(0))
    labels = (image[0] > 0.5).long()
    torch.manual_seed(0)
    network = UNet(2, 2, dims=3, widths=(4, 4))
    trained = train(network, make_loss("ce_dice"), [(image, labels)], replace(CONFIG, epochs=40, flips=(2,)))
    assert trained.history[-1].loss < 0.7 * trained.history[0].loss


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
    mirrored = (epochs[..., 0] > epochs[..., 2]).double().mean()
    assert 0.35 < float(mirrored) < 0.65
    assert (epochs[..., 0, :] < epochs[..., 1, :]).all()  # the other axis is never turned
    assert len({tuple(epoch[:, 0].min(1).values.tolist()) for epoch in epochs}) > 30  # another order each time


def test_the_learning_rate_falls_to_zero_polynomially():
    class Rates(nn.Module):
        def forward(self, logits, labels):
            return logits[:, 1].sum() / logits[:, 0].sum()  # gradient 1 in the weight

    spy = Spy()
    cases = [(torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.int64))]
    config = TrainConfig(epochs=4, batch_size=1, learning_rate=0.1, weight_decay=0, optimizer="adam")
    train(spy, Rates(), cases, config)
    # Adam moves by the learning rate when the gradient never changes.
    expected = -0.1 * sum((1 - step / 4) ** 0.9 for step in range(4))
    assert math.isclose(float(spy.weight.detach()), expected, rel_tol=1e-5)


def test_no_cases_are_refused():
    with pytest.raises(InputError, match="cases is empty, but training needs at least one case"):
        train(small_network(), make_loss("ce"), [], CONFIG)


def test_a_loss_that_ignores_another_label_than_the_validation_is_refused():
    with pytest.raises(InputError, match=r"the loss ignores 255, but config\.ignore_index is -1\. Give"):
        train(small_network(), make_loss("ce", ignore_index=255), bright_squares(3, 0), CONFIG)


def test_the_ignored_label_decides_nothing_but_its_name():
    cases, validation = bright_squares(7, 0), bright_squares(3, 1)
    plain = train(small_network(), make_loss("ce"), cases, CONFIG, validation)
    cases, validation = (
        [(image, torch.where(labels == IGNORED, 255, labels)) for image, labels in part] for part in (cases, validation)
    )
    config = replace(CONFIG, ignore_index=255)
    other = train(small_network(), make_loss("ce", ignore_index=255), cases, config, validation)
    assert other.history == plain.history


def test_a_checkpoint_may_be_a_text_and_belongs_to_one_loss(tmp_path):
    path = str(tmp_path / "state.pt")
    run(checkpoint=path)
    with pytest.raises(InputError, match=r'was written with loss = "CrossEntropyDice\('):
        train(small_network(), make_loss("focal"), bright_squares(7, 0), CONFIG, checkpoint=path)


@pytest.mark.parametrize(("option", "text"), [({"seed": -1}, "seed is -1"), ({"device": "gpu"}, "device is 'gpu'")])
def test_settings_that_cannot_be_are_refused_by_name(option, text):
    with pytest.raises(InputError, match=text):
        TrainConfig(**option)


def scores_of(predicted, classes):
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).T.float()


def test_the_worked_value():
    labels = torch.tensor([0, 0, 1, 1, 0, 0])
    logits = scores_of([0, 1, 1, 1, 0, 2], 3)
    assert float(case_dice(logits, labels)) == pytest.approx((0.8 + 0) / 2)
    assert float(case_dice(logits, labels, include_background=True)) == pytest.approx((2 / 3 + 0.8 + 0) / 3)


def test_a_class_that_is_nowhere_is_left_out():
    labels = torch.tensor([0, 0, 1, 1])
    assert float(case_dice(scores_of([0, 1, 1, 1], 4), labels)) == pytest.approx(0.8)
    assert math.isnan(float(case_dice(scores_of([0, 0], 3), torch.tensor([0, 0]))))


def test_ignored_voxels_do_not_count_even_if_predicted():
    labels = torch.tensor([1, 1, IGNORED, IGNORED])
    assert float(case_dice(scores_of([1, 0, 1, 2], 3), labels)) == pytest.approx(2 / 3)


class Fixed(nn.Module):
    """Predicts its image."""

    def forward(self, image):
        assert not self.training
        return image


def test_cases_are_averaged_and_the_mode_is_given_back():
    good = scores_of([0, 1, 1, 0], 2), torch.tensor([0, 1, 1, 0])
    bad = scores_of([1, 0, 0, 1], 2), torch.tensor([0, 1, 1, 0])
    empty = scores_of([0, 0], 2), torch.tensor([0, 0])
    network = Fixed().train()
    assert validation_dice(network, [good, bad, empty], "cpu") == pytest.approx(0.5)
    assert network.training


@pytest.mark.parametrize("ignored", [-1, 255, -100, 0])
def test_the_label_that_is_ignored_can_be_any(ignored):
    logits = torch.zeros(3, 4, 4)
    logits[1] = 1
    labels = torch.ones(4, 4, dtype=torch.int64)
    labels[:2] = ignored
    assert float(case_dice(logits, labels, ignore_index=ignored)) == 1.0


@pytest.mark.parametrize("strange", [3, 255, -1])
def test_a_label_that_is_no_class_is_refused(strange):
    labels = torch.ones(4, 4, dtype=torch.int64)
    labels[0, 0] = strange
    with pytest.raises(InputError, match=f"labels contains {strange}, but there are classes 0 to 2"):
        case_dice(torch.zeros(3, 4, 4), labels, ignore_index=-7)
