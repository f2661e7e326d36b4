import torch

from segcal import make_calibrator


def test_nothing_happens_to_the_logits():
    logits = torch.randn(4, 3, 7)
    calibrator = make_calibrator("identity", 3)
    assert torch.equal(calibrator.scores(logits), logits)
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(logits, 1), rtol=1e-6, atol=1e-6)
