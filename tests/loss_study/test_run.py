import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paper.loss_study import run
from paper.loss_study.data import SMALL, Chunk, all_chunks
from paper.loss_study.network import make_network
from paper.loss_study.plan import CONFIGS, MAIN, Unit
from paper.loss_study.rows import read_rows, read_weights, write_row
from paper.loss_study.run import TRAINED, Study, measure_networks, run_study, train_networks
from paper.loss_study.study import train_unit
from paper.loss_study.together import take_turns
from paper.loss_study.trial import FINDING
from segcal.errors import ArtifactError, InputError

UNITS = ("ce", "ce_dice", "focal", "ecp", "label_smoothing")


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
    study = Study(tmp_path, tmp_path / "all.zip", tasks=("roads",), seeds=1, limit=5, small=True)
    run._check_folder(study)
    study.desk()  # makes the folders
    return study


@pytest.fixture
def work(monkeypatch):
    work = Work()
    monkeypatch.setattr(run, "train_unit", work.train)
    monkeypatch.setattr(run, "measure_unit", work.measure)
    return work


def test_networks_are_trained_in_the_order_of_the_plan(study, work):
    train_networks(study, soon())
    assert work.trained == list(UNITS)
    assert not work.measured
    assert {path.name for path in (study.folder / "claims").iterdir()} == {unit(variant).name for variant in UNITS}


def test_what_is_measured_trained_or_claimed_is_not_trained(study, work):
    desk = study.desk()
    write_row(study.folder / "rows", unit("ce").name, {})
    desk.weights(unit("focal")).touch()
    (study.folder / "claims" / unit("ecp").name).touch()
    train_networks(study, soon())
    assert work.trained == ["ce_dice", "label_smoothing"]


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_so_many_networks_are_trained_side_by_side(study, work, at_once):
    train_networks(replace(study, at_once=at_once), soon())
    assert work.most == at_once
    assert sorted(work.trained) == sorted(UNITS)


def test_no_network_is_claimed_before_there_is_a_place_for_it(study, work, monkeypatch):
    in_hand = []

    def watched(unit, desk):
        claims, weights = (len(list((study.folder / name).iterdir())) for name in ("claims", "weights"))
        in_hand.append(claims - weights)
        yield from work.train(unit, desk)

    monkeypatch.setattr(run, "train_unit", watched)
    train_networks(replace(study, at_once=2), soon())
    assert in_hand == [2, 2, 2, 2, 1]


def test_a_training_that_fails_leaves_its_reason_and_the_others(study, work, capfd):
    work.broken = ("focal",)
    train_networks(study, soon())
    assert "RuntimeError: diverged" in (study.folder / "rows" / "roads-focal-unet-100-0.error.txt").read_text()
    assert "roads-focal-unet-100-0 failed" in capfd.readouterr().err
    desk = study.desk()
    assert [variant for variant in UNITS if not desk.weights(unit(variant)).exists()] == ["focal"]


def test_a_process_that_fails_again_and_again_leaves_the_rest_to_others(study, work):
    work.broken = UNITS
    train_networks(study, soon())
    assert len(work.trained) == run.MOST_FAILURES < len(UNITS)


def test_failures_with_a_success_between_them_do_not_end_a_process(study, work):
    work.broken = ("ce", "ce_dice", "ecp", "label_smoothing")
    train_networks(study, soon())
    assert work.trained == list(UNITS)


def test_after_the_deadline_no_training_is_begun(study, work):
    train_networks(study, time.time() - 1)
    assert not work.trained
    assert not list((study.folder / "claims").iterdir())


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


def test_on_a_cpu_nothing_is_recorded(study, work):
    (study.folder / "claims" / FINDING).write_text('{"works": true}')
    train_networks(study, soon())
    assert work.graph == {False}


@pytest.fixture
def kept(study):
    """A study whose networks are all trained."""
    desk = study.desk()
    for variant in UNITS:
        desk.weights(unit(variant)).touch()
    (study.folder / "claims" / TRAINED).touch()
    return study


def test_networks_that_are_trained_are_measured_until_none_is_left(kept, work):
    measure_networks(kept, soon())
    assert work.measured == list(UNITS)
    assert all(kept.desk().row(unit(variant)).exists() for variant in UNITS)


