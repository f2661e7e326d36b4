import os
from pathlib import Path

from segcal.demo.loss_study.data import FULL, SMALL
from segcal.demo.loss_study.plan import MAIN
from segcal.demo.loss_study.study import Study


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
