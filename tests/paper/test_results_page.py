"""The page of results: made from folders alone, with the paper's word beside ours."""

import sys
from functools import partial
from pathlib import Path

import pytest

from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.whole import run_protocol
from segcal.demo.opening import open_embedded

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import results_page

        yield results_page
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def text(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    facts = {"name": "roads", "embedded": "roads", "cases": 7, "members": 2, "split": {"cal": 3, "val": 1}}
    document = {
        "tasks": [facts],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in ("identity", "ms", "dc")]
        + [{"pooling": how, "calibrator": "identity"} for how in ("single", "mean_probs")],
        "repeats": 2,
        "fit": {"lam": 1e-3, "mu": 1e-3, "voxels": 500},
        "bootstrap": {"replicates": 20},
        "studies": ["offsets", "flips", "binning"],
    }
    opener = partial(open_embedded, cache=folder / "cache")
    run_protocol(parse_protocol(document), folder / "roads", opener, opener)
    return "\n".join(script.page(folder))


def test_every_section_that_has_results_is_there_and_no_other(text):
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == [
        "# Measured results", "## What was run", "## Table 4, with intervals", "### roads", "## Matched comparisons",
        "### In short", "### Where they agree with the paper", "## Offsets (Tables 3 and 5)", "## Flips", "## Binning",
    ]  # fmt: skip
    assert "| roads | RoadSeg | 2 | 2 | 7 | 3 | 1 | 3 | 2 | 500 |" in text
    assert "\n- roads, dc(mean_logits) against ms(mean_logits): " in text
    assert "roads: calibration metrics better in" in text
    assert "flips of ms(mean_logits)" in text


def test_the_paper_s_word_is_that_of_its_printed_numbers(script, text):
    rows = script.paper.RESULTS["RoadSeg"]
    words = [script.paper.verdict(rows, "ms(mean_logits)", "dc(mean_logits)", metric) for metric in script.TITLES]
    assert words == ["better", "better", "better", "better", "better"]
    city = script.paper.RESULTS["Cityscapes"]
    assert script.paper.verdict(city, "cdc(mean_logits)", "cms_ap(mean_logits)", "ece") == "worse"
    assert script.paper.verdict(city, "lts(mean_logits)", "lts_ti(mean_logits)", "ba_ece") == "same"
    assert "| roads | dc(mean_logits) against ms(mean_logits) | " in text
    assert "- roads: of 5 verdicts " in text


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("better", "better", "agrees"),
        ("same", "no difference", "agrees"),
        ("better", "no difference", "not confirmed"),
        ("same", "worse", "only here"),
        ("better", "worse", "opposite"),
    ],
)
def test_agreement_is_judged_strictly(script, theirs, ours, outcome):
    from paper_words import judge

    assert judge(theirs, ours) == outcome
