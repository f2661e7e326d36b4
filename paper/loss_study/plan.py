"""The networks of the study of losses, in the order of training, and those that each part of it compares.

The hyper-parameters of :data:`MAIN` are those of the paper's main experiments; the others are those of its Figures 3, 6
and 7 and Tables 3 and 4. A network is trained once, however many parts of the study look at it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paper.loss_study.backbones import BACKBONES
from paper.loss_study.training import TrainConfig
from segcal.demo.tasks import TASKS
from segcal.losses import LOSSES

# The name of a loss with its settings: the loss, and its options.
VARIANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "ce": ("ce", {}),
    "ce_dice": ("ce_dice", {}),
    "focal": ("focal", {"gamma": 3.0}),
    "ecp": ("ecp", {"weight": 0.1}),
    "label_smoothing": ("label_smoothing", {"smoothing": 0.1}),
    "svls": ("svls", {"sigma": 2.0}),
    "mbls": ("mbls", {"margin": 5.0, "weight": 0.1}),
    "nacl": ("nacl", {"weight": 0.1}),
    "nacl_gaussian_1": ("nacl", {"prior": "gaussian", "sigma": 1.0}),
    "nacl_l2": ("nacl", {"penalty": "l2"}),
    "nacl_softmax": ("nacl", {"on": "softmax"}),
    "nacl_gaussian_2": ("nacl", {"prior": "gaussian", "sigma": 2.0}),
    "nacl_gaussian_3": ("nacl", {"prior": "gaussian", "sigma": 3.0}),
    "svls_1": ("svls", {"sigma": 1.0}),
    "svls_3": ("svls", {"sigma": 3.0}),
    "svls_0.5": ("svls", {"sigma": 0.5}),
    "focal_1": ("focal", {"gamma": 1.0}),
    "focal_2": ("focal", {"gamma": 2.0}),
    "ecp_0.2": ("ecp", {"weight": 0.2}),
    "ecp_0.3": ("ecp", {"weight": 0.3}),
    "label_smoothing_0.2": ("label_smoothing", {"smoothing": 0.2}),
    "label_smoothing_0.3": ("label_smoothing", {"smoothing": 0.3}),
    "mbls_3": ("mbls", {"margin": 3.0}),
    "mbls_10": ("mbls", {"margin": 10.0}),
    "nacl_0.2": ("nacl", {"weight": 0.2}),
    "nacl_0.3": ("nacl", {"weight": 0.3}),
}
MAIN = ("ce", "ce_dice", "focal", "ecp", "label_smoothing", "svls", "mbls", "nacl")
# Fig. 6: three settings of each loss, in the paper's order.
SENSITIVITY: dict[str, tuple[str, str, str]] = {
    "focal": ("focal_1", "focal_2", "focal"),
    "ecp": ("ecp", "ecp_0.2", "ecp_0.3"),
    "label_smoothing": ("label_smoothing", "label_smoothing_0.2", "label_smoothing_0.3"),
    "svls": ("svls_0.5", "svls_1", "svls"),
    "mbls": ("mbls_3", "mbls", "mbls_10"),
    "nacl": ("nacl", "nacl_0.2", "nacl_0.3"),
}
# Fig. 7: the same sigma in svls and in nacl with the gaussian prior.
SIGMAS: dict[int, tuple[str, str]] = {
    1: ("svls_1", "nacl_gaussian_1"),
    2: ("svls", "nacl_gaussian_2"),
    3: ("svls_3", "nacl_gaussian_3"),
}
# Fig. 8: the losses that are closest to nacl, and what most people train with, on one task.
BACKBONE_LOSSES = ("ce_dice", "svls", "mbls", "nacl")
BACKBONE_TASK = "streets"
# Fig. 9: percent of the training cases, on two tasks.
SHARES = (25, 50, 75)
SHARE_TASKS = ("roads", "tumour")
# Applied after every network of the main table.
POST_HOC = ("ts", "cms_ap", "lts_ti")

# Shorter trainings than those of the shipped ensembles, because the study needs many, in smaller batches, so that there
# are as many steps up to the epoch that is best there.
CONFIGS: dict[str, TrainConfig] = {
    "roads": TrainConfig(epochs=60, batch_size=4, flips=(0, 1), validate_every=10),
    "tumour": TrainConfig(epochs=100, batch_size=2, flips=(1,), validate_every=10),
    "streets": TrainConfig(epochs=80, batch_size=4, flips=(1,), validate_every=10, include_background=True),
}


@dataclass(frozen=True)
class Unit:
    """One network to be trained and measured.

    Attributes:
        task: a name of :data:`segcal.demo.tasks.TASKS`.
        variant: a name of :data:`VARIANTS`.
        seed: of the weights and of the order of cases.
        backbone: a name of :data:`paper.loss_study.backbones.BACKBONES`.
        share: percent of the training cases.
    """

    task: str
    variant: str
    seed: int
    backbone: str = "unet"
    share: int = 100

    def __post_init__(self) -> None:
        assert self.task in TASKS
        assert VARIANTS[self.variant][0] in LOSSES
        assert self.backbone in BACKBONES

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.task}-{self.variant}-{self.backbone}-{self.share}-{self.seed}"

    @property
    def main(self) -> bool:
        """Return whether it belongs to the main table, whose networks are also calibrated afterwards."""
        return self.variant in MAIN and self.backbone == "unet" and self.share == 100


def plan_units(seeds: int, tasks: tuple[str, ...] = tuple(TASKS), main_only: bool = False) -> list[Unit]:
    """Return all networks, the most important first: the main table, then the rest seed by seed."""
    main = [Unit(task, variant, seed) for seed in range(seeds) for variant in MAIN for task in tasks]
    rest = [] if main_only else [unit for seed in range(seeds) for unit in _rest(seed, tasks)]
    return list(dict.fromkeys(main + rest))


def _rest(seed: int, tasks: tuple[str, ...]) -> Iterator[Unit]:
    for variant in VARIANTS:
        if variant not in MAIN:
            yield from (Unit(task, variant, seed) for task in tasks)
    if BACKBONE_TASK in tasks:
        for backbone in BACKBONES:
            yield from (Unit(BACKBONE_TASK, variant, seed, backbone=backbone) for variant in BACKBONE_LOSSES)
    for task in SHARE_TASKS:
        if task in tasks:
            yield from (Unit(task, variant, seed, share=share) for share in SHARES for variant in MAIN)
