from paper.loss_study.backbones import BACKBONES
from paper.loss_study.plan import (
    BACKBONE_LOSSES,
    BACKBONE_TASK,
    MAIN,
    SENSITIVITY,
    SHARES,
    SIGMAS,
    VARIANTS,
    Unit,
    plan_units,
)
from segcal.losses import make_loss


def test_every_variant_is_a_loss_with_options_it_knows():
    for name, options in VARIANTS.values():
        loss = make_loss(name, **options)
        for key, value in options.items():
            assert getattr(loss, key) == value


def test_the_main_table_has_the_papers_hyper_parameters():
    wanted = {"gamma": 3.0, "sigma": 2.0, "margin": 5.0, "smoothing": 0.1}
    for name in MAIN:
        for key, value in VARIANTS[name][1].items():
            assert value == wanted.get(key, 0.1), (name, key)


def test_networks_of_the_main_table_come_first_and_none_comes_twice():
    units = plan_units(3)
    assert len(units) == len(set(units)) == len({unit.name for unit in units})
    main = [unit for unit in units if unit.main]
    assert units[: len(main)] == main
    assert len(main) == 3 * len(MAIN) * 3
    assert [unit.seed for unit in main] == sorted(unit.seed for unit in main)


def test_every_comparison_finds_its_networks():
    units = set(plan_units(1))
    for task in ("roads", "tumour", "streets"):
        for variants in [*SENSITIVITY.values(), *SIGMAS.values()]:
            assert {Unit(task, variant, 0) for variant in variants} <= units
    for backbone in BACKBONES:
        assert {Unit(BACKBONE_TASK, variant, 0, backbone) for variant in BACKBONE_LOSSES} <= units
    for share in SHARES:
        assert {Unit("roads", variant, 0, share=share) for variant in MAIN} <= units


def test_one_task_alone_can_be_planned():
    assert {unit.task for unit in plan_units(1, ("tumour",))} == {"tumour"}
