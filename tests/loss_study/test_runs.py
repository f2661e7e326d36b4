"""Runs: who trains and measures what, what is written and read again, and what happens when something breaks."""

import json
import math
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from paper.loss_study import __main__ as command
from paper.loss_study import measure, real_run, run, trial
from paper.loss_study.data import FULL, SMALL, Chunk, Sizes, Stored, all_chunks
from paper.loss_study.ensembles import RECIPES, mean_scores, measure_case, scores
from paper.loss_study.ensembles import main as train_ensembles
from paper.loss_study.measure import Measurer, fit_post_hoc, logit_profile, plain_curve, rounded, study_metrics
from paper.loss_study.network import Effort, make_network
from paper.loss_study.plan import CONFIGS, MAIN, Unit
from paper.loss_study.real import RealStudy, RealUnit
from paper.loss_study.real_rows import read_real
from paper.loss_study.rows import (
    collect,
    read_lines,
    read_picture,
    read_weights,
    write_failure,
    write_picture,
    write_row,
    write_weights,
)
from paper.loss_study.run import TRAINED, Study, measure_networks, run_study, train_networks
from paper.loss_study.study import Desk, measure_unit, slice_shown, train_unit
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import Epoch, Trained
from paper.loss_study.trial import EPOCHS, FINDING, TRIED, compare, made_up_cases, read_finding, try_graphs
from segcal.demo.tasks import TASKS, get_task
from segcal.demo.unet import MEMBERS, WEIGHTS, load_ensemble, load_member
from segcal.errors import ArtifactError, InputError
from segcal.fitting import fit
from segcal.types import IGNORED

# Networks of a test are hardly trained, and that is noticed.
pytestmark = pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
UNITS = ("ce", "ce_dice", "focal", "ecp", "label_smoothing")


def without_more(row):
    return {name: row[name] for name in ("schema", "value")}


def test_rows_and_pictures_are_collected_and_the_first_of_equal_names_counts(tmp_path):
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        write_row(tmp_path / folder, "b", {"value": 10 * value})
        write_row(tmp_path / folder, "a", {"value": value, "more": "left out"})
        write_row(tmp_path / folder, "facts", {"device": "cpu"})
        (tmp_path / folder / ".c.json").write_text("half")
        assert collect(tmp_path / folder, tmp_path / f"{folder}.jsonl", without_more) == 2
    picture = np.arange(6, dtype=np.int8).reshape(2, 3) - 1
    write_picture(tmp_path / "one", "mask", picture)
    lines = tmp_path / "one.jsonl"
    before = lines.read_bytes()
    collect(tmp_path / "one", lines, without_more)
    assert lines.read_bytes() == before
    rows, facts = read_lines([lines, tmp_path / "two.jsonl"])
    assert [row["value"] for row in rows] == [1, 10]
    assert rows[0] == {"schema": 1, "value": 1}
    assert [fact["device"] for fact in facts] == ["cpu", "cpu"]
    np.testing.assert_array_equal(read_picture([tmp_path / "two.jsonl", lines], "mask").view(np.int8), picture)
    assert read_picture([lines], "b") is None
    lines.write_text('{"name": "a", "schema": 0}\n')
    with pytest.raises(ArtifactError, match=r"a in .*one\.jsonl is not of schema 1"):
        read_lines([lines])


def failure(text):
    """An exception that was raised, with the place where it was."""
    try:
        raise ArithmeticError(text)
    except ArithmeticError as error:
        return error


def test_a_failure_leaves_its_text_until_a_row_takes_its_place(tmp_path, capfd):
    write_failure(tmp_path, "a", failure("loss is nan"))
    text = (tmp_path / "a.error.txt").read_text()
    assert text.startswith("Traceback")
    assert "in failure" in text
    assert text.endswith("ArithmeticError: loss is nan\n")
    assert capfd.readouterr().err == "a failed: ArithmeticError('loss is nan')\n"
    assert collect(tmp_path, tmp_path / "out" / "all.jsonl") == 0
    write_failure(tmp_path, "b", failure("loss is inf"))
    write_row(tmp_path, "a", {"value": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "b.error.txt", "out"}


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_a_network_comes_back_with_float16_weights_and_float32_statistics(tmp_path, task):
    record = {"best_dice": 0.25, "best_epoch": 3, "history": [[1, 0.5, None]], "logit_histograms": {"1": [0, 2]}}
    unit, path = Unit(task, "ce", 0), tmp_path / "a.safetensors"
    network, other = make_network(unit), make_network(unit)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):  # larger than float16 can hold
            module.running_mean.normal_()
            module.running_var.uniform_(1e5, 1e6)
            module.num_batches_tracked.fill_(123456)
    write_weights(path, other, {"the": "first"})
    write_weights(path, network, record)
    assert read_weights(path, other) == record
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]
    kinds = {name: value.dtype for name, value in load_file(path).items()}
    changed = 0
    for name, value in network.state_dict().items():
        own, its = value.detach().numpy(), other.state_dict()[name].numpy()
        assert its.dtype == own.dtype
        if name.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked"):
            np.testing.assert_array_equal(its, own)
        else:
            assert kinds[name] == torch.float16
            np.testing.assert_array_equal(its, own.astype(np.float16).astype(np.float32))
            changed += (its != own).sum()
    assert changed > 100
    with pytest.raises(RuntimeError, match="Missing key"):
        read_weights(path, make_network(Unit(task, "ce_dice", 0, "unet_plus_plus")))
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"was not readable as weights .* and is removed\. Run the study again"):
        read_weights(path, nn.Linear(2, 2))
    assert not path.exists()


