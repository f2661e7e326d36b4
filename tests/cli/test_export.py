import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: make setup-frameworks")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: make setup-frameworks")


def test_a_calibrator_becomes_a_graph(calibrator, run, tmp_path):
    path = tmp_path / "calibrator.onnx"
    done = run("export", calibrator, path)
    assert done.code == 0, done.err
    assert "0 of 288 voxels have another winner than in the library" in done.out
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"logits": logits})
    assert np.array_equal(found.argmax(1), logits.argmax(1))
    assert run("export", calibrator, path).err == (
        f"error: {path} exists, but it would be lost. Choose another name, or pass --overwrite.\n"
    )
    again = run("export", calibrator, path, "--overwrite", "--axes", 3, "--json")
    assert again.code == 0
    assert (again.document["flips"], again.document["inputs"]) == (0, ["logits"])
