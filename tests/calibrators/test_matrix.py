import numpy as np
import pytest
import torch

from segcal import make_calibrator

W = [[1, 0.1, -0.2], [0, 2, 0.3], [0.5, 0, 1]]
B = [0.1, -0.2, 0.3]


def filled(name, weight, bias):
    calibrator = make_calibrator(name, len(bias))
    with torch.no_grad():
        calibrator.weight.copy_(torch.as_tensor(weight, dtype=torch.float64))
        calibrator.bias.copy_(torch.as_tensor(bias, dtype=torch.float64))
    return calibrator


def log_softmax(s):
    return s - np.log(np.exp(s - s.max()).sum()) - s.max()


@pytest.mark.parametrize("name", ["ms", "dc"])
def test_one_matrix_maps_logits_or_log_probabilities(name, voxels):
    logits = voxels(3, 40)  # W is not symmetric: W z and z W differ
    with torch.no_grad():
        found = filled(name, W, B)(logits.reshape(2, 4, 5, 3).movedim(-1, 1)).movedim(1, -1).reshape(-1, 3).numpy()
    for z, q in zip(logits.numpy(), found, strict=True):
        x = z if name == "ms" else log_softmax(z)
        np.testing.assert_allclose(q, log_softmax(np.array(W) @ x + np.array(B)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["ms", "dc"])
def test_the_penalty_is_eq_15_with_a_free_diagonal(name):
    with torch.no_grad():
        assert float(filled(name, W, B).penalty(0.01, 0.1)) == pytest.approx(0.005316667, abs=1e-9)
        assert float(filled(name, np.diag([3.0, 1, 2]), [0.0] * 3).penalty(1.0, 1.0)) == 0


def test_log_probabilities_far_below_underflow_stay_finite():
    with torch.no_grad():
        out = filled("dc", W, B)(torch.tensor([[0.0, -1e4, -2e4]]))
    assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize(("name", "peer"), [("ms", "MS"), ("dc", "DC")])
def test_map_and_penalty_are_those_of_the_authors_library(name, peer, fiducio, voxels):
    rng = np.random.default_rng(2)
    weight, bias = torch.as_tensor(rng.normal(size=(5, 5))), torch.as_tensor(rng.normal(size=5))
    logits = voxels(5)
    theirs = getattr(fiducio, peer)(lambda_reg=0.3, mu_reg=0.07)
    theirs._init_params(5)
    theirs._weight, theirs._bias = weight, bias
    ours = filled(name, weight, bias)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits if name == "ms" else logits.log_softmax(1)), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-12)
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(theirs._regularization()), rel=1e-12)


def test_the_diagonal_has_a_floor_and_everything_has_a_ceiling():
    low, high = make_calibrator("ms", 3).weight_bounds()
    assert low.tolist() == [[1e-3, -1e3, -1e3], [-1e3, 1e-3, -1e3], [-1e3, -1e3, 1e-3]]
    assert high.unique().tolist() == [1e3]


def filled_ms_c(weight, bias, row_sum):
    calibrator = make_calibrator("ms_c", len(bias))
    with torch.no_grad():
        calibrator.weight.copy_(torch.as_tensor(weight))
        calibrator.bias.copy_(torch.as_tensor(bias))
        calibrator.gauge.fill_(row_sum)
    return calibrator


def full(weight, row_sum):
    return np.concatenate([weight, row_sum - weight.sum(1, keepdims=True)], axis=1)


@pytest.mark.parametrize("row_sum", [0.0, 1.1, -3.0])
def test_it_is_matrix_scaling_with_the_reconstructed_matrix(row_sum, voxels):
    rng = np.random.default_rng(0)
    weight, bias, logits = rng.normal(size=(4, 3)), rng.normal(size=4), voxels(4)
    plain = make_calibrator("ms", 4)
    with torch.no_grad():
        plain.weight.copy_(torch.as_tensor(full(weight, row_sum)))
        plain.bias.copy_(torch.as_tensor(bias))
        ours = filled_ms_c(weight, bias, row_sum)
        torch.testing.assert_close(ours(logits), plain(logits), rtol=1e-10, atol=1e-10)
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(plain.penalty(0.3, 0.07)), rel=1e-12)


def test_a_new_one_costs_nothing():
    with torch.no_grad():
        assert float(make_calibrator("ms_c", 5).penalty(1.0, 1.0)) == 0


def test_map_and_penalty_are_those_of_the_authors_library_ms_c(fiducio, voxels):
    rng = np.random.default_rng(3)
    weight, bias, logits = rng.normal(size=(5, 4)), rng.normal(size=5), voxels(5)
    theirs = fiducio.MSc(lambda_reg=0.3, mu_reg=0.07)
    theirs._init_params(5)
    theirs._weight, theirs._bias = torch.as_tensor(weight), torch.as_tensor(bias)
    theirs._row_sum = torch.tensor(0.8, dtype=torch.float64)
    ours = filled_ms_c(weight, bias, 0.8)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-10)
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(theirs._regularization()), rel=1e-12)


def random_experts(classes, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(classes, classes, classes)), rng.normal(size=(classes, classes))


def filled_cdc(weight, bias):
    calibrator = make_calibrator("cdc", bias.shape[1])
    with torch.no_grad():
        calibrator.weight.copy_(torch.as_tensor(weight))
        calibrator.bias.copy_(torch.as_tensor(bias))
    return calibrator


def test_the_predicted_class_selects_the_map(voxels):
    weight, bias = random_experts(4, 0)
    logits = voxels(4)
    with torch.no_grad():
        found = filled_cdc(weight, bias)(logits).numpy()
    for z, q in zip(logits.numpy(), found, strict=True):
        i = int(np.argmax(z))
        np.testing.assert_allclose(
            q,
            log_softmax(weight[i] @ log_softmax(z) + bias[i]),
            rtol=1e-9,
            atol=1e-10,
        )


def test_of_tied_classes_the_first_selects(voxels):
    weight, bias = random_experts(3, 1)
    with torch.no_grad():
        found = filled_cdc(weight, bias)(torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64))[0].numpy()
    x = log_softmax(np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(found, log_softmax(weight[1] @ x + bias[1]), rtol=1e-10)


def test_map_and_penalty_are_those_of_the_authors_library_cdc(fiducio, voxels):
    weight, bias = random_experts(5, 2)
    logits = voxels(5)
    theirs = fiducio.CDC()
    theirs._init_params(5)
    theirs._raw_b, theirs._raw_mu = torch.as_tensor(weight).mT.contiguous(), torch.as_tensor(bias)  # it multiplies rows
    ours = filled_cdc(weight, bias)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits.log_softmax(1)), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-10)
        penalties = [
            theirs._ms_regularization(*theirs._logit_affine(5, c, theirs._raw_b[c], theirs._raw_mu[c]), 0.3, 0.07)
            for c in range(5)
        ]
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(torch.stack(penalties).mean()), rel=1e-12)