def unit(variant):
    return Unit("roads", variant, 0)


def soon():
    return time.time() + 100


class Work:
    """Made-up networks: what was trained and measured, how many at once, and what breaks."""

    def __init__(self):
        self.trained, self.measured, self.graph, self.in_progress, self.most = [], [], set(), 0, 0
        self.broken = ()

    def train(self, unit, desk):
        self.trained.append(unit.variant)
        self.graph.add(desk.effort.graph)
        self.in_progress += 1
        self.most = max(self.most, self.in_progress)
        yield
        self.in_progress -= 1
        if unit.variant in self.broken:
            raise RuntimeError("diverged")
        desk.weights(unit).touch()

    def measure(self, unit, desk):
        self.measured.append(unit.variant)
        if unit.variant in self.broken:
            raise RuntimeError("not measurable")
        write_row(desk.folder / "rows", unit.name, {"unit": {"variant": unit.variant}})


@pytest.fixture
def in_place(monkeypatch):
    """Let this process do what others do, without its threads and signals being set; return who follows a parent."""
    following = []
    monkeypatch.setattr(run.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(run, "follow_parent", lambda: following.append(True))
    return following


@pytest.fixture
def study(tmp_path, monkeypatch, in_place):
    """A study without cases: what is tested is who does what, and what happens when something breaks."""
    monkeypatch.setattr(run, "all_chunks", lambda tasks, sizes: [])
    study = Study(tmp_path, tmp_path / "all.jsonl", tasks=("roads",), seeds=1, limit=5, small=True)
    run._check_folder(study)
    study.desk()  # makes the folders
    return study


@pytest.fixture
def work(monkeypatch):
    work = Work()
    monkeypatch.setattr(run, "train_unit", work.train)
    monkeypatch.setattr(run, "measure_unit", work.measure)
    return work


def test_networks_are_trained_in_the_order_of_the_plan_unless_measured_trained_or_claimed(
    study, work, in_place, made_up
):
    desk = study.desk()
    write_row(study.folder / "rows", unit("ce").name, made_up(unit("ce")))
    desk.weights(unit("focal")).touch()
    (study.folder / "claims" / unit("ecp").name).touch()
    train_networks(study, time.time() - 1)  # after the deadline nothing is begun
    assert not work.trained
    train_networks(study, soon())
    assert work.trained == ["ce_dice", "label_smoothing"]
    assert work.graph == {False}
    assert len(in_place) == 2
    run_study(replace(study, trainers=0, measurers=0), lambda text: None)  # claims of processes that are gone
    train_networks(study, soon())
    assert work.trained == ["ce_dice", "label_smoothing", "ecp"]
    assert not work.measured


@pytest.mark.parametrize("at_once", [1, 4])
def test_so_many_networks_are_trained_side_by_side_and_none_is_claimed_before(study, work, monkeypatch, at_once):
    in_hand = []

    def watched(unit, desk):
        claims, weights = (len(list((study.folder / name).iterdir())) for name in ("claims", "weights"))
        in_hand.append(claims - weights)
        yield from work.train(unit, desk)

    monkeypatch.setattr(run, "train_unit", watched)
    train_networks(replace(study, at_once=at_once), soon())
    assert (work.most, max(in_hand)) == (at_once, at_once)
    assert sorted(work.trained) == sorted(UNITS)


def test_a_training_that_fails_leaves_its_reason_and_the_others(study, work, capfd):
    work.broken = ("ce", "ce_dice", "ecp", "label_smoothing")  # with a success between them
    train_networks(study, soon())
    assert "RuntimeError: diverged" in (study.folder / "rows" / "roads-ecp-unet-100-0.error.txt").read_text()
    assert "roads-ecp-unet-100-0 failed" in capfd.readouterr().err
    assert [v for v in UNITS if study.desk().weights(unit(v)).exists()] == ["focal"]
    assert work.trained == list(UNITS)


def test_a_process_that_fails_again_and_again_leaves_the_rest_to_others(study, work):
    work.broken = UNITS
    train_networks(study, soon())
    assert len(work.trained) == run.MOST_FAILURES < len(UNITS)


def test_what_is_begun_before_the_deadline_is_finished_after_it(study, work, monkeypatch):
    clock = [0.0]

    def slow(unit, desk):
        clock[0] += 40
        yield from work.train(unit, desk)

    monkeypatch.setattr(run, "train_unit", slow)
    monkeypatch.setattr(run.time, "time", lambda: clock[0])
    train_networks(study, 100)
    assert work.trained == ["ce", "ce_dice", "focal"]
    assert study.desk().weights(unit("focal")).exists()


@pytest.mark.parametrize("works", ["true", "false"])
def test_on_a_gpu_steps_are_recorded_if_the_trial_found_that_it_works(study, work, monkeypatch, works):
    devices = []

    def on_cpu(trainings, at_once, device):
        devices.append(device)
        return take_turns(trainings, at_once, "cpu")

    monkeypatch.setattr(run, "take_turns", on_cpu)
    (study.folder / "claims" / FINDING).write_text(f'{{"works": {works}}}')
    train_networks(replace(study, device="cuda"), soon())
    assert work.graph == {works == "true"}
    assert devices == ["cuda"]


@pytest.fixture
def kept(study):
    """A study whose networks are all trained."""
    desk = study.desk()
    for variant in UNITS:
        desk.weights(unit(variant)).touch()
    (study.folder / "claims" / TRAINED).touch()
    return study


def test_what_is_trained_is_measured_unless_measured_or_claimed(kept, work):
    write_row(kept.folder / "rows", unit("ce").name, {})
    (kept.folder / "claims" / f"measure-{unit('focal').name}").touch()
    (kept.folder / "claims" / unit("ce_dice").name).touch()  # a claim on the training is none on the measuring
    kept.desk().weights(unit("ecp")).unlink()
    measure_networks(kept, time.time() - 1)
    assert not work.measured
    measure_networks(kept, soon())
    assert work.measured == ["ce_dice", "label_smoothing"]


def test_a_network_that_cannot_be_measured_leaves_its_reason_and_the_others(kept, work, capfd):
    work.broken = UNITS[:4]
    measure_networks(kept, soon())
    assert work.measured == list(UNITS)
    assert "not measurable" in (kept.folder / "rows" / "roads-ecp-unet-100-0.error.txt").read_text()
    assert capfd.readouterr().err.count("failed") == 4
    assert [variant for variant in UNITS if kept.desk().row(unit(variant)).exists()] == ["label_smoothing"]


def test_measuring_waits_for_networks_until_all_are_trained(study, work, monkeypatch):
    desk, waited = study.desk(), []

    def meanwhile(_):
        waited.append(len(work.measured))
        if len(waited) == 2:
            desk.weights(unit("focal")).touch()
        if len(waited) == 4:
            desk.weights(unit("ecp")).touch()
            (study.folder / "claims" / TRAINED).touch()

    monkeypatch.setattr(run.time, "sleep", meanwhile)
    measure_networks(study, soon())
    assert waited == [0, 0, 1, 1]
    assert work.measured == ["focal", "ecp"]


class Process:
    """Stands in for a process: alive for so many looks, or until something is there."""

    def __init__(self, looks=0, until=None):
        self.looks, self.until = looks, until

    def is_alive(self):
        self.looks -= 1
        return self.looks >= 0 if self.until is None else not self.until.exists()


def test_when_no_trainer_is_left_it_is_said_to_those_who_measure(study, monkeypatch):
    flag, seen = study.folder / "claims" / TRAINED, []
    trainer, measurer = Process(looks=7), Process(until=flag)
    monkeypatch.setattr(run.time, "sleep", lambda _: seen.append((trainer.looks > 0, flag.exists())))
    run._watch(study, [trainer], [measurer], soon(), seen.append)
    assert (True, False) in seen
    assert (True, True) not in seen
    flag.unlink()
    run._watch(study, [], [Process(until=flag)], soon(), seen.append)
    assert flag.exists()
    run._watch(study, [Process(looks=10**9)], [], time.time() - 1, seen.append)
    assert seen[-1] == "out of time: giving up what is not finished"


def test_results_are_collected_again_and_again_and_a_complete_study_starts_nothing(study, monkeypatch, made_up):
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    monkeypatch.setattr(run, "COLLECT_EVERY", -1.0)
    write_row(study.folder / "rows", unit("ce").name, made_up(unit("ce")))
    study.desk().weights(unit("focal")).touch()
    said = []
    run._watch(study, [Process(looks=1)], [], soon(), said.append)
    assert said == ["1 of 5 networks measured, 1 trained here"]
    assert len(read_lines([study.lines])[0]) == 1
    assert run_study(replace(study, trainers=0, measurers=0), said.append) == 4
    for variant in UNITS:
        write_row(study.folder / "rows", unit(variant).name, made_up(unit(variant)))
    monkeypatch.setattr(run, "get_context", lambda name: pytest.fail("nothing is missing"))
    assert run_study(study, said.append) == 0
    assert said[-1] == "5 of 5 networks are in all.jsonl"
    rows, _ = read_lines([study.lines])
    assert len(rows) == 5
    assert "fits" not in rows[0]  # which no page reads


def write_small_cases(folder):
    rng = np.random.default_rng(0)
    for chunk in all_chunks(("roads",), SMALL):
        image = rng.random((len(chunk.indices), 3, 16, 24), np.float32)
        np.savez(folder / "cases" / chunk.name, image=image, labels=(image[:, 0] > 0.5).astype(np.int64))


def test_a_study_that_was_interrupted_goes_on_from_the_checkpoint(tmp_path, monkeypatch, in_place):
    monkeypatch.setitem(CONFIGS, "roads", replace(CONFIGS["roads"], validate_every=1, batch_size=2))
    studies = [
        Study(tmp_path / name, tmp_path / "all.jsonl", tasks=("roads",), seeds=1, limit=1, small=True)
        for name in ("whole", "interrupted")
    ]
    for one in studies:
        run._check_folder(one)
        one.desk()
        write_small_cases(one.folder)
    whole, interrupted = studies
    steps = []

    def counted(unit, desk, most):
        own = train_unit(unit, desk)
        for number in range(most):
            try:
                next(own)
            except StopIteration as end:
                return end.value
            steps.append(number)
            yield
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train_unit", lambda unit, desk: counted(unit, desk, 3))
    with pytest.raises(KeyboardInterrupt):  # in the second of two epochs of two steps each
        train_networks(interrupted, soon())
    assert interrupted.desk().checkpoint(unit("ce")).exists()
    assert not interrupted.desk().weights(unit("ce")).exists()
    run_study(replace(interrupted, trainers=0, measurers=0), print)  # whose claim it was, is gone
    steps.clear()
    monkeypatch.setattr(run, "train_unit", lambda unit, desk: counted(unit, desk, 9))
    train_networks(interrupted, soon())
    assert len(steps) == 2
    assert not list((interrupted.folder / "checkpoints").iterdir())
    steps.clear()
    train_networks(whole, soon())
    assert len(steps) == 4
    found, expected = (load_file(one.desk().weights(unit("ce"))) for one in (interrupted, whole))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    found, expected = (read_weights(one.desk().weights(unit("ce")), make_network(unit("ce"))) for one in studies)
    assert sorted(found["logit_histograms"]) == ["1", "2"]
    assert found == expected


def test_what_one_process_has_trained_another_one_measures(tmp_path, in_place, made_up):
    study = Study(
        tmp_path, tmp_path / "all.jsonl", tasks=("roads",), seeds=1, limit=len(MAIN) + 2, small=True, at_once=2
    )
    *main, first, second = study.units()
    run._check_folder(study)
    study.desk()
    write_small_cases(tmp_path)
    for one in main:  # which take longer to measure
        write_row(tmp_path / "rows", one.name, made_up(one))
    assert run_study(replace(study, measurers=0), print) == 2
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == {first.name, second.name}
    (tmp_path / "claims" / TRAINED).touch()
    measure_networks(study, soon())
    assert run_study(replace(study, trainers=0, measurers=0), print) == 0
    rows = {row["unit"]["variant"]: row for row in read_lines([study.lines])[0]}
    for one in (first, second):
        assert len(rows[one.variant]["values"]["clean"]["none"]["dice"]) == SMALL.test


def test_a_folder_of_something_else_is_refused_and_left_alone(study, tmp_path_factory):
    nobody = replace(study, trainers=0, measurers=0)
    run_study(nobody, print)
    with pytest.raises(InputError, match="holds a small study, but this one is full"):
        run_study(replace(nobody, small=False), print)
    (study.folder / run.SIZES).write_text("")
    with pytest.raises(ArtifactError, match=r"study\.json is not readable"):
        run_study(study, print)
    other = tmp_path_factory.mktemp("other")
    (other / "claims").mkdir()
    (other / "claims" / "precious.csv").write_text("mine")
    with pytest.raises(InputError, match=r"holds files that are no study\. Choose a new or an empty folder"):
        run_study(Study(other, other / "all.jsonl", small=True), print)
    assert [path.name for path in other.rglob("*")] == ["claims", "precious.csv"]


def test_processes_are_ended_when_the_study_is_interrupted(study, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    ended = []
    monkeypatch.setattr(run, "_watch", interrupted)
    monkeypatch.setattr(run, "_end", ended.append)
    with pytest.raises(KeyboardInterrupt):
        run_study(replace(study, trainers=0, measurers=0), print)
    assert ended == [[]]


def test_cases_are_drawn_by_whoever_claims_them_and_in_the_end_by_anybody(study, work, monkeypatch):
    chunks = [Chunk("roads", "test", (number,)) for number in range(4)]
    drawn = []

    def draw(folder, chunk):
        drawn.append(chunk)
        (folder / chunk.name).touch()

    monkeypatch.setattr(run, "all_chunks", lambda tasks, sizes: iter(chunks))
    monkeypatch.setattr(run, "write_chunk", draw)
    monkeypatch.setattr(run.time, "sleep", lambda _: (study.folder / "cases" / chunks[2].name).touch())
    (study.folder / "cases" / chunks[0].name).touch()
    (study.folder / "claims" / chunks[2].name).touch()
    train_networks(study, soon())
    assert drawn == [chunks[1], chunks[3]]
    assert work.trained == list(UNITS)
    chunks.append(Chunk("roads", "test", (9,)))
    (study.folder / "claims" / chunks[-1].name).touch()
    monkeypatch.setattr(run, "PATIENCE", -1.0)
    train_networks(study, soon())
    assert drawn[-1] == chunks[-1]


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


def test_a_trained_unit_leaves_its_weights_and_a_measured_one_what_happened_in_training(desk):
    unit = Unit("roads", "nacl", 0)
    (ended,) = take_turns(iter([(unit, train_unit(unit, desk))]), 1, "cpu")
    kept, result = load_file(desk.weights(unit)), ended.trained
    for name, value in result.network.state_dict().items():
        assert torch.equal(kept[name], value.to(kept[name].dtype)), name
    assert not list((desk.folder / "checkpoints").iterdir())
    assert not desk.row(unit).exists()
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert row["unit"] == {"task": "roads", "variant": "nacl", "seed": 0, "backbone": "unet", "share": 100}
    assert [entry[0] for entry in row["history"]] == [1, 2]
    assert [entry[1] for entry in row["history"]] == pytest.approx([epoch.loss for epoch in result.history], rel=1e-6)
    assert (row["best_dice"], row["best_epoch"]) == (pytest.approx(result.best_dice, rel=1e-6), result.best_epoch)
    assert sorted(row["logit_histograms"]) == ["1", "2"]
    assert desk.weights(unit).exists()  # they may be looked at again
    assert desk.part("roads", "test") is desk.part("roads", "test")
    assert [case.id for case in desk.part("roads", "val")] == ["roads_0002"]


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_a_unit_of_the_main_table_is_calibrated_measured_on_degraded_cases_and_pictured(desk, task):
    unit = Unit(task, "ce", 0)
    _, network = written(unit, desk)
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert set(row["values"]) == {"clean", "corrupted"}
    assert all(set(values) == {"none", "ts"} for values in row["values"].values())
    assert all(len(column) == 2 for column in row["values"]["corrupted"]["none"].values())
    assert row["cases"] == [f"{task}_0003", f"{task}_0004"]
    assert "hd95" in row["values"]["clean"]["none"]
    assert set(row["fits"]) == {"ts"}
    case = desk.part(task, "test")[0]
    probs = torch.softmax(network(torch.from_numpy(case.image)[None])[0].detach(), 0).numpy()
    image, labels = case.image, case.labels
    if task == "tumour":
        place = max(range(9), key=lambda number: (labels[..., number] > 0).sum())
        probs, image, labels = probs[..., place], image[..., place], labels[..., place]
    collect(desk.folder / "rows", desk.folder / "all.jsonl")
    shown = partial(read_picture, [desk.folder / "all.jsonl"])
    np.testing.assert_array_equal(shown(f"{unit.name}-prediction"), probs.argmax(0))
    np.testing.assert_allclose(shown(f"{unit.name}-confidence"), 255 * probs.max(0), atol=0.51)
    np.testing.assert_array_equal(shown(f"{task}-shown-labels").view(np.int8), labels)
    scaled = 255 * (image - image.min()) / np.ptp(image)
    expected = scaled.transpose(1, 2, 0) if len(image) == 3 else scaled[-1]
    np.testing.assert_allclose(shown(f"{task}-shown-image"), expected, atol=0.51)


@pytest.mark.parametrize("unit", [Unit("roads", "svls_1", 0), Unit("roads", "ce", 0, share=50)])
def test_another_unit_is_measured_as_it_is(desk, unit):
    written(unit, desk)
    measure_unit(unit, desk)
    row = row_of(unit, desk)
    assert {stage: list(values) for stage, values in row["values"].items()} == {"clean": ["none"]}
    assert row["fits"] == {}
    assert not list((desk.folder / "rows").glob("*.png"))


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
    assert not list((desk.folder / "rows").glob("*.png"))  # pictures are of seed 0


def test_of_a_volume_the_slice_with_most_foreground_is_shown():
    labels = np.zeros((4, 5, 6), int)
    labels[1:3, 1:3, 4] = 2
    labels[0, 0, 1] = 1
    assert slice_shown(labels) == (slice(None), slice(None), 4)
    assert slice_shown(labels[..., 0]) == (slice(None), slice(None))


def test_a_study_plans_its_networks_its_cases_and_its_cores(tmp_path, monkeypatch):
    plan = partial(Study, tmp_path, tmp_path / "all.jsonl")
    units = plan(main=True, seeds=2, tasks=("roads",)).units()
    assert [(unit.variant, unit.seed) for unit in units] == [(variant, seed) for seed in (0, 1) for variant in MAIN]
    everything = plan(seeds=2, tasks=("roads",)).units()
    assert everything[: len(units)] == units
    assert len(everything) > 2 * len(units)
    assert plan(limit=3).units() == plan().units()[:3]
    small, full = plan(small=True).desk(), plan().desk(graph=True)
    assert (small.sizes, small.effort.epochs) == (SMALL, 2)
    assert (full.sizes, full.effort.epochs, full.effort.graph) == (FULL, None, True)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    shares = [(4, 3, 2), (20, 1, 1), (0, 0, 16)]
    assert all(plan(trainers=many, measurers=few).threads() == own for many, few, own in shares)


def drawn(task, count, seed=0):
    rng = np.random.default_rng(seed)
    classes = get_task(task).num_classes
    space = (9, 11)
    stored = [Stored(f"c{i}", np.zeros((1, *space), np.float32), rng.integers(0, classes, space)) for i in range(count)]
    logits = [torch.from_numpy(rng.normal(size=(classes, *space)).astype(np.float32)) for _ in range(count)]
    return stored, logits


@pytest.mark.parametrize("task", ["roads", "streets"])
def test_errors_are_on_the_foreground_where_class_zero_is_background(task):
    stored, logits = drawn(task, 2)
    values, _ = Measurer(get_task(task)).measure(Measurer(get_task(task)).cases(stored, logits), {}, surface=True)
    confidence, predicted = torch.softmax(logits[1].double(), 0).max(0)
    truth = torch.from_numpy(stored[1].labels)
    region = truth > 0 if task == "roads" else truth >= 0
    error = 0.0
    for low in range(15):
        inside = region & (confidence > low / 15) & (confidence <= (low + 1) / 15)
        error += abs(float(((predicted == truth).double() - confidence)[inside].sum()))
    assert values["none"]["ece_foreground"][1] == pytest.approx(error / int(region.sum()), rel=1e-5)
    assert values["none"]["hd95"][1] >= 0


def test_calibrated_numbers_stand_beside_uncalibrated_ones(monkeypatch):
    measurer = Measurer(get_task("roads"))
    cases = measurer.cases(*drawn("roads", 3))
    calibrators, facts = fit_post_hoc(cases, cases, names=("no such", "ts"))
    assert "InputError: no calibrator is named 'no such'" in facts["no such"]["error"]
    values, curves = measurer.measure(cases, calibrators, surface=False)
    assert set(values) == {"none", "ts"}
    assert set(values["ts"]) == set(study_metrics(True, False))
    assert np.mean(values["ts"]["nll"]) < np.mean(values["none"]["nll"])
    assert values["ts"]["dice"] == values["none"]["dice"]
    assert sum(plain_curve(curves)["count"]) == sum(int((case.labels > 0).sum()) for case in cases)
    certificate = fit("ts", cases, validation=cases).certificate
    assert (facts["ts"]["passes"], facts["ts"]["converged"]) == (certificate.passes, certificate.converged)

    def stopped(*arguments, **options):
        found = fit(*arguments, **options)
        return replace(found, certificate=replace(found.certificate, converged=False, passes=17))

    monkeypatch.setattr(measure, "fit", stopped)  # a fit that did not converge is said and used
    calibrators, facts = fit_post_hoc(cases, cases, names=("ts",))
    assert (list(calibrators), facts["ts"]["passes"], facts["ts"]["converged"]) == (["ts"], 17, False)


def test_a_profile_is_the_mean_absolute_logit_of_each_true_class():
    stored, logits = drawn("roads", 2)
    profile = logit_profile(logits, stored, 2)
    mine = np.concatenate([values.numpy()[0][case.labels == 1] for values, case in zip(logits, stored, strict=True)])
    assert profile[1][0] == pytest.approx(np.abs(mine).mean(), rel=1e-5)
    assert logit_profile(logits, [Stored("a", c.image, c.labels * 0) for c in stored], 2)[1] == [None, None]
    assert (rounded(1 / 3), rounded(float("nan")), rounded(None)) == (0.3333333, None, None)


class Trainings:
    """Stands in for the training of units: losses that may depend on whether steps are recorded."""

    def __init__(self, recorded_loss):
        self.recorded_loss = recorded_loss
        self.begun, self.in_progress, self.most = [], 0, {}

    def __call__(self, unit, data, effort, histograms):
        self.begun.append((unit.variant, effort.graph, effort.epochs, len(data.cases)))
        self.in_progress += 1
        self.most[effort.graph] = max(self.most.get(effort.graph, 0), self.in_progress)
        yield
        self.in_progress -= 1
        loss = self.recorded_loss(unit.variant) if effort.graph else 1.0
        return Trained(None, None, 1, (Epoch(1, loss, None),))


def test_recorded_trainings_are_compared_with_plain_ones_and_timed(tmp_path, monkeypatch):
    trainings, asked = Trainings(lambda variant: 1.01), []

    def on_cpu(trainings, at_once, device):
        asked.append((at_once, device))
        return take_turns(trainings, at_once, "cpu")

    monkeypatch.setattr(trial, "unit_steps", trainings)
    monkeypatch.setattr(trial, "take_turns", on_cpu)
    try_graphs(tmp_path, "cuda:1", ("roads",))
    count = 3 * CONFIGS["roads"].batch_size
    assert trainings.begun == [(variant, graph, EPOCHS, count) for graph in (False, True) for variant in TRIED]
    assert trainings.most == {False: 1, True: len(TRIED)}  # one after the other, and side by side
    assert asked == [(1, "cuda:1"), (len(TRIED), "cuda:1")]
    assert read_finding(tmp_path, 0)
    assert {task: len(both) for task, both in json.loads((tmp_path / FINDING).read_text())["seconds"].items()} == {
        "roads": 2
    }


def test_trainings_that_differ_or_fail_are_said_and_believed(tmp_path, monkeypatch):
    assert not read_finding(tmp_path, 0)  # no answer is no
    image = np.random.default_rng(0).random((3, 16, 17), np.float32)
    small = [Stored("a", image, (image[0] > 0.5).astype(np.int64))]
    (case,) = made_up_cases("tumour", 1)
    assert case.image.shape == (4, 72, 64, 24)
    np.testing.assert_array_equal(case.labels, case.image[0] > 0.5)
    monkeypatch.setattr(trial, "made_up_cases", lambda task, count: small)
    try_graphs(tmp_path, "cpu", ("roads",))
    finding = json.loads((tmp_path / FINDING).read_text())
    assert not finding["works"]
    assert "graph is True with device 'cpu'" in finding["reason"]
    assert not read_finding(tmp_path, 0)
    monkeypatch.setattr(trial, "unit_steps", Trainings(lambda variant: 1.5 if variant == "mbls" else 1.0))
    with pytest.raises(RuntimeError, match=r"roads mbls: plain losses \[1\.0\], recorded losses \[1\.5\]"):
        compare("roads", "cpu")
    monkeypatch.setattr(trial, "unit_steps", Trainings(lambda variant: float("nan")))
    with pytest.raises(RuntimeError, match="roads ce_dice: plain losses"):
        compare("roads", "cpu")
    (tmp_path / FINDING).unlink()
    monkeypatch.setattr(trial.time, "sleep", lambda _: (tmp_path / FINDING).write_text('{"works": true}'))
    assert read_finding(tmp_path, 600)  # an answer that comes late is waited for


ENSEMBLE = ["--members", "2", "--epochs", "1", "--cases", "3", "--recorded", "1"]


def test_training_writes_weights_and_a_record_and_goes_on_from_checkpoints(tmp_path):
    train_ensembles(["streets", "--out", str(tmp_path), *ENSEMBLE])
    first, second = load_ensemble("streets", 2, tmp_path)
    assert not torch.equal(first.head.weight, second.head.weight)
    record = json.loads((tmp_path / "streets.json").read_text())
    assert record["held_out_cases"] == 1
    assert list(record["mean"]) == ["member_0", "member_1", "mean_logits", "mean_probs"]
    assert record["first_cases"] == [record["mean"]]
    before = load_file(tmp_path / "streets.safetensors")
    stamps = [file.stat().st_mtime_ns for file in (tmp_path / "checkpoints").iterdir()]
    train_ensembles(["streets", "--out", str(tmp_path), *ENSEMBLE])
    after = load_file(tmp_path / "streets.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert [file.stat().st_mtime_ns for file in (tmp_path / "checkpoints").iterdir()] == stamps
    weights = (tmp_path / "streets.safetensors").stat().st_mtime_ns
    measured = ["--members", "2", "--recorded", "2", "--measure-only", "--workers", "2"]
    train_ensembles(["streets", "--out", str(tmp_path), *measured])
    assert json.loads((tmp_path / "streets.json").read_text())["held_out_cases"] == 2
    assert (tmp_path / "streets.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize("name", TASKS)
def test_shipped_ensembles_have_the_shape_and_the_scores_that_were_recorded(name):
    network = load_member(name, MEMBERS - 1, WEIGHTS)
    assert tuple(level[0].out_channels for level in network.down) == RECIPES[name].widths
    assert RECIPES[name].config.include_background != TASKS[name].background
    record = json.loads((WEIGHTS / f"{name}.json").read_text())
    measured, expected = measure_case(TASKS[name], load_ensemble(name), 0), record["first_cases"][0]
    assert list(measured) == list(expected)
    for pipeline, values in measured.items():
        # Other processors add in another order: a boundary voxel may change sides, an offset never.
        assert values["dice"] == pytest.approx(expected[pipeline]["dice"], abs=3e-3)
        assert values["nll"] == pytest.approx(expected[pipeline]["nll"], rel=1e-2)
        assert values["ece"] == pytest.approx(expected[pipeline]["ece"], abs=1e-3)
    mean = record["mean"]
    members = [values for key, values in mean.items() if key.startswith("member_")]
    assert mean["mean_logits"]["dice"] > max(0.55, np.mean([values["dice"] for values in members]))
    assert mean["mean_probs"]["nll"] < mean["mean_logits"]["nll"] < np.mean([values["nll"] for values in members])


@pytest.mark.parametrize("name", TASKS)
def test_the_networks_are_overconfident_and_their_free_energy_varies(name):
    """A temperature above 1 lowers the NLL of each member: what the demo is about is there."""
    image, truth, _ = TASKS[name].sample(0)
    kept = torch.from_numpy(truth != IGNORED)
    with torch.inference_mode():
        z = load_ensemble(name, 1)[0](torch.from_numpy(image)[None])[0][:, kept].T.double()
    y = torch.from_numpy(truth)[kept]
    assert nn.functional.cross_entropy(z / 1.15, y) < nn.functional.cross_entropy(z, y)
    assert float(torch.logsumexp(z, 1).std()) > 0.4


def test_scores_are_those_worked_by_hand_and_means_leave_out_what_is_not_defined():
    probs = torch.tensor([[0.9, 0.6, 0.2, 0.5], [0.1, 0.4, 0.8, 0.5]], dtype=torch.float64)
    values = scores(probs.log(), torch.tensor([0, 1, 1, IGNORED]), include_background=True)
    # Predicted 0, 0, 1. Class 0: 2*1/(2+1); class 1: 2*1/(1+2).
    assert values["dice"] == pytest.approx(2 / 3)
    assert values["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.4) + np.log(0.8)) / 3)
    assert values["ece"] == pytest.approx((0.1 + 0.6 + 0.2) / 3)
    rows = [{"a": {"dice": float("nan"), "nll": 1.0}}, {"a": {"dice": 0.5, "nll": 2.0}}]
    assert mean_scores(rows) == {"a": {"dice": 0.5, "nll": 1.5}}


@pytest.fixture
def call(capsys):
    """Run the command and return its exit code, and what it printed."""

    def run_command(*arguments):
        try:
            code = command.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return run_command


@pytest.fixture
def asked(monkeypatch):
    """Take the place of the study and remember what it was asked for."""
    calls, missing = [], [0]

    def run_study(wanted, say):
        calls.append(wanted)
        say("30 s: half of it")
        return missing[0]

    monkeypatch.setattr(command, "run_study", run_study)
    monkeypatch.setattr(command, "write_study", lambda lines, folder: folder / "losses.csv")
    return calls, missing


def test_the_command_says_where_the_rows_are(call, asked, tmp_path, monkeypatch):
    done = call("run", "--out", tmp_path, "--tasks", "roads", "--seeds", 1, "--main", "--small")
    assert done.code == 0
    assert f"Written: {tmp_path / 'losses.csv'}, {tmp_path / 'losses.jsonl'}" in done.out
    assert "30 s: half of it" in done.err
    wanted = asked[0][0]
    assert (wanted.folder, wanted.tasks, wanted.seeds, wanted.main) == (tmp_path, ("roads",), 1, True)
    assert (wanted.small, wanted.deadline, len(wanted.units())) == (True, math.inf, 8)
    call("run", "--out", tmp_path, "--hours", "0.5", "--trainers", 2, "--at-once", 3, "--measurers", 4)
    wanted = asked[0][1]
    assert (wanted.deadline, wanted.trainers, wanted.at_once, wanted.measurers) == (1800, 2, 3, 4)
    made = []
    monkeypatch.setattr(command, "write_docs", lambda lines, docs: made.append((lines, docs)))
    assert call("docs", "a.jsonl", "b.jsonl", "--docs", tmp_path).code == 0
    assert made == [([Path("a.jsonl"), Path("b.jsonl")], tmp_path)]


def test_what_is_missing_is_said_and_seen_in_the_code(call, asked, tmp_path):
    asked[1][0] = 2
    words = ("run", "--out", tmp_path, "--main", "--seeds", 1)
    done = call(*words, "--json")
    assert done.code == 3
    document = json.loads(done.out)
    assert (document["missing"], document["rows"]) == (2, str(tmp_path / "losses.csv"))
    assert "2 networks of 24 missing: run the command again" in call(*words).out
    asked[1][0] = 24
    done = call(*words)
    assert done.code == 3
    assert "No network is measured yet, so there are no rows" in done.out


def test_mistakes_are_one_sentence_and_begin_nothing(call, asked, tmp_path, monkeypatch):
    for wrong in (("--seeds", "0"), ("--tasks", "lungs"), ("--at-once", "x"), ("--hours", "0"), ("--hours", "nan")):
        done = call("run", "--out", tmp_path, *wrong)
        assert done.code == 2
        assert "error: " in done.err
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    done = call("run", "--out", tmp_path)
    assert done.code == 2
    assert "error: matplotlib is not installed" in done.err
    assert not asked[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / "camvid" / name).mkdir(parents=True)
    for video, count in (("val_0016E5", 3), ("test_Seq05VD", 12)):
        for number in range(count):
            labels = np.kron(rng.integers(0, 12, (2, 3)), np.ones((8, 8))).astype(np.uint8)
            picture, stem = np.repeat((20 * labels)[..., None], 3, 2), f"{video}_{number:04d}"
            Image.fromarray(labels).save(folder / "camvid" / "labels" / f"{stem}.png")
            Image.fromarray(picture).save(folder / "camvid" / "images" / f"{stem}.jpg")
    return folder


def test_a_few_steps_on_real_data_end_in_lines_and_go_on_from_there(root, tmp_path, call):
    words = ["real", root, "--out", tmp_path / "out", "--tasks", "camvid", "--losses", "ce", "ce_dice"]
    words += ["--sizes", "small", "--seeds", 1, "--steps", 1, "--cases", 3]
    done = call(*words)
    assert (done.code, done.out) == (0, f"2 of 2 networks are in {tmp_path / 'out'}\n")
    rows, facts = read_real([tmp_path / "out" / "real_losses.jsonl"])
    assert [row.unit.loss for row in rows] == ["ce", "ce_dice"]
    assert set(rows[0].values) == {"none", "ts", "conic"}
    assert (rows[0].failed, rows[0].steps, facts[0].missing) == ({}, 1, 0)
    assert all(len(numbers) == len(rows[0].groups) == 3 for numbers in rows[0].values["ts"].values())
    assert rows[0].values["ts"]["dice"] == rows[0].values["none"]["dice"]
    made = (tmp_path / "out" / "rows" / "camvid-ce-small-0.json").stat().st_mtime_ns
    assert call(*words).code == 0
    assert (tmp_path / "out" / "rows" / "camvid-ce-small-0.json").stat().st_mtime_ns == made
    done = call("real", tmp_path / "nowhere", "--out", tmp_path / "other")
    assert done.code == 2
    assert "has no cardiac/images, but the study needs it" in done.err
    assert not (tmp_path / "other").exists()


def real_of(root, out, **settings):
    for name in real_run.FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    units = [RealUnit("camvid", loss, "small", 0) for loss in ("ce", "ce_dice")]
    return real_run.RealRun(RealStudy(root, steps=1, most=2), out, units, **settings)


def test_what_would_not_end_in_time_is_not_begun(root, tmp_path):
    assert real_run.run_real(real_of(root, tmp_path, minutes=0.01)) == 2
    rows, facts = read_real([tmp_path / "real_losses.jsonl"])
    assert (rows, facts[0].missing) == ([], 2)
    units = [RealUnit("camvid", "ce", size, 0) for size in ("small", "large")]
    own = real_run.RealRun(RealStudy(root), tmp_path, units)
    now, took = time.time(), {"small": 20.0}
    assert [unit.size for unit, _ in real_run._trainings(own, now + 30.0, {}, took)] == ["small"]
    own.claim("camvid-ce-small-0").unlink()
    assert [unit.size for unit, _ in real_run._trainings(own, now + 70.0, {}, took)] == ["small", "large"]


def test_what_another_process_works_on_is_left_to_it(root, tmp_path):
    own = real_of(root, tmp_path)
    own.claim("camvid-ce-small-0").touch()
    assert real_run.train_networks(own, soon()) == 0
    assert [path.stem for path in (tmp_path / "weights").iterdir()] == ["camvid-ce_dice-small-0"]
    own.claim("measure-camvid-ce_dice-small-0").touch()
    own.claim(real_run.TRAINED).touch()
    real_run.measure_networks(own, soon())
    assert not list((tmp_path / "rows").iterdir())


def test_a_recording_that_fails_frees_its_networks_and_is_not_tried_again(root, tmp_path, monkeypatch, capsys):
    own = real_of(root, tmp_path)
    monkeypatch.setattr(real_run.torch, "device", lambda _: type("Device", (), {"type": "cuda"}))
    tried = []

    def fails(self, unit, graph):
        tried.append((unit.loss, graph))
        raise RuntimeError("capture failed")
        yield

    def turns(trainings, at_once, device):
        """Take turns as on a CPU: here no stream can be made."""
        for name, steps in trainings:
            try:
                next(steps)
            except RuntimeError as error:
                yield real_run.Ended(name, None, error)

    monkeypatch.setattr(RealStudy, "train", fails)
    monkeypatch.setattr(real_run, "take_turns", turns)
    assert real_run.train_networks(own, soon()) == real_run.DEVICE_LOST
    assert tried == [("ce", True)]
    assert not own.claim("camvid-ce-small-0").exists()
    assert real_run.train_networks(own, soon()) == 0
    assert tried[1:] == [("ce", False), ("ce_dice", False)]
    assert "camvid-ce-small-0 failed" in capsys.readouterr().err
