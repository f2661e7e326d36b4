import json
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.statistics import CaseTables, count_logits, find_bands


def make_case(seed=0, num_classes=3, space=(6, 11), dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_classes, *space, generator=generator, dtype=torch.float64).mul(3).to(dtype)
    return logits, torch.randint(-1, num_classes, space, generator=generator)


def leaves(value, path=""):
    if is_dataclass(value):
        for f in fields(value):
            yield from leaves(getattr(value, f.name), f"{path}.{f.name}")
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from leaves(entry, f"{path}[{key}]")
    elif value is not None:
        yield path, np.asarray(value)


def assert_same(mine, its, rtol=1e-12):
    for (path, a), (_, b) in zip(leaves(mine), leaves(its), strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12, err_msg=path)
        else:
            np.testing.assert_array_equal(a, b, err_msg=path)


def test_ignored_voxels_do_not_matter_but_are_counted():
    logits, labels = make_case(1, 3, (50,))
    kept = labels >= 0
    whole, alone = count_logits(logits, labels).tables, count_logits(logits[:, kept], labels[kept]).tables
    assert whole.confusion.ignored == int((~kept).sum()) > 0
    changed = logits.clone()
    changed[:, ~kept] = 7.0
    for mine, its in ((whole, alone), (whole, count_logits(changed, labels).tables)):
        for name in ("likelihood", "reliability", "classwise", "ranking", "free_energy"):
            assert_same(getattr(mine, name), getattr(its, name))


@pytest.mark.parametrize("space", [(), (40,), (5, 8), (2, 4, 5), (2, 2, 2, 5)])
def test_space_may_have_any_number_of_axes(space):
    logits, labels = make_case(2, 3, space)
    counted = count_logits(logits, labels, bands=find_bands(labels.numpy()), predict=True)
    assert counted.prediction.shape == space
    flat = count_logits(logits.reshape(3, -1), labels.reshape(-1)).tables
    np.testing.assert_array_equal(counted.tables.confusion.count, flat.confusion.count)


def test_log_probs_and_logits_give_the_same_tables_but_for_the_offset():
    logits, labels = make_case(3, 4, (300,), torch.float64)
    from_logits = count_logits(logits + 5, labels).tables
    from_log_probs = count_logits(torch.log_softmax(logits, 0), labels, normalised=True).tables
    assert from_log_probs.free_energy is None
    for name in ("likelihood", "confusion", "reliability", "classwise"):
        assert_same(getattr(from_logits, name), getattr(from_log_probs, name), rtol=1e-10)


def test_log_probs_that_are_not_normalised_are_refused():
    logits, labels = make_case(4)
    with pytest.raises(InputError, match=r"log_probs has a voxel whose logsumexp over classes is off zero by \d"):
        count_logits(logits, labels, normalised=True)
    stored = torch.log_softmax(logits, 0).to(torch.float16)
    count_logits(stored, labels, normalised=True)  # rounding to half precision is no lack of normalisation


def test_bands_are_counted_within_the_case():
    labels = torch.tensor([[0] * 4 + [1] * 20])
    logits = torch.zeros(2, 1, 24)
    logits[1] = 1.0
    tables = count_logits(logits, labels, bands=find_bands(labels.numpy())).tables
    assert tables.bands.count.tolist() == [6, 5, 8, 5]
    assert tables.bands.curves[50].count.sum(1).tolist() == [6, 5, 8, 5, 0]
    assert tables.bands.distance.tolist() == [6.0, 21.0, 84.0, 85.0]


def test_tables_survive_json():
    logits, labels = make_case(5, 3, (9, 14))
    reference = np.zeros((9, 14), np.int16)
    tables = count_logits(logits, labels, bands=find_bands(labels.numpy()), reference=reference).tables
    again = CaseTables.from_plain(json.loads(json.dumps(tables.to_plain())))
    for (path, a), (_, b) in zip(leaves(tables), leaves(again), strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=path)


def test_bad_input_is_refused_in_full_sentences():
    logits, labels = make_case()
    usual = {"logits": logits, "labels": labels}
    for wrong, text in (
        ({"labels": torch.full((6, 11), 9)}, "labels contains 9, but there are 3 classes"),
        ({"labels": labels.T}, r"labels has space \(11, 6\), but its logits have \(6, 11\)"),
        ({"logits": logits.long()}, "logits has dtype int64, but floating-point values are needed"),
        ({"logits": logits[:1]}, r"logits has shape \(1, 6, 11\), but \(classes, \*space\) with at least 2"),
        ({"bins": (0,)}, "bins contains 0, but whole numbers from 1 to 100000 are needed"),
        ({"bins": ()}, r"bins is \(\) and class_bins is 15, but at least one number of bins"),
        ({"reference": np.full((6, 11), -1)}, "reference contains -1, but there are 3 classes"),
        ({"reference": np.zeros(3, np.int16)}, r"reference has space \(3,\), but its logits have \(6, 11\)"),
    ):
        with pytest.raises(InputError, match=text):
            count_logits(**(usual | wrong))
