"""Made-up cases whose labels follow their probabilities, of classes and of regions."""

import numpy as np
import pytest

import segcal

SPACE = (9, 11)


@pytest.fixture(scope="session")
def make_cases():
    """Return cases of three classes, or of two nested regions, with blobs of other sizes and heights."""

    def make(count, seed=0, space=SPACE, regions=False, prefix="case", labelled=True, groups=None):
        rng = np.random.default_rng(seed)
        place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in space), indexing="ij"))
        radius = np.sqrt((place**2).sum(0))
        logits, labels = [], []
        for _ in range(count):
            inner, outer = rng.uniform(0.3, 0.6), rng.uniform(0.7, 1.0)
            height = rng.uniform(3, 9)
            noisy = radius + 0.1 * rng.normal(size=space)
            mean = height * np.stack([noisy - outer, 0.2 - np.abs(noisy - (inner + outer) / 2), inner - noisy])
            drawn = (mean + rng.gumbel(size=mean.shape)).argmax(0)
            if regions:
                mean = np.stack([np.logaddexp(mean[1], mean[2]) - mean[0], mean[2] - np.logaddexp(mean[0], mean[1])])
            logits.append(mean.astype("float32"))
            labels.append(drawn)
        declared = {"regions": {"whole": [1, 2], "core": [2]}} if regions else {"class_names": ["out", "wall", "core"]}
        return segcal.ArrayCases(
            logits, labels if labelled else None, ids=[f"{prefix}{number:02d}" for number in range(count)],
            kind="logits", groups=groups, **declared,
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def fitted(make_cases):
    """A temperature that was fitted to some cases and learned trust on others."""
    plain = segcal.fit("ts", make_cases(8, seed=1, prefix="fit"))
    return segcal.learn_trust(plain, make_cases(40, seed=2, prefix="ref"))


@pytest.fixture(scope="session")
def fitted_regions(make_cases):
    """The same of regions."""
    plain = segcal.fit("ts", make_cases(8, seed=1, prefix="fit", regions=True))
    return segcal.learn_trust(plain, make_cases(40, seed=2, prefix="ref", regions=True))
