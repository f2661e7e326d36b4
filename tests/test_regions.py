"""Regions as a user declares them, and what follows from their labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.regions import Regions

TUMOUR = {"whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}


def test_outer_regions_come_first_and_each_writes_what_it_alone_shows():
    regions = Regions.declared(TUMOUR)
    assert regions.names == ("whole", "core", "enhancing")
    assert regions.labels == ((1, 2, 3), (2, 3), (3,))
    assert regions.order == (1, 2, 3)
    assert set(regions.nested) == {(1, 0), (2, 0), (2, 1)}
    assert Regions.declared(**regions.to_plain()) == regions
    assert len(regions) == 3


def test_regions_that_only_overlap_are_not_nested():
    regions = Regions.declared({"user": [8, 9, 10], "vehicle": [8, 10], "person": [9, 10], "ground": [3]})
    assert set(regions.nested) == {(1, 0), (2, 0)}
    assert regions.order == (8, 8, 9, 3)


@given(st.integers(0, 2**32 - 1))
def test_the_label_map_is_nnunets(seed):
    """nnU-Net: zeros, then for each region in turn, its label where it is above 0.5."""
    rng = np.random.default_rng(seed)
    regions = Regions.declared({"a": [1, 4], "b": [2, 4], "c": [4], "d": [5, 3]}, [1, 2, 4, 3])
    probs = rng.random((4, 3, 5)).round(1)
    expected = np.zeros((3, 5), int)
    for number, label in enumerate([1, 2, 4, 3]):
        expected[probs[number] > 0.5] = label
    assert np.array_equal(regions.label_map(torch.from_numpy(probs > 0.5)).numpy(), expected)


def test_truth_is_a_union_of_labels_and_ignores_what_is_ignored():
    labels = torch.tensor([[0, 1, 2], [3, -1, 9]])
    regions = Regions.declared(TUMOUR)
    assert regions.truth(labels, 1).tolist() == [[0, 0, 1], [1, -1, 0]]
    assert regions.truths(labels).shape == (3, 2, 3)
    assert regions.last_true(labels).tolist() == [[0, 1, 2], [3, -1, 0]]
    assert regions.last_true(None) is None


def test_violations_are_counted_in_every_pair():
    regions = Regions.declared(TUMOUR)
    values = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert regions.violations(values) == 3  # the second voxel, in all three pairs; equal is nested


@pytest.mark.parametrize(
    ("given_regions", "order", "sentence"),
    [
        ({}, None, "regions is {}, but names with labels are needed. Pass regions={'whole': [1, 2], 'core': [2]}, in "
                   "the order of the model's outputs."),
        ({"a": []}, None, "region 'a' is [], but a list of labels is needed. Write for example [1, 2]."),
        ({"a": "12"}, None, "region 'a' is '12', but a list of labels is needed. Write for example [1, 2]."),
        ({"a": [0, 1]}, None, "region 'a' has the label 0, but 0 is where no region is. Leave it out."),
        ({"a": [1, 255]}, None, "region 'a' has the label 255, but it does not count. Leave it out."),
        ({"a": [1, 7]}, None, "region 'a' has the label 7, but the labels are 0, 1, 2, 3. Correct the region."),
        ({"a": [1, 2], "b": [2, 1]}, None, "regions has 'a' and 'b' with the same labels, but each must have its own. "
                                           "Remove one."),
        (TUMOUR, [1, 2], "regions_class_order is [1, 2], but one label per region is needed, 3 in all. Give them in "
                         "the order of the regions."),
        (TUMOUR, [1, 1, 3], "regions_class_order has the label 1 for region 'core', but it has the labels 2, 3. Give "
                            "one label of each region, in the order of the regions."),
        ({"core": [2, 3], "whole": [1, 2, 3]}, [2, 1], "regions_class_order writes 'whole' after 'core', but it "
                                                       "contains it and would hide it. List outer regions first."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(given_regions, order, sentence):
    known = [0, 1, 2, 3] if given_regions == {"a": [1, 7]} else None
    with pytest.raises(InputError) as found:
        Regions.declared(given_regions, order, ignore=255, known=known)
    assert str(found.value) == sentence
