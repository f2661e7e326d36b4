import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paper.loss_study.data import FULL, SMALL, Sizes, all_chunks
from paper.loss_study.measure import fit_post_hoc
from paper.loss_study.network import Effort, make_network
from paper.loss_study.plan import MAIN, Unit
from paper.loss_study.rows import write_weights
from paper.loss_study.study import Desk, Study, measure_unit, slice_shown, train_unit
from paper.loss_study.together import take_turns
from segcal.demo.tasks import get_task

# Networks of a test are hardly trained, and that is noticed.
pytestmark = pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
TINY = Sizes({"roads": 2, "tumour": 2, "streets": 1}, valid=1, cal=2, val=1, test=2)
SPACE = {"roads": (16, 24), "tumour": (16, 17, 9)}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A place to work at with small made-up cases, where one calibrator is fitted."""
    monkeypatch.setattr("paper.loss_study.study.fit_post_hoc", partial(fit_post_hoc, names=("ts",)))
    desk = Desk(tmp_path, TINY, Effort(epochs=2))
    rng = np.random.default_rng(0)
    for chunk in all_chunks(tuple(SPACE), TINY):
        facts, space = get_task(chunk.task), SPACE[chunk.task]
        image = rng.random((len(chunk.indices), facts.channels, *space), np.float32)
        labels = np.clip((facts.num_classes * image[:, 0]).astype(np.int64), 0, facts.num_classes - 1)
        np.savez(tmp_path / "cases" / chunk.name, image=image, labels=labels)
    return desk


def trained(unit, desk):
    (ended,) = take_turns(iter([(unit, train_unit(unit, desk))]), 1, "cpu")
    assert ended.error is None
    return ended.trained


def written(unit, desk):
    """Keep an untrained network, and return it as it is and as it is measured: with weights of 16 bits."""
    torch.manual_seed(3)
    exact = make_network(unit).eval()
    write_weights(desk.weights(unit), exact, {"best_dice": 0.5})
    narrow = make_network(unit).eval()
    with torch.no_grad():
        for mine, its in zip(narrow.parameters(), exact.parameters(), strict=True):
            mine.copy_(its.half())
    return exact, narrow


def row_of(unit, desk):
    return json.loads(desk.row(unit).read_text())


def test_a_trained_unit_leaves_its_weights_and_no_checkpoint(desk):
    unit = Unit("roads", "nacl", 0)
    steps = train_unit(unit, desk)
    assert not desk.weights(unit).exists()
    (ended,) = take_turns(iter([(unit, steps)]), 1, "cpu")
    kept = load_file(desk.weights(unit))
    for name, value in ended.trained.network.state_dict().items():
        assert torch.equal(kept[name], value.to(kept[name].dtype)), name
    assert kept["head.weight"].dtype == torch.float16
    assert not list((desk.folder / "checkpoints").iterdir())
    assert not desk.row(unit).exists()


def test_a_measured_unit_has_what_happened_in_training(desk):
    unit = Unit("roads", "nacl", 0)
    result = trained(unit, desk)
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert row["unit"] == {"task": "roads", "variant": "nacl", "seed": 0, "backbone": "unet", "share": 100}
    assert [entry[0] for entry in row["history"]] == [1, 2]
    assert [entry[1] for entry in row["history"]] == pytest.approx([epoch.loss for epoch in result.history], rel=1e-6)
    assert row["best_dice"] == pytest.approx(result.best_dice, rel=1e-6)
    assert row["best_epoch"] == result.best_epoch
    assert sorted(row["logit_histograms"]) == ["1", "2"]
    assert desk.weights(unit).exists()  # they may be looked at again


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_a_unit_of_the_main_table_is_calibrated_and_measured_on_degraded_cases(desk, task):
    unit = Unit(task, "ce", 1)
    written(unit, desk)
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert set(row["values"]) == {"clean", "corrupted"}
    assert all(set(values) == {"none", "ts"} for values in row["values"].values())
    assert all(len(column) == 2 for column in row["values"]["corrupted"]["none"].values())
    assert row["cases"] == [f"{task}_0003", f"{task}_0004"]
    assert "hd95" in row["values"]["clean"]["none"]
    assert set(row["fits"]) == {"ts"}
    assert not list((desk.folder / "rows").glob("*.npz"))  # pictures are of seed 0


@pytest.mark.parametrize("unit", [Unit("roads", "svls_1", 0), Unit("roads", "ce", 0, share=50)])
def test_another_unit_is_measured_as_it_is(desk, unit):
    written(unit, desk)
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert set(row["values"]) == {"clean"}
    assert set(row["values"]["clean"]) == {"none"}
    assert row["fits"] == {}
    assert not list((desk.folder / "rows").glob("*.npz"))


def test_the_network_with_weights_of_16_bits_is_measured(desk):
    unit = Unit("roads", "ce", 1)
    exact, narrow = written(unit, desk)
    measure_unit(unit, desk)
    values = row_of(unit, desk)["values"]["clean"]["none"]["nll"]

    def likelihoods(network):
        found = []
        for case in desk.part("roads", "test"):
            with torch.no_grad():
                log_probs = torch.log_softmax(network(torch.from_numpy(case.image)[None])[0].double(), 0)
            picked = [log_probs[label][torch.from_numpy(case.labels == label)] for label in (0, 1)]
            found.append(-float(torch.cat(picked).mean()))
        return found

    assert values == pytest.approx(likelihoods(narrow), rel=1e-6)
    assert values != pytest.approx(likelihoods(exact), rel=1e-6)


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_pictures_show_the_first_test_case(desk, task):
    unit = Unit(task, "ce", 0)
    _, network = written(unit, desk)
    measure_unit(unit, desk)
    case = desk.part(task, "test")[0]
    probs = torch.softmax(network(torch.from_numpy(case.image)[None])[0].detach(), 0).numpy()
    image, labels = case.image, case.labels
    if task == "tumour":
        place = max(range(9), key=lambda number: (labels[..., number] > 0).sum())
        probs, image, labels = probs[..., place], image[..., place], labels[..., place]
    with np.load(desk.folder / "rows" / f"{unit.name}.npz") as arrays:
        np.testing.assert_array_equal(arrays["prediction"], probs.argmax(0))
        np.testing.assert_allclose(arrays["confidence"], 255 * probs.max(0), atol=0.51)
    with np.load(desk.folder / "rows" / f"{task}-shown.npz") as arrays:
        np.testing.assert_array_equal(arrays["labels"], labels)
        np.testing.assert_allclose(arrays["image"], 255 * (image - image.min()) / np.ptp(image), atol=0.51)


def test_cases_are_read_once(desk):
    assert desk.part("roads", "test") is desk.part("roads", "test")
    assert [case.id for case in desk.part("roads", "val")] == ["roads_0002"]


def test_of_a_volume_the_slice_with_most_foreground_is_shown():
    labels = np.zeros((4, 5, 6), int)
    labels[1:3, 1:3, 4] = 2
    labels[0, 0, 1] = 1
    assert slice_shown(labels) == (slice(None), slice(None), 4)
    assert slice_shown(labels[..., 0]) == (slice(None), slice(None))


def study(tmp_path, **options):
    return Study(tmp_path, tmp_path / "all.zip", **options)


def test_the_main_table_alone_has_every_loss_with_every_seed(tmp_path):
    units = study(tmp_path, main=True, seeds=2, tasks=("roads",)).units()
    assert [(unit.variant, unit.seed) for unit in units] == [(variant, seed) for seed in (0, 1) for variant in MAIN]
    everything = study(tmp_path, seeds=2, tasks=("roads",)).units()
    assert everything[: len(units)] == units
    assert len(everything) > 2 * len(units)
    assert study(tmp_path, limit=3).units() == study(tmp_path).units()[:3]


def test_a_small_study_has_few_cases_and_two_epochs(tmp_path):
    small, full = study(tmp_path, small=True).desk(), study(tmp_path).desk(graph=True)
    assert (small.sizes, small.effort.epochs) == (SMALL, 2)
    assert (full.sizes, full.effort.epochs, full.effort.graph) == (FULL, None, True)


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert Study(Path("a"), Path("b"), trainers=4, measurers=3).threads() == 2
    assert Study(Path("a"), Path("b"), trainers=20).threads() == 1
    assert Study(Path("a"), Path("b"), trainers=0, measurers=0).threads() == 16
