"""Sigmoid networks for regions: one for the cardiac volumes, one for the street scenes.

``python -m paper.regions.train pack ROOT INPUT.npz`` packs images and labels of a data root, and
``python -m paper.regions.train train INPUT.npz OUT`` trains and predicts, on a GPU in a few minutes; it needs
torch and numpy only. OUT then holds float16 logits ``(regions, *space)`` of the held-out cases and their labels,
several cases to a file, which ``paper/regions/measure.py`` reads. Of float16's fraction they have six bits, beyond 8
three, cut towards zero: no sign changes, and the files are half as large.

``python -m paper.regions.train unite ROOT OUT`` adds the street scenes of a softmax ensemble.

Cardiac: the middle of every slice, 128 x 128; the heart contains the left heart, which contains the cavity. Street
scenes: every second row and column; vehicles and persons both contain bicyclists, and both are road users. Networks see
slices and train on binary cross-entropy plus soft Dice per region. No patient is in two parts. Of the street scenes
there are two divisions: `streets` holds out a video, a place that the network never saw; `blocks` holds out two of
every five blocks of 100 frames of all videos, the blocks that ``paper/protocols/camvid.toml`` keeps whole.
"""

import argparse
import json
import re
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

REGIONS = {
    "cardiac": {"heart": [1, 2, 3], "left heart": [2, 3], "cavity": [3]},
    "streets": {"road user": [8, 9, 10], "vehicle": [8, 10], "person": [9, 10], "ground": [3, 4]},
}
REGIONS["unions"] = REGIONS["blocks"] = REGIONS["streets"]
IGNORE = {"cardiac": 255, "streets": 11, "unions": 11, "blocks": 11}
TRAINED = ("cardiac", "streets", "blocks")
BLOCK = re.compile(r"(.+_f?\d+)\d\d$")
# Cases of the softmax ensemble that are made into regions.
UNIONS = 90
SIDE = 128
WIDTHS = (32, 64, 128, 192)
MOST_BYTES = 15 << 20
FLOAT = np.float32


def trained_on(task: str, names: list[str]) -> set[str]:
    """Return the cases for training: twenty patients; two videos; three of every five blocks."""
    if task == "cardiac":
        return {name for name in names if name < "patient071"}
    if task == "streets":
        return {name for name in names if not name.startswith("test_Seq05VD")}
    blocks = {name: match[1] for name in names if (match := BLOCK.match(name))}
    held_out = {block for number, block in enumerate(sorted(set(blocks.values()))) if number % 5 in (1, 3)}
    return {name for name in names if blocks[name] not in held_out}


