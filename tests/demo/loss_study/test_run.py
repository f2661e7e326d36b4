import time

import pytest

from segcal.demo.loss_study import run
from segcal.demo.loss_study.plan import Unit
from segcal.demo.loss_study.rows import read_rows, write_row
from segcal.demo.loss_study.run import Study, run_study, work


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study whose networks are made up: what is tested is who does what, and what happens when something breaks."""
    monkeypatch.setattr(run, "all_chunks", lambda tasks, sizes: [])
    done = []

    def made_up(unit, desk):
        done.append(unit)
        if unit.variant == "focal":
            raise RuntimeError("diverged")
        write_row(desk.rows, unit.name, {"unit": {"task": unit.task, "variant": unit.variant}})

    monkeypatch.setattr(run, "run_unit", made_up)
    for name in ("cases", "rows", "claims"):
        (tmp_path / name).mkdir()
    return Study(tmp_path, tmp_path / "all.zip", tasks=("roads",), seeds=1, limit=5), done


def test_what_is_there_or_claimed_is_left_alone(study):
    study, done = study
    write_row(study.folder / "rows", Unit("roads", "ce", 0).name, {})
    (study.folder / "claims" / Unit("roads", "ecp", 0).name).touch()
    work(study, time.time() + 100)
    assert [unit.variant for unit in done] == ["ce_dice", "focal", "label_smoothing"]


def test_a_network_that_fails_leaves_its_reason_and_the_others(study, capfd):
    study, _ = study
    work(study, time.time() + 100)
    assert "diverged" in (study.folder / "rows" / "roads-focal-unet-100-0.error.txt").read_text()
    assert "roads-focal-unet-100-0 failed" in capfd.readouterr().err
    assert (study.folder / "rows" / "roads-label_smoothing-unet-100-0.json").exists()


def test_a_process_that_fails_again_and_again_leaves_the_rest_to_others(study, monkeypatch):
    study, done = study

    def broken(unit, desk):
        done.append(unit)
        raise RuntimeError("no device")

    monkeypatch.setattr(run, "run_unit", broken)
    work(study, time.time() + 100)
    assert len(done) == run.MOST_FAILURES < len(study.units())


def test_a_unit_that_fails_with_recorded_steps_is_tried_with_plain_ones(study, monkeypatch):
    study, _ = study
    tried = []

    def unreliable(unit, desk):
        tried.append(desk.effort.graph)
        if desk.effort.graph:
            raise RuntimeError("not recorded")

    monkeypatch.setattr(run, "run_unit", unreliable)
    assert run._attempt(Unit("roads", "ce", 0), study.desk(graph=True))
    assert tried == [True, False]


def test_after_the_deadline_nothing_is_begun(study):
    study, done = study
    work(study, time.time() - 1)
    assert not done


def test_a_study_that_is_complete_is_packed_at_once(study, monkeypatch):
    study, _ = study
    monkeypatch.setattr(run, "warm_up", lambda: None)
    for unit in study.units():
        write_row(study.folder / "rows", unit.name, {"unit": {}})
    said = []
    missing = run_study(Study(**{**study.__dict__, "workers": 0}), said.append)
    assert missing == 0
    assert said == ["5 of 5 networks are in all.zip"]
    assert len(read_rows([study.archive])) == 5


def test_warming_up_needs_no_data():
    run.warm_up()
