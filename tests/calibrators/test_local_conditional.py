import torch

from segcal import make_calibrator


def test_it_is_one_after_the_other(randomise):
    calibrator = randomise(make_calibrator("lts_cms", 4))
    first, second = make_calibrator("cms_ap", 4), make_calibrator("lts_ti", 4)
    first.load_state_dict(calibrator.first.state_dict())
    second.load_state_dict(calibrator.second.state_dict())
    logits = 3 * torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(calibrator(logits), second(first(logits)), rtol=0, atol=1e-10)


def test_parameters_are_those_of_both():
    calibrator = make_calibrator("lts_cms", 5)
    assert calibrator.num_parameters() == 130 + 882
    assert calibrator.num_identifiable() == 100 + 882


def test_a_negative_gap_weight_is_noticed():
    calibrator = make_calibrator("lts_cms", 3)
    assert calibrator.evidence()["decision"].violation == 0
    with torch.no_grad():
        calibrator.first.weight[1, 0, 1] = -0.5
    assert calibrator.evidence()["decision"].violation == 0.5
