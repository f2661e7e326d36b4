"""Write corrupted copies of a folder of pictures: ``python -m paper.corrupt IN OUT --strength mild|strong``.

Run your own network on OUT as you did on IN; the labels stay those of IN. Then ``segcal benchmark`` evaluates the
calibrators that were fitted on the clean predictions on the corrupted ones (``test_on`` of the protocol).

The copies are PNG files of the same stems. OUT.json, beside OUT, says which corruption each picture got, so that the
folder holds pictures and nothing else.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segcal.atomic import write_text, written
from segcal.errors import InputError, SegcalError
from segcal.studies.corruptions import SETTINGS, STRENGTHS, choose_corruption, corrupt, to_image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="IN", help="folder of pictures")
    parser.add_argument("target", type=Path, metavar="OUT", help="folder to write to")
    parser.add_argument("--strength", choices=STRENGTHS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        chosen = corrupt_folder(args.source, args.target, args.strength, args.seed)
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    record = {"strength": args.strength, "seed": args.seed, "settings": SETTINGS, "pictures": chosen}
    write_text(args.target.with_name(args.target.name + ".json"), json.dumps(record, indent=1) + "\n")
    counts = {kind: list(chosen.values()).count(kind) for kind in SETTINGS}
    print(f"{len(chosen)} pictures: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


def corrupt_folder(source: Path, target: Path, strength: str, seed: int = 0) -> dict[str, str]:
    """Write a corrupted copy of a folder of pictures, as PNG files of the same stems; return the corruption of each.

    Every file in the folder must be a picture, and its whole file name decides its corruption.
    """
    paths = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else []
    if not paths:
        raise InputError(f"{source} holds no files, but a folder of pictures is needed. Check the path.")
    stems = [path.stem for path in paths]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise InputError(f"{source} holds two pictures named {twice!r}, but copies are PNG files. Rename one of them.")
    for path in paths:
        copy = to_image(corrupt(read_picture(path), path.name, strength, seed))
        with written(target / f"{path.stem}.png") as beside:
            copy.save(beside, "PNG")
    return {path.name: choose_corruption(path.name, seed) for path in paths}


def read_picture(path: Path) -> NDArray[np.float32]:
    try:
        with Image.open(path) as file:
            pixels = np.asarray(file if file.mode == "L" else file.convert("RGB"))
    except OSError as error:
        raise InputError(f"{path} is not readable as a picture ({error}). Leave only pictures in the folder.") from None
    picture = pixels.astype(np.float32) / np.float32(255)
    return picture[None] if picture.ndim == 2 else np.moveaxis(picture, 2, 0)


if __name__ == "__main__":
    main()
