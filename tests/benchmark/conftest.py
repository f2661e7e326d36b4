"""Small tasks on disk: two members, three classes, cases of two visits a patient."""

import numpy as np
import pytest

SPACE = (13, 11)


def write_task(folder, cases=12, members=2, seed=0, shift=0.0):
    """Write logits that know the labels a little, and return the table of a task."""
    rng = np.random.default_rng(seed)
    (folder / "labels").mkdir(parents=True)
    for member in range(members):
        (folder / f"member_{member}").mkdir()
    for number in range(cases):
        name = f"p{number // 2}_v{number % 2}.npy"
        rough = rng.normal(size=(3, *SPACE)).cumsum(1).cumsum(2)
        labels = rough.argmax(0)
        np.save(folder / "labels" / name, labels.astype(np.uint8))
        for member in range(members):
            noise = rng.normal(size=rough.shape)
            offset = rng.normal(size=SPACE) + shift
            np.save(folder / f"member_{member}" / name, (0.7 * rough + 2 * noise + offset).astype(np.float32))
    return {
        "name": folder.name,
        "members": [f"{folder.name}/member_{member}" for member in range(members)],
        "labels": f"{folder.name}/labels",
        "kind": "logits",
        "groups": r"(p\d+)_",
    }


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a folder with the tasks `blobs` and `others`, and their tables."""
    root = tmp_path_factory.mktemp("data")
    return root, write_task(root / "blobs"), write_task(root / "others", cases=6, seed=1, shift=2.0)
