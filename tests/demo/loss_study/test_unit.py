import json
from functools import partial

import numpy as np

from segcal.demo.loss_study.data import Sizes, all_chunks, write_chunk
from segcal.demo.loss_study.measure import fit_post_hoc
from segcal.demo.loss_study.network import Effort
from segcal.demo.loss_study.plan import Unit
from segcal.demo.loss_study.unit import Desk, run_unit, slice_shown

TINY = Sizes({"roads": 2, "tumour": 1, "streets": 1}, valid=1, cal=2, val=1, test=2)


def test_a_unit_leaves_a_row_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("segcal.demo.loss_study.unit.fit_post_hoc", partial(fit_post_hoc, names=("ts",)))
    for name in ("cases", "rows"):
        (tmp_path / name).mkdir()
    for chunk in all_chunks(("roads",), TINY):
        write_chunk(tmp_path / "cases", chunk)
    desk = Desk(tmp_path / "cases", tmp_path / "rows", TINY, Effort(epochs=1))
    run_unit(Unit("roads", "nacl", 0), desk)
    row = json.loads((tmp_path / "rows" / "roads-nacl-unet-100-0.json").read_text())
    assert row["unit"] == {"task": "roads", "variant": "nacl", "seed": 0, "backbone": "unet", "share": 100}
    assert set(row["values"]) == {"clean", "corrupted"}
    assert all(len(column) == 2 for column in row["values"]["corrupted"]["none"].values())
    assert "hd95" in row["values"]["clean"]["none"]
    with np.load(tmp_path / "rows" / "roads-nacl-unet-100-0.npz") as arrays:
        assert arrays["prediction"].shape == arrays["confidence"].shape == (192, 224)
        assert arrays["confidence"].min() >= 127  # the larger of two probabilities
    with np.load(tmp_path / "rows" / "roads-shown.npz") as arrays:
        assert arrays["image"].shape == (3, 192, 224)


def test_of_a_volume_the_slice_with_most_foreground_is_shown():
    labels = np.zeros((4, 5, 6), int)
    labels[1:3, 1:3, 4] = 2
    labels[0, 0, 1] = 1
    assert slice_shown(labels) == (slice(None), slice(None), 4)
    assert slice_shown(labels[..., 0]) == (slice(None), slice(None))
