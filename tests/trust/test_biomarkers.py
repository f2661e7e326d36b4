"""Expressions of volumes, links, and intervals of what follows from them."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.trust.biomarkers import biomarker_errors, derive, link_cases, parse_biomarker

# On a machine that is busy an example may take long.
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow])

TITLES = ["background", "left ventricle", "wall"]
EF = "100 * ({left ventricle@1} - {left ventricle@2}) / {left ventricle@1}"


@pytest.fixture
def table(make_table):
    """Tables of (id, expected volumes, true volumes); a voxel is 2 units."""

    def make(rows, labelled=True):
        ids, prob, truth = zip(*rows, strict=True)
        columns = {"mask": np.add(prob, 1.0), "prob": prob} | ({"truth": truth} if labelled else {})
        return make_table(ids, [name[:3] for name in ids], 2.0, **columns)

    return make


def pairs(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        for phase, mean in ((1, 100), (2, 40)):
            true = mean + rng.normal() * 5
            rows.append((f"p{number:02d}_{phase}", [0, true + rng.normal() * 3, 9], [0, true, 9]))
    return rows


@SLOWLY
@given(a=st.floats(1, 99), b=st.floats(0, 99), c=st.floats(-9, 9))
def test_an_expression_is_what_python_makes_of_it(a, b, c):
    found = parse_biomarker("x", "-{wall} * 2 + ({left ventricle} - 1.5) / {wall}", TITLES)
    assert found.value([a, b]) == pytest.approx(-a * 2 + (b - 1.5) / a)


def test_its_scale_is_the_linear_propagation_of_those_of_the_volumes():
    found = parse_biomarker("ef", EF, TITLES)
    a, b, sa, sb = 120.0, 50.0, 6.0, 4.0
    by_hand = math.hypot(100 * b / a**2 * sa, 100 / a * sb)
    assert found.scale([a, b], [sa, sb]) == pytest.approx(by_hand, rel=1e-5)
    assert math.isnan(found.value([0.0, 1.0]))


@pytest.mark.parametrize(
    "text", ["", "3", "{wall", "{wall@1} - {wall}", "{wall} ** 2", "__import__('os')", "{wall}.real", "max({wall}, 1)",
             "'a' * {wall}", "{wall} if 1 else 2", "lambda: {wall}", "v0"]
)  # fmt: skip
def test_anything_but_plain_arithmetic_is_refused(text):
    with pytest.raises(InputError, match="but an expression of volumes with"):
        parse_biomarker("x", text, TITLES)
    named = r"names the structure 'lung', but there are background, left ventricle, wall."
    with pytest.raises(InputError, match=named):
        parse_biomarker("x", text + "{lung}", TITLES)


def test_links_are_subjects_and_phases():
    assert link_cases(["p1_1", "p1_2", "other"], r"(p\d)_(\d)") == {"p1": {"1": 0, "2": 1}}
    assert link_cases(["a", "b"], None) == {"a": {"": 0}, "b": {"": 1}}
    for pattern, text in (
        (r"(p\d)", "with 1 groups, but two are needed"),
        ("(", "which is no regular expression"),
        (r"(x)(y)", "but no case \\(such as 'p1_1'\\) matches it"),
        (r"(p)(\d)", "finds phase '1' of 'p' in 'p1_1' and 'p1_2', but a phase is one case"),
    ):
        with pytest.raises(InputError, match=text):
            link_cases(["p1_1", "p1_2"], pattern)


def test_the_interval_is_that_of_labelled_subjects(table):
    reference, new = table(pairs(12)), table(pairs(1, seed=5), labelled=False)
    found = parse_biomarker("ef", EF, TITLES)
    (one,) = derive([found], r"(p\d+)_(\d)", reference, [new], 0.8)
    off = []
    for k in range(12):
        (v1, t1), (v2, t2) = ((2 * r.prob[i, 1], 2 * r.truth[i, 1]) for r in [reference] for i in (2 * k, 2 * k + 1))
        scale = math.hypot(100 * v2 / v1**2 * 2, 100 / v1 * 2)  # no spread: one voxel of 2 units
        off.append(abs(100 * (t1 - t2) / t1 - 100 * (v1 - v2) / v1) / scale)
    v1, v2 = 2 * new.prob[0, 1], 2 * new.prob[1, 1]
    reach = sorted(off)[math.ceil(13 * 0.8) - 1] * math.hypot(100 * v2 / v1**2 * 2, 100 / v1 * 2)
    value = 100 * (v1 - v2) / v1
    found = [one[name] for name in ("value", "low", "high")]
    assert found == pytest.approx([value, value - reach, value + reach], rel=1e-4)
    assert one["mask_value"] == pytest.approx(100 * (v1 - v2) / (v1 + 2))


def test_subjects_that_lack_a_phase_or_divide_by_nothing_say_so(table):
    new = table([("p01_1", [0, 5, 5], [0, 0, 0]), ("p02_1", [0, 0, 5], [0, 0, 0]), ("p02_2", [0, 0, 5], [0, 0, 0])])
    found = derive([parse_biomarker("ef", EF, TITLES)], r"(p\d+)_(\d)", table(pairs(12)), [new], 0.8)
    assert [(one["subject"], one["value"], one["low"]) for one in found] == [("p01", None, None), ("p02", None, None)]
    assert [one["reason"] for one in found] == ["phase 2 is missing", "it divides by a volume of zero"]


def test_too_few_labelled_subjects_and_phases_without_a_link_are_refused(table):
    found, new = parse_biomarker("ef", EF, TITLES), table(pairs(1))
    with pytest.raises(InputError, match=r"'ef' has 5 labelled subjects with all its phases, but level 0.9 needs 9"):
        derive([found], r"(p\d+)_(\d)", table(pairs(5)), [new], 0.9)
    with pytest.raises(InputError, match="'ef' names a phase, but a link is needed to tell cases of one subject apart"):
        derive([found], None, table(pairs(12)), [new], 0.8)
    with pytest.raises(InputError, match="names no phase, but one, with a link, is needed"):
        derive([parse_biomarker("v", "{wall}", TITLES)], r"(p\d+)_(\d)", table(pairs(12)), [new], 0.8)
    errors = biomarker_errors(parse_biomarker("v", "{wall}", TITLES), link_cases(["a"], None), table(pairs(1)[:1]))
    assert errors.signed.tolist() == [0.0]  # without phases each case is a subject
