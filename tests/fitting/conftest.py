import numpy as np
import pytest

from segcal import ArrayCases


def draw_data(classes, count, seed=0, scale=3.0, dtype="float64"):
    """Logits (classes, count) and labels that follow another affine map of them, so that every calibrator has work."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(classes, count))
    truth = 0.4 * np.eye(classes) + 0.08 * rng.normal(size=(classes, classes))
    labels = (truth @ logits + 0.3 * rng.normal(size=(classes, 1)) + rng.gumbel(size=logits.shape)).argmax(0)
    return logits.astype(dtype), labels


@pytest.fixture
def make_data():
    return draw_data


@pytest.fixture
def make_cases():
    """Cases of such data, cut into `parts` cases of different shapes."""

    def make(classes, count, seed=0, parts=1, **options):
        logits, labels = draw_data(classes, count, seed, **options)
        cuts = np.array_split(np.arange(count), parts)
        return ArrayCases(logits=[logits[:, cut] for cut in cuts], labels=[labels[cut] for cut in cuts])

    return make
