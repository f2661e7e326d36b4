"""With a real Trainer, on the CPU."""

import numpy as np
import pytest
import torch
from torch import nn

import segcal
from segcal.errors import InputError

lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

from segcal.integrations.lightning import CalibrationCallback, load_from_checkpoint  # noqa: E402

RNG = np.random.default_rng(0)
IMAGES = torch.from_numpy(4 * RNG.normal(size=(10, 3, 9, 8)).astype("float32"))
LABELS = (IMAGES / 3 + torch.from_numpy(RNG.gumbel(size=IMAGES.shape))).argmax(1)
LABELS[:, 0, 0] = 255


class Module(lightning.LightningModule):
    """The network is the identity, so that the right temperature, 3, is known."""

    def __init__(self, as_pair=False, folder=None):
        super().__init__()
        self.folder = folder
        self.scale = nn.Parameter(torch.ones(()))
        self.as_pair = as_pair

    def training_step(self, batch, index):
        return (self.scale - 1).square()

    def validation_step(self, batch, index):
        logits = self.scale * batch[0]
        return {"logits": logits, "labels": batch[1]} if not self.as_pair else {"other": logits}

    def on_train_end(self):
        if self.folder is not None:
            found = self.trainer.callbacks[0].fitted.calibrator.temperature
            (self.folder / f"{self.global_rank}.txt").write_text(repr(found))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES, LABELS), batch_size=4)


def trained(callback, folder, module=None, data=None, **options):
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=options.pop("devices", 1), logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[callback], **options,
    )  # fmt: skip
    trainer.fit(module or Module(), data or loader(), data or loader())
    return trainer


def test_it_fits_logs_and_travels_with_the_checkpoint(tmp_path):
    callback = CalibrationCallback("ts", ignore_index=255)
    trainer = trained(callback, tmp_path)
    expected = segcal.fit("ts", IMAGES, LABELS, ignore=255)
    assert callback.fitted.calibrator.temperature == pytest.approx(expected.calibrator.temperature, rel=1e-6)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged["calibration/nll_before"] == pytest.approx(segcal.metrics.nll(IMAGES, LABELS, ignore=255), rel=1e-5)
    assert logged["calibration/nll_after"] < 0.9 * logged["calibration/nll_before"]
    assert logged["calibration/ece_after"] < logged["calibration/ece_before"]
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    automatic = trainer.checkpoint_callback.best_model_path
    for fitted in (load_from_checkpoint(tmp_path / "a.ckpt"), load_from_checkpoint(automatic)):
        assert fitted.calibrator.temperature == callback.fitted.calibrator.temperature
        assert torch.equal(fitted.calibrator(IMAGES).argmax(1), IMAGES.argmax(1))
    again = CalibrationCallback("ts", ignore_index=255)
    module = Module()
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[again], default_root_dir=tmp_path, limit_val_batches=0,
    ).fit(module, loader(), ckpt_path=tmp_path / "a.ckpt", weights_only=True)  # fmt: skip
    assert again.fitted.calibrator.temperature == callback.fitted.calibrator.temperature


def test_a_bounded_sample_is_kept(tmp_path):
    callback = CalibrationCallback("ts", ignore_index=255, voxels=30)
    trained(callback, tmp_path)
    assert callback.fitted.certificate.voxels_available <= 300
    assert len(callback.fitted.calibration_ids) == 10


def test_what_is_wrong_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="calibrator is lts, but samples of voxels are kept and it sees neighbours"):
        CalibrationCallback("lts")
    with pytest.raises(InputError, match=r"validation_step returns dict, but logits and labels are needed. Return a"):
        trained(CalibrationCallback(), tmp_path, Module(as_pair=True))
    read = CalibrationCallback(ignore_index=255, read=lambda outputs, batch: (outputs["other"], batch[1]))
    trained(read, tmp_path, Module(as_pair=True))
    assert read.fitted is not None
    torch.save({"callbacks": {}}, tmp_path / "plain.ckpt")
    with pytest.raises(InputError, match="holds no calibrator of segcal, but one is needed"):
        load_from_checkpoint(tmp_path / "plain.ckpt")


def test_two_ranks_fit_the_same(tmp_path):
    callback = CalibrationCallback("ts", ignore_index=255)
    trained(callback, tmp_path, Module(folder=tmp_path), strategy="ddp_fork", devices=2, enable_checkpointing=False)
    first, second = (float((tmp_path / f"{rank}.txt").read_text()) for rank in range(2))
    assert first == second
    assert first == pytest.approx(segcal.fit("ts", IMAGES, LABELS, ignore=255).calibrator.temperature, rel=1e-6)


def test_it_fits_to_the_share_of_raters(tmp_path):
    maps = (IMAGES[:, None] / 3 + torch.from_numpy(RNG.gumbel(size=(10, 4, 3, 9, 8)))).argmax(2)
    shares = torch.stack([(maps == c).float().mean(1) for c in range(3)], 1)
    callback = CalibrationCallback("ts", raters="shares", num_raters=4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES, shares), batch_size=4)
    trainer = trained(callback, tmp_path, data=data)
    expected = segcal.fit("ts", segcal.ArrayCases(IMAGES, maps, raters="axis"))
    assert callback.fitted.calibrator.temperature == pytest.approx(expected.calibrator.temperature, rel=1e-6)
    assert str(callback.fitted.raters) == "shares in 4 votes"
    assert "calibration/rater_entropy_after" in trainer.callback_metrics
