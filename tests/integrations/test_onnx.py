"""Graphs with a network in front; calibrators alone, all of them, are in tests/contracts/test_onnx.py."""

import math
import warnings
import zipfile

import pytest
import torch
from torch import nn

import segcal
from segcal.calibrators.per_region import PerRegion
from segcal.errors import InputError
from segcal.fitting.reference import calibrator_digest
from segcal.regions import Regions

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: make setup-frameworks")
onnx = pytest.importorskip("onnx", reason="onnx is not installed: make setup-frameworks")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: make setup-frameworks")

IMAGE = torch.randn(2, 2, 12, 11, generator=torch.Generator().manual_seed(0))


def write_network(path, weight, opset=13, outputs=("scores",)):
    """An ONNX file of a 1x1 convolution by hand, in an operator set that torch no longer writes."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    sizes = ["batch", None, "height", "width"]
    layer = helper.make_tensor("w", kind, list(weight.shape), weight.flatten().tolist())
    graph = helper.make_graph(
        [helper.make_node("Conv", ["picture", "w"], [name]) for name in outputs],
        "network",
        [helper.make_tensor_value_info("picture", kind, [sizes[0], 2, *sizes[2:]])],
        [helper.make_tensor_value_info(name, kind, [sizes[0], len(weight), *sizes[2:]]) for name in outputs],
        [layer],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    onnx.helper.set_model_props(made, {"trained": "yes"})
    onnx.save(made, path)


def test_a_network_and_its_calibrator_are_one_graph(randomise, tmp_path):
    torch.manual_seed(0)
    network = nn.Conv2d(2, 4, 3, padding=1, stride=2)
    calibrator = randomise(segcal.make_calibrator("cms_op", 4))
    done = segcal.export(calibrator, tmp_path / "a.onnx", model=network, example=IMAGE, upsample=True)
    assert done.flips == 0
    other = torch.randn(3, 2, 20, 18)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["log_probs"], {"image": other.numpy()})
    logits = nn.functional.interpolate(network(other).detach(), size=(20, 18), mode="bilinear", align_corners=False)
    torch.testing.assert_close(torch.from_numpy(found), calibrator(logits).detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.from_numpy(found).argmax(1), logits.argmax(1))


def test_a_program_of_torch_export(randomise, tmp_path):
    calibrator, network = randomise(segcal.make_calibrator("ets", 4)), nn.Conv2d(2, 4, 1)
    assert segcal.export(calibrator, tmp_path / "a.pt2", model=network, example=IMAGE).flips == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.export.load(tmp_path / "a.pt2").module()
    other = torch.randn(1, 2, 7, 5)
    torch.testing.assert_close(loaded(other), calibrator(network(other)))


def test_a_program_holds_no_image_and_no_path(randomise, tmp_path):
    calibrator, network = randomise(segcal.make_calibrator("ts", 4)), nn.Conv2d(2, 4, 1)
    for batch in (IMAGE, IMAGE[:1]):  # of which the second is written twice
        segcal.export(calibrator, tmp_path / "a.pt2", model=network, example=batch, overwrite=True)
        with zipfile.ZipFile(tmp_path / "a.pt2") as opened:
            content = b"".join(opened.read(name) for name in opened.namelist())
        assert network.weight.detach().numpy().tobytes() in content
        assert IMAGE[0, 0, 0].numpy().tobytes() not in content
        assert b"site-packages" not in content
        assert b"attach.py" not in content


def identity(calibrator):
    return {
        "segcal.version": segcal.__version__,
        "segcal.calibrator": calibrator.name,
        "segcal.calibrator_digest": calibrator_digest(calibrator)[:16],
        "segcal.expects": "logits",
        "segcal.preserves": calibrator.preserves or "none",
    }


def test_a_graph_says_which_calibrator_it_holds_and_no_path(randomise, tmp_path):
    calibrator, network = randomise(segcal.make_calibrator("ts", 4)), nn.Conv2d(2, 4, 1)
    for given in ({}, {"axes": 3}, {"model": network, "example": IMAGE}):
        contents = []
        for name in ("a.onnx", "b.onnx"):
            segcal.export(calibrator, tmp_path / name, overwrite=True, **given)
            contents.append((tmp_path / name).read_bytes())
        assert contents[0] == contents[1]
        assert b"site-packages" not in contents[0]
        assert b".py" not in contents[0]
        session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
        assert session.get_modelmeta().custom_metadata_map == identity(calibrator)
        assert session.get_modelmeta().producer_name == "segcal"
        space = ["depth", "height", "width"][-given.get("axes", 2) :]
        for one in (*session.get_inputs(), *session.get_outputs()):
            assert one.shape == ["batch", 2 if one.name == "image" else 4, *space]


class Halved(type(segcal.make_calibrator("ts", 2))):
    """A class that takes what it does not keep, so that no file can hold it."""

    def __init__(self, num_classes, note=None):
        super().__init__(num_classes)


def test_a_class_that_cannot_be_saved_is_exported_without_a_digest(tmp_path):
    segcal.export(Halved(3), tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    assert "segcal.calibrator_digest" not in session.get_modelmeta().custom_metadata_map
    assert session.get_modelmeta().custom_metadata_map["segcal.expects"] == "logits"


def test_a_network_in_onnx_keeps_its_names(randomise, tmp_path):
    weight = torch.randn(4, 2, 1, 1, generator=torch.Generator().manual_seed(3))
    write_network(tmp_path / "network.onnx", weight)
    calibrator = randomise(segcal.make_calibrator("cms_ap", 4))
    done = segcal.export(calibrator, tmp_path / "joined.onnx", model=tmp_path / "network.onnx")
    assert str(done).startswith(f"{done.path}: 0 of {done.voxels:,} voxels have another winner than the library's, log")
    assert (done.inputs, done.flips) == (("picture",), 0)
    session = onnxruntime.InferenceSession(tmp_path / "joined.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["scores", "log_probs"]
    assert session.get_modelmeta().custom_metadata_map == {"trained": "yes", **identity(calibrator)}
    assert session.get_outputs()[1].shape == ["batch", 4, "height", "width"]
    assert b".py" not in (tmp_path / "joined.onnx").read_bytes()
    scores, log_probs = (torch.from_numpy(x) for x in session.run(None, {"picture": IMAGE.numpy()}))
    torch.testing.assert_close(scores, nn.functional.conv2d(IMAGE, weight), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_probs, calibrator(scores).detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(log_probs.argmax(1), scores.argmax(1))


def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(tmp_path):
    calibrator, there = segcal.make_calibrator("ts", 4), tmp_path / "there.onnx"
    there.write_text("mine")
    write_network(tmp_path / "five.onnx", torch.zeros(5, 2, 1, 1))
    write_network(tmp_path / "two.onnx", torch.zeros(4, 2, 1, 1), outputs=("a", "b"))
    before = sorted(tmp_path.iterdir())
    for given, text in [
        ({"path": tmp_path / "a.pb"}, r"has the ending '.pb', but .onnx or .pt2 is written. Choose one of them."),
        ({"path": there}, r"exists, but it would be lost. Choose another name, or pass overwrite=True"),
        ({"path": tmp_path / "no" / "a.onnx"}, "is in a folder that does not exist"),
        ({"path": tmp_path / "a.onnx", "model": nn.Conv2d(2, 4, 1)}, "example is missing, .* Pass an input"),
        (
            {"path": tmp_path / "a.onnx", "model": nn.Conv2d(2, 4, 1, stride=2), "example": IMAGE},
            r"logits have space \(6, 6\), but its input has \(12, 11\): .* Pass upsample=True",
        ),
        ({"path": tmp_path / "a.onnx", "model": tmp_path / "net.pt"}, r"but an .onnx file or a torch module is needed"),
        (
            {"path": tmp_path / "a.onnx", "model": tmp_path / "five.onnx"},
            "output 'scores' of .*five.onnx has 5 classes, but the calibrator was fitted for 4. Use the calibrator",
        ),
        (
            {"path": tmp_path / "a.onnx", "model": tmp_path / "two.onnx"},
            "has the outputs a, b, .* Name it with output=",
        ),
    ]:
        with pytest.raises(InputError, match=text):
            segcal.export(calibrator, **given)
        assert sorted(tmp_path.iterdir()) == before
    assert there.read_text() == "mine"
    with pytest.raises(InputError, match="lts sees neighbours and needs 2"):
        segcal.export(segcal.make_calibrator("lts", 4), tmp_path / "a.onnx", axes=1)


def test_a_graph_that_flips_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("segcal.integrations.onnx.first_tensor", lambda output: output.roll(1, 1))
    with pytest.raises(InputError, match=r"names another class than the library at \d+ of 288 voxels.*nothing was wri"):
        segcal.export(segcal.make_calibrator("ts", 4), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_regions_behind_a_network_keep_their_masks(randomise, tmp_path):
    weight = torch.randn(2, 2, 1, 1, generator=torch.Generator().manual_seed(3))
    write_network(tmp_path / "network.onnx", weight)
    regions = Regions.declared({"whole": [1, 2], "core": [2]})
    calibrator = PerRegion(regions, [randomise(segcal.make_calibrator("cms_op", 2), seed=n) for n in (0, 1)]).eval()
    assert segcal.export(calibrator, tmp_path / "joined.onnx", model=tmp_path / "network.onnx").flips == 0
    session = onnxruntime.InferenceSession(tmp_path / "joined.onnx", providers=["CPUExecutionProvider"])
    scores, log_probs = (torch.from_numpy(x) for x in session.run(None, {"picture": IMAGE.numpy()}))
    assert torch.equal(log_probs > -math.log(2), scores > 0)


def test_a_graph_of_regions_that_changes_a_mask_or_nesting_is_not_written(tmp_path, monkeypatch):
    regions = Regions.declared({"whole": [1, 2], "core": [2]})
    calibrator = PerRegion(regions, [segcal.make_calibrator("ts", 2)] * 2)
    for wrong in (
        lambda found: (0.5 * found.exp()).log(),  # masks go
        lambda found: torch.stack([found[:, 0], found.amax(1)], 1).where(found[:, 1:] < -1, found),  # and nesting
    ):
        calls = iter(range(9))
        changed = lambda output, calls=calls, wrong=wrong: wrong(output) if next(calls) else output  # noqa: E731
        monkeypatch.setattr("segcal.integrations.onnx.first_tensor", changed)
        with pytest.raises(
            InputError, match=r"has another mask, or regions less nested, than the library at \d+ of 288"
        ):
            segcal.export(calibrator, tmp_path / "a.pt2")
        assert list(tmp_path.iterdir()) == []