def read_cardiac(root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read the volumes, ``(slices, 1, rows, columns)``, as bytes from the 1st to the 99th percentile."""
    import nibabel

    found = {}
    for path in sorted((root / "cardiac" / "images").glob("*.nii.gz")):
        image = np.asarray(nibabel.load(path).dataobj, FLOAT).T
        labels = np.asarray(nibabel.load(root / "cardiac" / "labels" / path.name).dataobj).T.astype(np.uint8)
        low, high = np.percentile(image, (1, 99))
        image = np.clip(255 * (image - low) / max(high - low, 1e-6), 0, 255).astype(np.uint8)
        rows, columns = (max(0, (size - SIDE) // 2) for size in image.shape[1:])
        place = (..., slice(rows, rows + SIDE), slice(columns, columns + SIDE))
        found[path.name.removesuffix(".nii.gz")] = image[place][:, None], labels[place]
    return found


def read_streets(root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read the pictures, ``(1, 3, rows, columns)``, at half their size."""
    from PIL import Image

    found = {}
    for path in sorted((root / "camvid" / "images").iterdir()):
        with Image.open(path) as picture, Image.open(root / "camvid" / "labels" / f"{path.stem}.png") as labels:
            small = picture.convert("RGB").resize((picture.width // 2, picture.height // 2), Image.Resampling.BOX)
            found[path.stem] = np.asarray(small).transpose(2, 0, 1)[None], np.asarray(labels)[None, ::2, ::2]
    return found


def thin(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return steps of the brightness along a row, and the colour of every second row and column, as bytes."""
    red, green, blue = image.astype(np.int16).swapaxes(0, 1)
    brightness = ((red + 2 * green + blue) >> 2).astype(np.uint8)
    colour = np.stack([red - green, blue - green])[..., ::2, ::2] // 2 + 128
    return np.diff(brightness, axis=-1, prepend=np.uint8(0)), colour.astype(np.uint8)


def thick(steps: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Return the image that was made thin, but for fine colour."""
    brightness = steps.cumsum(-1, dtype=np.uint8).astype(np.int16)
    red, blue = 2 * (colour.astype(np.int16) - 128).repeat(2, axis=-1).repeat(2, axis=-2)
    green = brightness - (red + blue) // 4
    return np.clip(np.stack([green + red, green, green + blue], axis=1), 0, 255).astype(np.uint8)


def pack(root: Path, target: Path, tasks: list[str]) -> None:
    """Write data sets to one file; pictures of the street are made thin."""
    arrays = {}
    for task in tasks:
        for name, (image, labels) in (read_cardiac if task == "cardiac" else read_streets)(root).items():
            arrays[f"{task}/{name}/labels"] = labels
            if task == "cardiac":
                arrays[f"{task}/{name}/image"] = image
            else:
                arrays[f"{task}/{name}/steps"], arrays[f"{task}/{name}/colour"] = thin(image)
    np.savez_compressed(target, **arrays)
    print(f"{target.stat().st_size / 2**20:.1f} MiB")


def unpack(source: Path) -> dict[str, np.ndarray]:
    """Return images and labels of a file."""
    with np.load(source) as stored:
        arrays = dict(stored)
    for case in [key.removesuffix("/steps") for key in arrays if key.endswith("/steps")]:
        arrays[f"{case}/image"] = thick(arrays.pop(f"{case}/steps"), arrays.pop(f"{case}/colour"))
    return arrays


def names_of(arrays: dict[str, np.ndarray], task: str) -> list[str]:
    """Return the cases of a task."""
    return [key.split("/")[1] for key in arrays if key.startswith(f"{task}/") and key.endswith("/image")]


def unite(root: Path, out: Path) -> None:
    """Write the same groups of a softmax ensemble: sums of probabilities of classes, mean over members."""
    from PIL import Image

    members = sorted((root / "predictions" / "camvid").iterdir())
    names = sorted(path.stem for path in members[0].iterdir())
    held: dict[str, np.ndarray] = {}
    for name in [names[number] for number in np.linspace(0, len(names) - 1, UNIONS).astype(int)]:
        scores = [torch.from_numpy(np.load(each / f"{name}.npy")[:, ::2, ::2]).double() for each in members]
        probs = torch.stack([each.softmax(0) for each in scores]).mean(0)
        sums = torch.stack([probs[labels].sum(0) for labels in REGIONS["unions"].values()])
        held[f"{name}/logits"] = torch.logit(sums.clamp(1e-6, 1 - 1e-6)).half().numpy()[:, None]
        with Image.open(root / "camvid" / "labels" / f"{name}.png") as labels:
            held[f"{name}/labels"] = np.asarray(labels)[None, ::2, ::2]
    out.mkdir(parents=True, exist_ok=True)
    save(out / "unions_0.npz", held)


class Level(nn.Sequential):
    """Two convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.01)]
        super().__init__(*layers)


class Network(nn.Module):
    """A small U-Net; it depends on torch alone, so that it runs where segcal is not installed."""

    def __init__(self, channels: int, regions: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(Level, (channels, *WIDTHS[:-1]), WIDTHS))
        self.up = nn.ModuleList(Level(here + below, here) for here, below in pairwise(WIDTHS))
        self.head = nn.Conv2d(WIDTHS[0], regions, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits ``(batch, regions, rows, columns)``."""
        skips: list[Tensor] = []
        for level in self.down:
            skips.append(level(functional.max_pool2d(skips[-1], 2) if skips else image))
        features = skips.pop()
        for level, skip in zip(reversed(self.up), reversed(skips), strict=True):
            features = level(torch.cat([functional.interpolate(features, size=skip.shape[2:]), skip], 1))
        return self.head(features)


def truth(labels: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Return region masks ``(batch, regions, rows, columns)``, and where voxels count."""
    masks = [torch.isin(labels, torch.tensor(each, device=labels.device)) for each in REGIONS[task].values()]
    return torch.stack(masks, 1).float(), (labels != IGNORE[task]).float()[:, None]


def loss_of(logits: Tensor, labels: Tensor, task: str) -> Tensor:
    """Return binary cross-entropy plus soft Dice."""
    target, counts = truth(labels, task)
    entropy = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    probs, axes = logits.sigmoid() * counts, (0, 2, 3)
    both, total = (probs * target).sum(axes), (probs + target * counts).sum(axes)
    return (entropy * counts).sum() / counts.sum() / len(REGIONS[task]) + (1 - (2 * both + 1) / (total + 1)).mean()


def batch_of(slices: list[tuple[Tensor, Tensor]], size: int, side: int, mirror: bool) -> tuple[Tensor, Tensor]:
    """Draw crops, turned over at random."""
    images, labels = [], []
    for index in torch.randint(len(slices), (size,)).tolist():
        image, own = slices[index]
        row, column = (int(torch.randint(max(1, length - side + 1), ())) for length in own.shape)
        image, own = image[:, row : row + side, column : column + side], own[row : row + side, column : column + side]
        for axis in (-1, *((-2,) if mirror else ())):
            if torch.rand(()) < 0.5:
                image, own = image.flip(axis), own.flip(axis)
        images.append(image.float() / 255 * (0.8 + 0.4 * torch.rand(())) + 0.2 * torch.rand(()) - 0.1)
        labels.append(own)
    return torch.stack(images), torch.stack(labels).long()


def train(arrays: dict[str, np.ndarray], task: str, steps: int, seconds: float, batch: int, device: str) -> Network:
    """Train one network: so many steps, or as many as there is time for."""
    torch.manual_seed(0)
    slices = []
    for name in sorted(trained_on(task, names_of(arrays, task))):
        image, labels = (torch.from_numpy(arrays[f"{task}/{name}/{what}"]) for what in ("image", "labels"))
        slices += [(one.to(device), other.to(device)) for one, other in zip(image, labels, strict=True)]
    side = min(min(labels.shape) for _, labels in slices) // 8 * 8
    network = Network(slices[0][0].shape[0], len(REGIONS[task])).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-4)
    start, step, share = time.monotonic(), 0, 0.0
    while share < 1:
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - share) ** 0.9
        image, labels = batch_of(slices, batch, min(side, SIDE), mirror=task == "cardiac")
        loss = loss_of(network(image), labels, task)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        share = max(step / steps, (time.monotonic() - start) / seconds)
        if step % max(1, steps // 10) == 0 or share >= 1:
            print(f"{task}: step {step}, loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)
    return network.eval()


@torch.inference_mode()
def predict(arrays: dict[str, np.ndarray], task: str, network: Network, out: Path, device: str) -> None:
    """Write the logits and labels of held-out cases, in files of a few megabytes."""
    held, size, number = dict[str, np.ndarray](), 0, 0
    names = names_of(arrays, task)
    for name in sorted(set(names) - trained_on(task, names)):
        image, labels = (arrays[f"{task}/{name}/{what}"] for what in ("image", "labels"))
        slices = torch.from_numpy(image).float().to(device) / 255
        logits = torch.cat([network(one[None]).cpu() for one in slices]).half().movedim(1, 0).numpy()
        bits = np.where(np.abs(logits) < 8, 0xFFF0, 0xFF80).astype(np.uint16)
        logits = (logits.view(np.uint16) & bits).view(np.float16)
        if size + logits.nbytes > MOST_BYTES:
            save(out / f"{task}_{number}.npz", held)
            held, size, number = {}, 0, number + 1
        held[f"{name}/logits"], held[f"{name}/labels"] = logits, labels
        size += logits.nbytes
    save(out / f"{task}_{number}.npz", held)


def save(path: Path, held: dict[str, np.ndarray]) -> None:
    """Write compressed arrays."""
    np.savez_compressed(path, **held)
    print(f"{path.name}: {len(held) // 2} cases, {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def main() -> None:
    """Pack, or train and predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "train", "unite"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=75.0, help="of training, for each of the two")
    parser.add_argument("--tasks", nargs="+", default=list(TRAINED))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    if chosen.what == "pack":
        pack(chosen.source, chosen.target, chosen.tasks)
        return
    if chosen.what == "unite":
        unite(chosen.source, chosen.target)
        return
    chosen.target.mkdir(parents=True, exist_ok=True)
    arrays = unpack(chosen.source)
    for task in chosen.tasks:
        network = train(arrays, task, chosen.steps, chosen.seconds, chosen.batch, chosen.device)
        predict(arrays, task, network, chosen.target, chosen.device)
    (chosen.target / "regions.json").write_text(json.dumps({"regions": REGIONS, "ignore": IGNORE}, indent=1))


if __name__ == "__main__":
    main()
