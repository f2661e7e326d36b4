"""Parts that differ: declared sites whole, clusters by what is predicted, groups never cut."""

import numpy as np
import pytest
import torch

from segcal import ArrayCases
from segcal.errors import InputError
from segcal.fitting.config import FitConfig
from segcal.fitting.division import composition, find_sites
from segcal.fitting.request import read_data


def make(shares, groups=None, sites=None, seed=0, voxels=400):
    """Cases of two classes in which a share of the voxels is predicted to be the second."""
    rng = np.random.default_rng(seed)
    logits = []
    for share in shares:
        second = rng.random(voxels) < share
        logits.append(np.stack([np.where(second, 0.0, 6.0), np.where(second, 6.0, 0.0)]).astype("float32"))
    labels = [z.argmax(0) for z in logits]
    cases = ArrayCases(logits, labels, ids=[f"c{k:02d}" for k in range(len(shares))], groups=groups, sites=sites)
    return read_data(cases, None, FitConfig(voxels=200))


def test_clusters_are_thirds_along_what_is_predicted():
    shares = [0.9, 0.1, 0.5, 0.12, 0.52, 0.88, 0.11, 0.48, 0.91]
    found = find_sites(make(shares))
    assert not found.declared
    parts = [{round(shares[int(i[1:])], 1) for i in part} for part in found.parts.values()]
    assert sorted(map(sorted, parts)) == [[0.1], [0.5], [0.9]]


def test_a_composition_is_the_weighted_mean_of_the_softmax():
    data = make([0.3])
    (voxels,) = data.source
    by_hand = np.average(torch.softmax(voxels.logits.double(), 0).numpy(), axis=1, weights=voxels.weight.numpy())
    np.testing.assert_allclose(composition("", iter(data.source)), by_hand, rtol=1e-12)


@pytest.mark.parametrize(("count", "parts"), [(5, None), (6, 2), (8, 2), (9, 3), (30, 3)])
def test_a_part_has_at_least_three_groups(count, parts):
    found = find_sites(make(np.linspace(0.1, 0.9, count)))
    assert (found if parts is None else len(found.parts)) == parts


def test_groups_stay_whole_in_clusters_and_folds():
    groups = [f"g{k // 2}" for k in range(18)]
    data = make(np.linspace(0.1, 0.9, 18)[::-1], groups=groups)
    found = find_sites(data)
    for part in found.parts.values():
        assert len({groups[int(i[1:])] for i in part}) * 2 == len(part)
    assert sum(found.groups(data.cases).values()) == 9
    folds = found.folds(data, 0)
    assert len(folds) == 3
    for fold in folds:
        held, learned = ({groups[int(i[1:])] for i in source.ids} for source in (fold.held, fold.learn))
        assert not held & learned


def test_declared_sites_come_first_and_of_many_five_are_made():
    found = find_sites(make([0.5] * 6, sites=list("aabbcc")))
    assert found.declared
    assert found.parts == {"a": ("c00", "c01"), "b": ("c02", "c03"), "c": ("c04", "c05")}
    many = find_sites(make([0.5] * 9, sites=list("aabcdefgh")))
    assert len(many.parts) == 5
    assert sorted(i for part in many.parts.values() for i in part) == [f"c{k:02d}" for k in range(9)]
    assert sorted(map(len, many.parts.values())) == [1, 2, 2, 2, 2]


def test_one_declared_site_is_none():
    assert not find_sites(make(np.linspace(0.1, 0.9, 9), sites=["a"] * 9)).declared


def test_a_group_in_two_sites_is_refused():
    with pytest.raises(
        InputError, match=r"group 'p' has cases of the sites 'a' and 'b', but a group lies in one site\."
    ):
        make([0.5] * 2, groups=["p", "p"], sites=["a", "b"])


def test_a_subset_and_a_region_keep_their_sites():
    data = make([0.5] * 4, sites=list("aabb"))
    assert find_sites(data).parts.keys() == {"a", "b"}
    assert data.cases.subset(["c00", "c02"]).sites["c02"] == "b"
