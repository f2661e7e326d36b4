"""The how-to pages: at most ten lines of code each, run from top to bottom with the real framework."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import segcal

ROOT = Path(__file__).parents[2]
MOST_LINES = 10
# The packages that a page needs, besides segcal.
NEEDS = {
    "onnx": ("onnxscript", "onnxruntime"),
    "transformers": ("transformers",),
    "monai": ("monai",),
    "nnunet": ("nnunetv2", "nibabel"),
    "viewers": ("nibabel",),
    "clinic": ("nibabel", "highdicom"),
    "lightning": ("pytorch_lightning", "torchmetrics", "matplotlib"),
}
# The other pages need no framework, and run with those of tests/test_docs.py.
PAGES = {stem: ROOT / "docs" / "howto" / f"{stem}.md" for stem in sorted(NEEDS)}

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


def code_of(page):
    return "".join(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE))


def fitted(classes=3):
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(6, classes, 9, 8)).astype("float32")
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(1)
    return segcal.fit("ts", logits, labels)


def known_onnx(folder):
    return {"network": nn.Conv2d(2, 3, 3, padding=1), "image": torch.randn(2, 2, 12, 11)}


def known_transformers(folder):
    import transformers

    config = transformers.SegformerConfig(
        num_labels=3, hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4, decoder_hidden_size=8
    )
    return {
        "model": transformers.SegformerForSemanticSegmentation(config).eval(),
        "processor": transformers.SegformerImageProcessorPil(size={"height": 64, "width": 64}),
        "image": Image.fromarray(np.zeros((40, 50, 3), np.uint8)),
    }


def known_monai(folder):
    batch = {"image": torch.randn(2, 2, 24, 20), "label": torch.randint(0, 3, (2, 1, 24, 20))}
    return {"network": nn.Conv2d(2, 3, 3, padding=1), "batch": batch}


def known_lightning(folder):
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Conv2d(2, 3, 1)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def validation_step(self, batch, index):
            return {"logits": self.network(batch[0]), "labels": batch[1]}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.randn(6, 2, 9, 8), torch.randint(0, 3, (6, 9, 8)))
    logits, labels = torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    return {"module": Module(), "validation": loader, "logits": logits, "labels": labels}


def known_nnunet(folder):
    path = ROOT / "tests" / "integrations" / "test_nnunet.py"
    spec = importlib.util.spec_from_file_location("made_model", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.write_images(folder / "images")
    made.write_model(folder / "model")
    return {}


def known_viewers(folder):
    import nibabel

    (folder / "predictions").mkdir()
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=(5, 4, 6, 3)).astype("float32"), np.eye(4))
    nibabel.save(image, folder / "predictions" / "a.nii.gz")
    return {}


def known_clinic(folder):
    """Predictions on series, a calibrator that has learned trust, and the codes that the page shows."""
    import nibabel

    path = ROOT / "tests" / "integrations" / "test_dicom.py"
    spec = importlib.util.spec_from_file_location("made_series", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    (shown,) = re.findall(r"^```json\n(.*?)^```$", PAGES["clinic"].read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    (folder / "segments.json").write_text(shown, "utf-8")
    (folder / "predictions").mkdir()
    affine = np.diag([-made.SPACING[2], -made.SPACING[1], made.SPACING[0], 1.0])
    affine[:3, 3] = made.ORIGIN * (-1, -1, 1)
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(16, 3, *made.SHAPE)).astype("float32")
    for case, values in zip("ab", logits, strict=False):
        made.write_series(folder / "dicom" / case)
        image = nibabel.Nifti1Image(np.ascontiguousarray(values.transpose(3, 2, 1, 0)), affine)
        nibabel.save(image, folder / "predictions" / f"{case}.nii.gz")
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(1)
    cases = segcal.ArrayCases(list(logits), list(labels), class_names=["none", "liver", "tumour"], kind="logits")
    segcal.save(segcal.learn_trust(segcal.fit("ts", cases), cases), "calibrator")
    return {}


KNOWN = {
    "clinic": known_clinic,
    "viewers": known_viewers,
    "nnunet": known_nnunet,
    "onnx": known_onnx, "transformers": known_transformers, "monai": known_monai, "lightning": known_lightning,
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_few_lines(page):
    lines = [
        line for line in code_of(PAGES[page]).splitlines() if line.strip() and not line.startswith("import segcal")
    ]
    assert 1 <= len(lines) <= MOST_LINES


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    for package in NEEDS[page]:
        pytest.importorskip(package, reason=f"{package} is not installed: make setup-frameworks")
    monkeypatch.chdir(tmp_path)
    segcal.save(fitted(), "calibrator")
    known = KNOWN[page](tmp_path)
    exec(compile(code_of(PAGES[page]), PAGES[page].name, "exec"), known)
