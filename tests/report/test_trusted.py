"""The section of trust: sorted, with pictures of the first cases; and the page that has it alone."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET, to_builtins

import segcal
from segcal.report.evaluated import evaluation_document
from segcal.report.page import BENCHMARK_PAGE, EVALUATION_PAGE, TRUST_PAGE
from segcal.report.pictures import decode_map
from segcal.report.trusted import PICTURES, section_of, trust_section, write_trust_page
from segcal.trust.guarantees import MASK, bounds_of, nested_masks

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VOLUME = (5, 21, 17)


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in VOLUME), indexing="ij"))
    logits, labels = [], []
    for _ in range(30):
        inside = 6 * (rng.uniform(0.4, 0.9) - np.sqrt((place**2).sum(0))) + rng.normal(size=VOLUME)
        logits.append(np.stack([-inside, inside]).astype("float32") / 2)
        labels.append((logits[-1] + rng.gumbel(size=(2, *VOLUME))).argmax(0))
    images = [rng.random((1, *VOLUME)).astype("float32") for _ in labels]
    return segcal.ArrayCases(logits, labels, images=images, class_names=["rest", "<b>ball</b>"], kind="logits")


@pytest.fixture(scope="module")
def fitted(cases):
    return segcal.learn_trust(segcal.fit("ts", cases.subset(cases.ids[:2])), cases.subset(cases.ids[:22]))


@pytest.fixture(scope="module")
def new(cases):
    return cases.subset(cases.ids[22:])


def test_rows_are_sorted_and_the_first_cases_have_pictures(fitted, new):
    found = trust_section(fitted, new)
    assert found.of == len(found.rows) == 8
    assert found.flagged == sum(row["review"] for row in found.rows)
    chances = [(not row["review"], -row["dice_below_tau"]) for row in found.rows]
    assert chances == sorted(chances)
    assert [one.case for one in found.pictures] == [row["case"] for row in found.rows[:PICTURES]]
    assert found.alarms == []
    told = replace(segcal.trust(fitted, new), alarms=["ball was in 1 of 2 groups."])
    assert section_of(told, fitted, new).alarms == told.alarms


def test_a_picture_is_the_slice_on_which_the_mask_is_largest(fitted, new):
    one = trust_section(fitted, new).pictures[0]
    levels = nested_masks(fitted.calibrator, new.checked(one.case), bounds_of(fitted.reference, 0.1))[1]
    sizes = (levels >= MASK).sum((1, 2))
    assert (one.index, one.slices) == (int(sizes.argmax()), 5)
    np.testing.assert_array_equal(decode_map(one.levels), levels[one.index])
    assert decode_map(one.image).shape == VOLUME[1:]


def test_the_page_has_it_alone_and_names_stay_text(fitted, new, tmp_path):
    result = segcal.trust(fitted, new, biomarkers={"twice": "2 * {<b>ball</b>}"})
    path = write_trust_page(tmp_path / "r.html", result, fitted, new)
    text = path.read_text("utf-8")
    assert [bool(page.match(text.encode())) for page in (TRUST_PAGE, EVALUATION_PAGE, BENCHMARK_PAGE)] == [1, 0, 0]
    assert "<b>ball</b>" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert (data["kind"], data["places"]) == ("trust", [])
    assert len(data["trust"]["biomarkers"]) == 8
    assert "8 cases to review. " in text
    assert "8 structures to review" in text


def test_a_browser_draws_rows_and_three_masks(fitted, new, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    path = write_trust_page(tmp_path / "r.html", segcal.trust(fitted, new), fitted, new)
    with sync_api.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        except sync_api.Error as error:
            pytest.skip(f"the browser does not start here: {str(error).splitlines()[0]}")
        page, said = browser.new_page(), []
        page.set_default_timeout(90_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("#trust-maps[data-ready=yes]")
        assert page.locator("#trust-cases tbody tr").count() == 8
        assert page.locator("#trust tbody tr").count() == 16
        assert page.locator("#trust tbody th").last.inner_text().endswith("<b>ball</b>")
        painted = """canvas => {
          const seen = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const found = new Set(); for (let k = 0; k < seen.length; k += 4) found.add(seen[k + 1] > seen[k] + 30);
          return found.size; }"""
        assert page.locator("#trust-maps canvas").count() == PICTURES
        assert page.locator("#trust-maps canvas").first.evaluate(painted) == 2  # green or blue over grey, and grey
        assert said == []
        browser.close()


def test_an_evaluation_shows_it_where_the_calibrator_can(fitted, new):
    result = segcal.evaluate(new, fitted, metrics=["nll", "dice", "ece"], replicates=20)
    assert to_builtins(evaluation_document(result, new, fitted))["trust"]["of"] == 8
    assert evaluation_document(result, new, replace(fitted, reference=None)).trust is UNSET


def test_a_reference_that_is_too_small_for_the_level_has_no_section(fitted, cases, new):
    small = segcal.learn_trust(replace(fitted, reference=None), cases.subset(cases.ids[2:9]))
    assert trust_section(small, new) is UNSET


def test_a_case_without_planes_has_no_picture(fitted, new):
    result = segcal.trust(fitted, new)
    flat = segcal.ArrayCases(
        [case.logits.reshape(2, -1).numpy() for case in new], ids=new.ids, class_names=new.class_names, kind="logits"
    )
    assert section_of(result, fitted, flat).pictures == []
