import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import segcal
from segcal.errors import InputError
from segcal.integrations.calibrated import calibrated_probs, check_classes, folder_of, need, to_calibrator


def test_a_calibrator_comes_from_wherever_it_is(tmp_path):
    fitted = segcal.fit("ts", torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8)))
    segcal.save(fitted, tmp_path / "cal")
    assert to_calibrator(fitted) is fitted.calibrator
    assert to_calibrator(fitted.calibrator) is fitted.calibrator
    assert to_calibrator(tmp_path / "cal").temperature == fitted.calibrator.temperature
    with pytest.raises(InputError, match=r"calibrator is int, but a folder of segcal.save, .* Pass one of these"):
        to_calibrator(3)


@pytest.mark.parametrize("name", ["ts", "cms_ap", "ets", "vs"])
def test_probabilities_are_those_that_apply_writes(name, randomise, tmp_path):
    calibrator = randomise(segcal.make_calibrator(name, 3))
    fitted = segcal.fit("ts", torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8)))
    fitted = type(fitted)(calibrator, fitted.certificate, fitted.config)
    logits = (4 * np.random.default_rng(0).normal(size=(3, 7, 6, 5))).astype(np.float32)
    logits[1, :, :3] = logits[0, :, :3]  # ties
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", logits)
    cases = segcal.open_cases(tmp_path / "in", kind="logits")
    segcal.apply(fitted, cases, tmp_path / "out", output_kind="probs")
    probs = calibrated_probs(calibrator, logits)
    assert np.array_equal(probs.numpy(), np.load(tmp_path / "out" / "a.npy"))
    if calibrator.preserves:
        assert np.array_equal(probs.argmax(0).numpy(), logits.argmax(0))


def test_what_is_wrong_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"the network has 4 classes, but the calibrator was fitted for 3. Use the"):
        check_classes(segcal.make_calibrator("ts", 3), 4, "the network")
    with pytest.raises(InputError, match=r"no_such is not installed, .* pip install 'segcal\[some\]'"):
        need("no_such", "some")
    with pytest.raises(InputError, match="is in a folder that does not exist"):
        folder_of(tmp_path / "none" / "x.onnx")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["ts", "ets", "cms_ap", "cms_op", "isotonic"]), st.integers(0, 3), st.data())
def test_the_winner_of_float32_probabilities_is_that_of_the_logits(randomise, name, seed, data):
    """Whatever the logits are: equal, one unit in the last place apart, or so large that all but one become zero."""
    shape = (4, 9)
    start = data.draw(arrays(np.float32, shape, elements=st.floats(-60, 60, width=32)))
    steps = data.draw(arrays(np.int8, shape, elements=st.integers(0, 3)))
    near = np.nextafter(start[:1], np.float32(np.inf))
    logits = np.choose(steps, [start, np.broadcast_to(start[:1], shape), np.broadcast_to(near, shape), 10 * start])
    calibrator = randomise(segcal.make_calibrator(name, 4), seed=seed)
    probs = calibrated_probs(calibrator, logits.astype(np.float32))
    assert np.array_equal(probs.argmax(0).numpy(), logits.argmax(0))
    np.testing.assert_allclose(probs.sum(0).numpy(), 1, atol=1e-5)
