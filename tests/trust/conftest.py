"""Made-up ensembles whose labels follow their mean probabilities, so that what is promised can be counted."""

import numpy as np
import pytest

import segcal
from segcal.fitting.reference import OF_CLASS
from segcal.trust.estimates import SumTable

SPACE = (9, 11)


@pytest.fixture(scope="session")
def make_cases():
    """Return cases of three classes: a blob in every case, of another size and height, with members that differ."""

    def make(count, seed=0, members=3, space=SPACE, groups=None, labelled=True, noise=0.4, shift=0.0, prefix="case"):
        rng = np.random.default_rng(seed)
        place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in space), indexing="ij"))
        logits, labels = [], []
        for _ in range(count):
            radius = np.sqrt((place**2).sum(0)) + 0.1 * rng.normal(size=space)
            inner, outer = rng.uniform(0.3, 0.6), rng.uniform(0.7, 1.0)
            height = rng.uniform(3, 9)
            mean = height * np.stack([radius - outer, 0.2 - np.abs(radius - (inner + outer) / 2), inner - radius])
            own = [mean + shift + noise * rng.normal(size=mean.shape) for _ in range(members)]
            logits.append([each.astype("float32") for each in own] if members > 1 else own[0].astype("float32"))
            labels.append((np.mean(own, 0) + rng.gumbel(size=mean.shape)).argmax(0))
        return segcal.ArrayCases(
            logits, labels if labelled else None, ids=[f"{prefix}{number:02d}" for number in range(count)],
            pooling="mean_logits" if members > 1 else "single" if members == 1 else None, groups=groups,
            kind="logits", class_names=["outside", "wall", "core"], spacing=[(10.0, 20.0)] * count,
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def fitted(make_cases):
    """A temperature that was fitted to some cases and learned trust on others."""
    plain = segcal.fit("ts", make_cases(8, seed=1, prefix="fit"))
    return segcal.learn_trust(plain, make_cases(30, seed=2, prefix="ref"))


@pytest.fixture(scope="session")
def make_table():
    """Return a table of columns ``(cases, classes)``; what is not given is 0, and not known of members and labels."""

    def make(ids=None, groups=None, size=1.0, **given):
        shape = np.shape(given["mask"])
        unknown = dict.fromkeys(("agreement", "truth", "found", "counted", "beside"), np.nan)
        columns = {name: np.full(shape, unknown.get(name, 0.0)) for name in OF_CLASS}
        columns |= {name: np.asarray(values, float) for name, values in given.items()}
        names = tuple(ids or (f"c{number:02d}" for number in range(shape[0])))
        alone = {"voxels": 99.0, "size": size, "entropy": 0.0, "disagreement": np.nan}
        alone = {name: np.full(shape[0], value) for name, value in alone.items()}
        return SumTable(ids=names, groups=tuple(groups or names), **alone, **columns)

    return make
