"""With MONAI itself: its Compose, inferers, engines and bundle parser."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import segcal
from segcal.errors import InputError, SuspicionWarning

pytest.importorskip("monai", reason="MONAI is not installed: make setup-frameworks")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

from monai.data import MetaTensor  # noqa: E402
from monai.inferers import SimpleInferer, SlidingWindowInferer  # noqa: E402
from monai.transforms import AsDiscreted, Compose  # noqa: E402

from segcal.integrations import monai as ours  # noqa: E402

LOGITS = 4 * torch.randn(4, 3, 9, 8, 7, generator=torch.Generator().manual_seed(0))
NOISE = -torch.rand(LOGITS.shape, generator=torch.Generator().manual_seed(1)).log().neg().log()
LABELS = (LOGITS / 3 + NOISE).argmax(1)


@pytest.fixture
def fitted():
    return segcal.fit("ts", LOGITS, LABELS)


def test_the_transform_stands_where_the_softmax_stood(fitted, tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", LOGITS[0].numpy())
    cases = segcal.open_cases(tmp_path / "in", kind="logits")
    segcal.apply(fitted, cases, tmp_path / "out", output_kind="probs")
    segcal.save(fitted, tmp_path / "cal")
    affine = torch.diag(torch.tensor([2.0, 3, 4, 1]))
    item = {"pred": MetaTensor(LOGITS[0], affine=affine), "other": 1}
    post = Compose([ours.CalibrateLogitsd("pred", str(tmp_path / "cal"))])(item)
    assert isinstance(post["pred"], MetaTensor)
    assert torch.equal(post["pred"].affine, affine.to(post["pred"].affine))
    assert post["other"] == 1
    assert np.array_equal(post["pred"].numpy(), np.load(tmp_path / "out" / "a.npy"))  # bit for bit
    mask = AsDiscreted("pred", argmax=True)(post)["pred"]
    assert torch.equal(mask[0].long().as_tensor(), LOGITS[0].argmax(0))
    assert ours.CalibrateLogits(fitted)(LOGITS[0].half().numpy()).shape == (3, 9, 8, 7)


def test_windows_are_merged_first(fitted):
    network = nn.Conv3d(2, 3, 3, padding=1)
    image = 20 * torch.randn(2, 2, 12, 11, 10)
    windows = SlidingWindowInferer((8, 8, 8), 2, overlap=0.5, mode="gaussian")
    with torch.no_grad():
        merged = windows(image, network)
        found = ours.CalibratedInferer(windows, fitted)(image, network)
        torch.testing.assert_close(found, torch.log_softmax(merged / fitted.calibrator.temperature, 1))
        assert torch.equal(found.argmax(1), merged.argmax(1))
        inside = windows(image, lambda part: fitted.calibrator(network(part)))  # what must not be done
    assert (inside.exp().sum(1) - 1).abs().max() > 1e-3
    attached = segcal.attach(network, fitted)
    with pytest.raises(InputError, match=r"windows are averaged afterwards"):
        windows(image, attached)
    with pytest.raises(
        InputError, match=r"network is calibrated already, but the inferer does that. Pass its attribute"
    ):
        ours.CalibratedInferer(windows, fitted)(image, attached)
    with pytest.raises(InputError, match="the inferer returns dict, but one tensor of logits is needed"):
        ours.CalibratedInferer(SimpleInferer(), fitted)(image, lambda part: {"out": part})


@pytest.mark.parametrize(("name", "options"), [("ece", {}), ("ace", {}), ("nll", {}), ("ece", {"average": "voxels"})])
def test_the_metric_is_that_of_segcal_however_labels_come(name, options):
    metric = ours.CalibrationTableMetric(name, 3, kind="probs", ignore_index=None, **options)
    probs = LOGITS.softmax(1)
    expected = getattr(segcal.metrics, name)(probs, LABELS, kind="probs", **options)
    metric(y_pred=list(probs[:2]), y=list(LABELS[:2, None]))
    metric(y_pred=probs[2:], y=nn.functional.one_hot(LABELS[2:], 3).movedim(-1, 1))
    assert float(metric.aggregate()) == pytest.approx(expected, rel=1e-12)
    if not options and name != "ace":
        each = [getattr(segcal.metrics, name)(probs[i : i + 1], LABELS[i : i + 1], kind="probs") for i in range(4)]
        np.testing.assert_allclose(metric.per_case().numpy(), each, rtol=1e-12)
    assert sum(metric.curve()["count"]) == LABELS.numel()
    metric.reset()
    assert np.isnan(float(metric.aggregate()))


def test_a_handler_counts_in_an_engine():
    pytest.importorskip("ignite", reason="ignite is not installed: make setup-frameworks")
    from ignite.engine import Engine
    from monai.handlers import from_engine

    engine = Engine(lambda engine, index: [{"pred": LOGITS[index], "label": LABELS[index][None]}])
    metric = ours.CalibrationTableMetric("nll", 3, kind="logits")
    ours.CalibrationTable(metric, from_engine(["pred", "label"])).attach(engine, "nll")
    engine.run(range(4))
    assert engine.state.metrics["nll"] == pytest.approx(segcal.metrics.nll(LOGITS, LABELS))


def test_a_bundle_is_calibrated_by_an_overlay(fitted, tmp_path):
    from monai.bundle import ConfigParser

    (tmp_path / "configs").mkdir()
    steps = [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
    ]
    plain = {"bundle_root": str(tmp_path), "postprocessing": {"_target_": "Compose", "transforms": steps}}
    (tmp_path / "configs" / "inference.json").write_text(json.dumps(plain))
    overlay = ours.write_overlay(tmp_path, fitted)
    parser = ConfigParser()
    parser.read_config([str(tmp_path / "configs" / "inference.json"), str(overlay)])
    post = parser.get_parsed_content("postprocessing")
    assert [type(step).__name__ for step in post.transforms] == ["CalibrateLogitsd", "AsDiscreted"]
    assert torch.equal(post({"pred": LOGITS[0]})["pred"][0].long(), LOGITS[0].argmax(0))
    with pytest.raises(InputError, match=r"calibration.json exists, but it would be lost. Move it away."):
        ours.write_overlay(tmp_path, fitted)
    with pytest.raises(InputError, match=r"inference.json is missing, but its postprocessing is followed"):
        ours.write_overlay(tmp_path / "configs", fitted)
    overlay.unlink()
    (tmp_path / "configs" / "inference.json").write_text("{}")
    with pytest.raises(InputError, match="has no postprocessing with transforms"):
        ours.write_overlay(tmp_path, fitted)


def test_what_does_not_fit_is_one_sentence(fitted):
    with pytest.raises(InputError, match="the image has 4 classes, but the calibrator was fitted for 3"):
        ours.CalibrateLogits(fitted)(torch.zeros(4, 5, 6))
    with pytest.raises(InputError, match=r"y has shape \(4, 2, 9, 8, 7\), but class indices \(batch, 1"):
        ours.CalibrationTableMetric("ece", 3, kind="logits")(LOGITS, torch.zeros(4, 2, 9, 8, 7))
    with pytest.raises(InputError, match="y is missing, but predictions are compared with labels"):
        ours.CalibrationTableMetric("ece", 3, kind="logits")(LOGITS)
    with pytest.warns(SuspicionWarning, match="kind"):
        ours.CalibrateLogits(fitted)(LOGITS[0].softmax(0))


@pytest.mark.parametrize("form", ["axis", "shares", "bits"])
def test_a_meter_takes_the_labels_of_several_raters(form):
    logits = LOGITS[:, :2]
    maps = torch.randint(0, 2, (4, 5, 9, 8, 7), generator=torch.Generator().manual_seed(3))
    labels = {
        "axis": maps,
        "shares": torch.stack([(maps == c).float().mean(1) for c in range(2)], 1),
        "bits": (maps << torch.arange(5)[:, None, None, None]).sum(1, keepdim=True),
    }[form]
    metric = ours.CalibrationTableMetric("ece", 2, "logits", raters=form, num_raters=5)
    metric(y_pred=logits[:1], y=labels[:1])
    metric(y_pred=logits[1:], y=labels[1:])
    wanted = segcal.evaluate(segcal.ArrayCases(logits, maps, raters="axis"), metrics=["ece"]).before["ece"].value
    assert float(metric.aggregate()) == pytest.approx(wanted, rel=1e-6)
