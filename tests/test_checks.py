from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.checks import (
    as_tensor,
    check_case_logits,
    check_finite,
    check_floating,
    check_forward,
    check_labels,
    check_mask,
    check_memory,
    check_num_classes,
    memory_limit,
)
from segcal.errors import InputError

SPACE = (4, 5)


def labels_of(*values, dtype=torch.int64):
    """A label map of space (4, 5), zero but for these values."""
    labels = torch.zeros(SPACE, dtype=dtype)
    labels.view(-1)[: len(values)] = torch.tensor(values, dtype=dtype)
    return labels


@pytest.mark.parametrize("count", [2, 150, np.int64(7)])
def test_whole_numbers_from_two_on_are_counts_of_classes(count):
    found = check_num_classes(count)
    assert found == count
    assert type(found) is int


@pytest.mark.parametrize("count", [1, 0, -2, 3.0, True, "3", None])
def test_other_counts_of_classes_are_refused(count):
    with pytest.raises(InputError, match=f"num_classes is {count!r}, but a whole number of at least 2 is needed"):
        check_num_classes(count)


def test_arrays_share_their_memory():
    array = np.arange(6.0)
    as_tensor(array, "x")[0] = 7
    assert array[0] == 7


def test_read_only_reversed_and_big_endian_arrays_are_taken():
    array = np.arange(6.0)
    array.flags.writeable = False
    assert as_tensor(array, "x").tolist() == list(range(6))
    assert as_tensor(np.arange(6)[::-1], "x").tolist() == [5, 4, 3, 2, 1, 0]
    assert as_tensor(np.arange(3).astype(">i2"), "x").tolist() == [0, 1, 2]


@pytest.mark.parametrize("thing", ["text", {"a": 1}, [[1], [1, 2]], object()])
def test_what_is_no_array_is_refused_with_its_type(thing):
    text = f"logits is {type(thing).__name__}, but a numeric array is needed. Pass a numpy array or a torch tensor."
    with pytest.raises(InputError, match=text):
        as_tensor(thing, "logits")


@pytest.mark.parametrize(
    ("dtype", "said"), [(torch.int32, "int32"), (torch.bool, "bool"), (torch.complex64, "complex64")]
)
def test_scores_must_be_floating_point(dtype, said):
    text = f"logits of case 'a' has dtype {said}, but floating-point values are needed. Convert with logits.float"
    with pytest.raises(InputError, match=text):
        check_floating(torch.zeros(3, dtype=dtype), "logits of case 'a'")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_counted(dtype, bad):
    values = torch.zeros(9, dtype=dtype)
    check_finite(values, "logits")
    values[[2, 5]] = bad
    with pytest.raises(InputError, match="logits has 2 values that are NaN or infinite, but all must be finite"):
        check_finite(values, "logits")


@pytest.mark.parametrize(
    ("shape", "repair"),
    [
        ((2, 8, 9, 5), r"call logits.movedim\(-1, 1\) first"),
        ((5, 8, 9), r"Add the batch axis with logits\[None\]"),
        ((5,), r"Add the batch axis with logits\[None\]"),
        ((2, 4, 9), "Use the calibrator that was fitted for this number of classes"),
        ((), "Use the calibrator that was fitted for this number of classes"),
    ],
)
def test_a_wrong_batch_shape_comes_with_its_repair(shape, repair):
    with pytest.raises(InputError, match=rf"needs \(batch, 5, \*space\). .*{repair}"):
        check_forward(torch.zeros(shape), 5)


def test_a_batch_may_have_any_space_and_be_empty():
    for shape in [(3, 5), (3, 5, 7), (3, 5, 7, 8, 9), (0, 5)]:
        check_forward(torch.zeros(shape), 5)


