"""Massachusetts Roads from download to table: ``python -m paper.datasets.roads ROADS -o OUT``.

ROADS has ``{train,valid,test}/{sat,map}`` as first published, or ``tiff/{train,val,test}`` with ``tiff/train_labels``
and so on as in the copy on Kaggle: TIFF pictures of 1500 x 1500, and maps that are not 0 on a road. Networks train on
`train`; the others are held out, as four quarters each that stay in one part.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from paper.datasets.layout import Dataset, Pair, Part, Record, paired

# By layout, the folders of images and of maps of each part.
LAYOUTS: tuple[dict[tuple[str, str], Part], ...] = (
    {
        ("train/sat", "train/map"): "train",
        ("valid/sat", "valid/map"): "held_out",
        ("test/sat", "test/map"): "held_out",
    },
    {
        ("tiff/train", "tiff/train_labels"): "train",
        ("tiff/val", "tiff/val_labels"): "held_out",
        ("tiff/test", "tiff/test_labels"): "held_out",
    },
)
EXTENSIONS = (".tif", ".tiff", ".png")


def find(folder: Path) -> list[Record]:
    """List the cases."""
    layout = LAYOUTS[1] if (folder / "tiff").is_dir() else LAYOUTS[0]
    records = []
    for (images, maps), part in layout.items():
        for image, labels in paired(DATASET, folder, images, maps, EXTENSIONS):
            if part == "train":
                records.append(Record(image.stem, image, labels, image.stem, part))
            else:
                records += _quarters(image, labels, part)
    return records


def read(record: Record) -> Pair:
    """Read a case, or the quarter of a picture that it is; pictures from 0 to 1."""
    with Image.open(record.image) as picture, Image.open(record.labels) as road:
        values = np.asarray(picture.convert("RGB"), np.float32).transpose(2, 0, 1) / 255
        labels = (np.asarray(road.convert("L")) > 0).astype(np.int64)
    if record.window is None:
        return values, labels
    return values[:, *record.window], labels[record.window]


def _quarters(image: Path, labels: Path, part: Part) -> list[Record]:
    with Image.open(image) as picture:
        width, height = picture.size
    halves = [[slice(0, size // 2), slice(size // 2, size)] for size in (height, width)]
    return [
        Record(f"{image.stem}_r{row}_c{column}", image, labels, image.stem, part, (rows, columns))
        for row, rows in enumerate(halves[0])
        for column, columns in enumerate(halves[1])
    ]


DATASET = Dataset(
    name="roads",
    title="Massachusetts Roads",
    source=(
        "Download it from the page of Volodymyr Mnih at the University of Toronto (train, valid and test, each with "
        "sat and map), or the copy massachusetts-roads-dataset on Kaggle (tiff/train, tiff/train_labels, ...)."
    ),
    find=find,
    read=read,
    channels=3,
    class_names=("other", "road"),
    flips=(0, 1),
)

if __name__ == "__main__":
    from paper.datasets.commands import main

    main(DATASET, __doc__)
