"""ACDC from download to table: ``python -m paper.datasets.acdc ACDC -o OUT``.

ACDC has ``training/patientXXX/patientXXX_frameYY.nii.gz`` with ``patientXXX_frameYY_gt.nii.gz``: two phases of each
patient, with labels 0 to 3. Networks train on the first half of the patients; the others are held out, and the phases
of one stay in one part. The networks see slices: arrays are ``(slices, rows, columns)``, the transposed NIfTI array.
Intensities of MRI have no unit, so each volume is brought to mean 0 and standard deviation 1.
"""

from pathlib import Path

import numpy as np

from paper.datasets.layout import Dataset, Pair, Record
from segcal.cases.nifti_file import nifti_values, open_nifti

TRUTH = "_gt.nii.gz"


def find(folder: Path) -> list[Record]:
    """List the cases."""
    if not (folder / "training").is_dir():
        raise DATASET.missing(folder, "the folder training")
    patients = sorted(path for path in (folder / "training").iterdir() if path.name.startswith("patient"))
    records = []
    for number, patient in enumerate(patients):
        if not (patient / "Info.cfg").is_file():
            raise DATASET.missing(folder, f"training/{patient.name}/Info.cfg")
        for labels in sorted(patient.glob(f"{patient.name}_frame*{TRUTH}")):
            stem = labels.name.removesuffix(TRUTH)
            image = labels.with_name(f"{stem}.nii.gz")
            if not image.is_file():
                raise DATASET.missing(folder, f"the image of training/{patient.name}/{labels.name}")
            part = "train" if 2 * number < len(patients) else "held_out"
            records.append(Record(stem, image, labels, patient.name, part))
    return records


def read(record: Record) -> Pair:
    """Read a case as ``(1, slices, rows, columns)``."""
    image, labels = (nifti_values(open_nifti(path), path).transpose() for path in (record.image, record.labels))
    values = np.asarray(image, np.float32)
    return ((values - values.mean()) / max(float(values.std()), 1e-6))[None], labels.astype(np.int64)


DATASET = Dataset(
    name="cardiac",
    title="ACDC",
    source=(
        "Register with the Human Heart Project of CREATIS, download the ACDC database, and pass the folder that holds "
        "training."
    ),
    find=find,
    read=read,
    channels=1,
    class_names=("background", "right ventricle", "myocardium", "left ventricle"),
    flips=(0, 1),
)

if __name__ == "__main__":
    from paper.datasets.commands import main

    main(DATASET, __doc__)