@pytest.mark.parametrize(
    ("shape", "classes", "text"),
    [
        (
            (1, 8, 9),
            None,
            r"has shape \(1, 8, 9\), but \(classes, \*space\) with at least 2 classes is needed. Classes are",
        ),
        ((), None, r"has shape \(\), but \(classes, \*space\)"),
        ((8, 9, 3), 3, r"but \(3, \*space\) like the cases before it is needed. If classes are the last axis, move"),
        ((4, 9), 3, r"but \(3, \*space\) like the cases before it is needed. Classes are the first axis of a case"),
    ],
)
def test_the_scores_of_a_case_have_classes_first(shape, classes, text):
    with pytest.raises(InputError, match=text):
        check_case_logits(torch.zeros(shape), "logits of case 'a'", classes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_label_maps_become_int64_with_ignored_voxels_marked(dtype):
    found = check_labels(labels_of(1, 2, 99, dtype=dtype), "labels", SPACE, 3, 99)
    assert found.dtype == torch.int64
    assert found.view(-1)[:4].tolist() == [1, 2, -1, 0]


def test_a_class_may_be_ignored():
    assert check_labels(labels_of(1, 2), "labels", SPACE, 3, 0).view(-1)[:3].tolist() == [1, 2, -1]


def test_minus_one_may_be_the_ignore_label():
    assert check_labels(labels_of(-1, 2), "labels", SPACE, 3, -1).view(-1)[:3].tolist() == [-1, 2, 0]


@pytest.mark.parametrize(
    ("values", "ignore", "text"),
    [
        (
            (3,),
            None,
            r"contains 3, but there are 3 classes \(0 to 2\) and ignore = None. Map these labels, or pass ignore=3",
        ),
        ((-1,), None, "contains -1, but there are 3 classes"),
        ((-1, 255), 255, "contains -1, but there are 3 classes .* and ignore = 255"),
        ((7, 4, 255), 255, r"contains 4, 7, but .* or pass ignore=7\."),
        ((9, 8, 7, 6, 5, 4), None, r"contains 4, 5, 6, 7, 8, \.\.\., but"),
    ],
)
def test_labels_that_name_no_class_are_listed(values, ignore, text):
    with pytest.raises(InputError, match=text):
        check_labels(labels_of(*values), "labels", SPACE, 3, ignore)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_labels_must_be_whole_numbers(dtype):
    text = r"labels of case 'a' has dtype \w+, but whole numbers are needed. Convert with labels.astype\('int64'\)"
    with pytest.raises(InputError, match=text):
        check_labels(torch.zeros(SPACE, dtype=dtype), "labels of case 'a'", SPACE, 3, None)


@pytest.mark.parametrize(
    ("shape", "logits", "repair"),
    [
        ((5, 4), (3, 4, 5), "The axes are in another order: transpose one of them"),
        ((3, 4, 5), (3, 4, 5), "One-hot labels are not label maps: take argmax over the first axis"),
        ((8, 9), (8, 9, 3), r"If classes are the last axis, move them first with numpy.moveaxis\(logits, -1, 0\)"),
        ((4, 9), (3, 4, 5), "Save logits at label resolution"),
        ((20,), (3, 4, 5), "Save logits at label resolution"),
    ],
)
def test_labels_of_another_shape_come_with_the_likely_repair(shape, logits, repair):
    shown = rf"labels has space \({', '.join(map(str, shape))},?\), but its logits have .*{repair}"
    with pytest.raises(InputError, match=shown):
        check_labels(torch.zeros(shape, dtype=torch.int64), "labels", logits[1:], logits[0], None)


def test_masks_of_zeros_and_ones_are_masks():
    for dtype in (torch.bool, torch.uint8, torch.float32):
        mask = check_mask(torch.ones(SPACE, dtype=dtype), "masks", SPACE)
        assert mask.dtype == torch.bool
        assert bool(mask.all())


def test_other_masks_are_refused():
    with pytest.raises(
        InputError, match=r"masks has values other than 0 and 1, but a mask is needed. Threshold it first"
    ):
        check_mask(torch.full(SPACE, 2), "masks", SPACE)
    with pytest.raises(
        InputError, match=r"masks has space \(5, 4\), but its logits have \(4, 5\). Give one mask value"
    ):
        check_mask(torch.ones(5, 4), "masks", SPACE)


def test_scores_beyond_any_logit_are_refused_and_masks_are_not():
    check_finite(torch.tensor([-1e9, 0.0]), "logits")
    with pytest.raises(InputError, match=r"logits has values up to 3e\+38 in size, but at most 1e\+10 can be computed"):
        check_finite(torch.tensor([3e38, 0.0]), "logits")


def test_a_number_of_classes_has_a_bound():
    with pytest.raises(InputError, match="num_classes is 1000000000000, but at most 1048576 are possible"):
        check_num_classes(10**12)


def test_half_of_the_memory_is_the_limit():
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) << 10
    assert memory_limit() == pytest.approx(total / 2, rel=0.01)


@pytest.mark.parametrize(("needed", "said"), [(3 << 30, r"3\.0 GiB"), (2**63, "more memory than any machine has")])
def test_what_does_not_fit_is_refused_with_its_size(needed, said):
    with pytest.raises(InputError, match=f"case needs {said}, but at most 2.0 GiB .* can be used. Cut it."):
        check_memory("case", needed, 2 << 30, "Cut it.")
    check_memory("case", 2 << 30, 2 << 30, "Cut it.")