def test_what_is_measured_claimed_or_not_trained_is_not_measured(kept, work):
    write_row(kept.folder / "rows", unit("ce").name, {})
    (kept.folder / "claims" / f"measure-{unit('focal').name}").touch()
    kept.desk().weights(unit("ecp")).unlink()
    measure_networks(kept, soon())
    assert work.measured == ["ce_dice", "label_smoothing"]


def test_a_claim_on_the_training_is_none_on_the_measuring(kept, work):
    (kept.folder / "claims" / unit("ce").name).touch()
    measure_networks(kept, soon())
    assert work.measured == list(UNITS)


def test_a_network_that_cannot_be_measured_leaves_its_reason_and_the_others(kept, work, capfd):
    work.broken = UNITS[:4]
    measure_networks(kept, soon())
    assert work.measured == list(UNITS)
    assert "not measurable" in (kept.folder / "rows" / "roads-ecp-unet-100-0.error.txt").read_text()
    assert capfd.readouterr().err.count("failed") == 4
    assert [variant for variant in UNITS if kept.desk().row(unit(variant)).exists()] == ["label_smoothing"]


def test_after_the_deadline_nothing_is_measured(kept, work):
    measure_networks(kept, time.time() - 1)
    assert not work.measured


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
    assert flag.exists()


def test_without_trainers_what_is_kept_is_measured(study, monkeypatch):
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    run._watch(study, [], [Process(until=study.folder / "claims" / TRAINED)], soon(), print)
    assert (study.folder / "claims" / TRAINED).exists()


def test_a_while_after_the_deadline_everything_is_given_up(study, monkeypatch):
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    said = []
    run._watch(study, [Process(looks=10**9)], [], time.time() - 1, said.append)
    assert said == ["out of time: giving up what is not finished"]


def test_results_are_packed_again_and_again(study, monkeypatch):
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    monkeypatch.setattr(run, "PACK_EVERY", -1.0)
    write_row(study.folder / "rows", unit("ce").name, {"unit": {}})
    study.desk().weights(unit("focal")).touch()
    said = []
    run._watch(study, [Process(looks=1)], [], soon(), said.append)
    assert said == ["1 of 5 networks measured, 1 trained here"]
    assert len(read_rows([study.archive])) == 1


def test_a_study_that_is_complete_is_packed_at_once_and_starts_nothing(study, monkeypatch):
    for variant in UNITS:
        write_row(study.folder / "rows", unit(variant).name, {"unit": {}})
    monkeypatch.setattr(run, "get_context", lambda name: pytest.fail("nothing is missing"))
    said = []
    assert run_study(study, said.append) == 0
    assert said == ["5 of 5 networks are in all.zip"]
    assert len(read_rows([study.archive])) == 5


def test_the_folder_of_a_study_is_made(tmp_path):
    new = Study(tmp_path / "a" / "b", tmp_path / "a" / "b" / "all.zip", trainers=0, measurers=0, limit=2)
    assert run_study(new, print) == 2
    assert new.archive.exists()


def test_a_study_counts_what_is_missing(study):
    write_row(study.folder / "rows", unit("ce").name, {"unit": {}})
    study.desk().weights(unit("focal")).touch()  # trained, but not measured
    assert run_study(replace(study, trainers=0, measurers=0), print) == 4


def test_claims_of_processes_that_are_gone_count_no_more(study, work):
    for name in (unit("ce").name, f"measure-{unit('ce').name}", TRAINED):
        (study.folder / "claims" / name).touch()
    run_study(replace(study, trainers=0, measurers=0), print)
    train_networks(study, soon())
    assert work.trained == list(UNITS)


def write_small_cases(folder):
    rng = np.random.default_rng(0)
    for chunk in all_chunks(("roads",), SMALL):
        image = rng.random((len(chunk.indices), 3, 16, 24), np.float32)
        np.savez(folder / "cases" / chunk.name, image=image, labels=(image[:, 0] > 0.5).astype(np.int64))


