"""What a fit by gradient learns from, and what it stops on: tiles or voxels of the calibration and validation cases.

Without validation cases a fifth of the calibration cases is held back, whole groups of them; of a single case or group,
a fifth of its tiles or voxels. Either is written to the certificate. With ``voxels="all"`` tiles are drawn anew for
every round, so that in the course of time all voxels are seen; else they are drawn once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from segcal.calibrators.look_around import LookAround
from segcal.cases.base import Cases
from segcal.fitting.batches import Batches, TileBatches, VoxelBatches
from segcal.fitting.crops import Tiles, TileSource, Window
from segcal.fitting.division import divide
from segcal.fitting.request import Request, read_data
from segcal.fitting.sample import Voxels
from segcal.fitting.voxels import VoxelSource

# Share of the calibration cases that is held back where there are no validation cases.
HELD_BACK = 0.2


@dataclass(frozen=True)
class LearningData:
    """What a fit learns from and stops on.

    Attributes:
        train: the calibration data.
        validation: the validation data.
        available: labelled voxels of the calibration cases.
        details: what the certificate says about them.
    """

    train: Batches
    validation: Batches
    available: int
    details: dict[str, Any]


def _can_divide(cases: Cases) -> bool:
    return len({cases.groups.get(case_id, f"\0{case_id}") for case_id in cases.ids}) > 1


def read_tiles(request: Request) -> LearningData:
    """Draw tiles of the cases, for a calibrator that sees neighbours, and tell it where the values of images lie."""
    calibrator = request.calibrator
    assert isinstance(calibrator, LookAround)
    config, window = request.config, Window.of(calibrator)
    cases, held = request.cases, request.validation_cases
    details: dict[str, Any] = {}
    if held is None and _can_divide(cases):
        cases, held, _ = divide(cases, HELD_BACK, seed=config.seed)
        details = {"held_back": list(held.ids)}
    source = TileSource(cases, window, config)
    tiles = source.draw(0, _tick(request, len(cases)))
    whole = calibrator.reach(2) is None

    def batches(tiles_of: Callable[[int], Tiles]) -> Batches:
        return TileBatches(tiles_of, request.device, config.seed, whole)

    if held is not None:
        chosen = TileSource(held, window, config).draw(0, _tick(request, len(held)))
        train = batches(source.draw if config.voxels == "all" else lambda number: tiles)
    else:
        details = {"held_back": "a fifth of the tiles of the only case or group"}
        kept, chosen = _fifth_of_tiles(tiles)
        train = batches(lambda number: kept)
    if tiles.image is not None:
        _centre_images(calibrator, tiles)
    return LearningData(train, batches(lambda number: chosen), source.available, details)


def _fifth_of_tiles(tiles: Tiles) -> tuple[Tiles, Tiles]:
    """Return four fifths of the tiles and the rest; all of them twice if there are too few."""
    last = torch.arange(tiles.weight.shape[1]) % 5 == 4
    kept, chosen = (tiles.at(slice(None), index) for index in (~last, last))
    if bool((kept.labels >= 0).any()) and bool((chosen.labels >= 0).any()):
        return kept, chosen
    return tiles, tiles


@torch.no_grad()
def _centre_images(calibrator: LookAround, tiles: Tiles) -> None:
    """Tell the tree where the values of the images lie."""
    assert tiles.image is not None
    values = tiles.image[tiles.weight > 0].movedim(1, 0).flatten(1).double()
    tree = calibrator.get_submodule("tree")
    tree.get_buffer("image_centre").copy_(values.mean(1))
    tree.get_buffer("image_scale").copy_(values.std(1).clamp(min=1e-6))


def read_voxels(request: Request) -> LearningData:
    """Take the voxels of the fit, for a calibrator that works voxel by voxel."""
    config, device = request.config, request.device
    source, validation = request.source, request.validation
    details: dict[str, Any] = {}
    if validation is None and _can_divide(request.cases):
        split = divide(request.cases, HELD_BACK, seed=config.seed)
        data = read_data(split.cal, split.val, config, request.report)
        source, validation = data.source, data.validation
        details = {"held_back": list(split.val.ids)}
    if validation is not None:
        train = VoxelBatches(source, source.used, device, config.seed)
        chosen = VoxelBatches(validation, validation.used, device, config.seed)
    else:
        details = {"held_back": "a fifth of the voxels of the only case or group"}
        shares = [_Share(source, held) for held in (False, True)] if source.used >= 5 else [source, source]
        train, chosen = (VoxelBatches(share, source.used, device, config.seed) for share in shares)
    return LearningData(train, chosen, source.available, details)


class _Share:
    """Four fifths of the voxels of a source, or the fifth that is held back."""

    def __init__(self, source: VoxelSource, held: bool) -> None:
        self._source, self._held = source, held

    def __iter__(self) -> Iterator[Voxels]:
        for voxels in self._source:
            mine = (torch.arange(voxels.labels.numel()) % 5 == 4) == self._held
            yield Voxels(*(values[..., mine] for values in voxels))


def _tick(request: Request, count: int) -> Callable[[], None]:
    read = 0

    def tick() -> None:
        nonlocal read
        read += 1
        request.report(f"read {read} of {count} cases")

    return tick