def test_a_study_that_was_interrupted_goes_on_from_the_checkpoint(tmp_path, monkeypatch, in_place):
    monkeypatch.setitem(CONFIGS, "roads", replace(CONFIGS["roads"], validate_every=1, batch_size=2))
    studies = [
        Study(tmp_path / name, tmp_path / "all.zip", tasks=("roads",), seeds=1, limit=1, small=True)
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


def test_what_one_process_has_trained_another_one_measures(tmp_path, in_place):
    study = Study(tmp_path, tmp_path / "all.zip", tasks=("roads",), seeds=1, limit=len(MAIN) + 2, small=True, at_once=2)
    *main, first, second = study.units()
    run._check_folder(study)
    study.desk()
    write_small_cases(tmp_path)
    for one in main:  # which take longer to measure
        write_row(tmp_path / "rows", one.name, {"unit": {}})
    assert run_study(replace(study, measurers=0), print) == 2
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == {first.name, second.name}
    (tmp_path / "claims" / TRAINED).touch()
    measure_networks(study, soon())
    assert run_study(replace(study, trainers=0, measurers=0), print) == 0
    rows = {row["unit"]["variant"]: row for row in read_rows([study.archive]) if row["unit"]}
    assert set(rows) == {first.variant, second.variant}
    assert all(len(row["history"]) == 2 for row in rows.values())
    assert all(len(row["values"]["clean"]["none"]["dice"]) == SMALL.test for row in rows.values())


def test_a_folder_is_for_a_small_study_or_for_a_full_one(study):
    nobody = replace(study, trainers=0, measurers=0)
    run_study(nobody, print)
    run_study(nobody, print)
    with pytest.raises(InputError, match="holds a small study, but this one is full"):
        run_study(replace(nobody, small=False), print)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "precious.csv").write_text("mine")
    with pytest.raises(InputError, match=r"holds files that are no study\. Choose a new or an empty folder"):
        run_study(Study(tmp_path, tmp_path / "all.zip", small=True), print)
    assert [path.name for path in tmp_path.rglob("*")] == ["claims", "precious.csv"]


def test_a_folder_whose_description_is_damaged_is_refused(study):
    (study.folder / run.SIZES).write_text("")
    with pytest.raises(ArtifactError, match=r"study\.json is not readable"):
        run_study(study, print)


def test_processes_that_train_and_measure_follow_their_parent(study, work, in_place):
    train_networks(study, soon())
    measure_networks(study, time.time() - 1)
    assert in_place == [True, True]


def test_processes_are_ended_when_the_study_is_interrupted(study, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    ended = []
    monkeypatch.setattr(run, "_watch", interrupted)
    monkeypatch.setattr(run, "_end", ended.append)
    with pytest.raises(KeyboardInterrupt):
        run_study(replace(study, trainers=0, measurers=0), print)
    assert ended == [[]]


def test_cases_are_drawn_by_whoever_claims_them(study, work, monkeypatch):
    chunks = [Chunk("roads", "test", (number,)) for number in range(4)]
    drawn = []

    def draw(folder, chunk):
        drawn.append(chunk)
        (folder / chunk.name).touch()

    def another_process(_):
        (study.folder / "cases" / chunks[2].name).touch()

    monkeypatch.setattr(run, "all_chunks", lambda tasks, sizes: iter(chunks))
    monkeypatch.setattr(run, "write_chunk", draw)
    monkeypatch.setattr(run.time, "sleep", another_process)
    (study.folder / "cases" / chunks[0].name).touch()
    (study.folder / "claims" / chunks[2].name).touch()
    train_networks(study, soon())
    assert drawn == [chunks[1], chunks[3]]
    assert work.trained == list(UNITS)


def test_cases_that_another_process_does_not_draw_are_drawn_in_the_end(study, work, monkeypatch):
    chunk = Chunk("roads", "test", (0,))
    monkeypatch.setattr(run, "all_chunks", lambda tasks, sizes: iter([chunk]))
    monkeypatch.setattr(run, "write_chunk", lambda folder, chunk: (folder / chunk.name).touch())
    monkeypatch.setattr(run, "PATIENCE", -1.0)
    (study.folder / "claims" / chunk.name).touch()
    train_networks(study, soon())
    assert (study.folder / "cases" / chunk.name).exists()


def test_warming_up_needs_no_data():
    run.warm_up()
