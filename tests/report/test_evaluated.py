"""The page of an evaluation, with and without a calibrator, and the section of trust, which also stands alone."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import UNSET, to_builtins

import segcal
from segcal.calibrators.per_region import PerRegion
from segcal.cases import ArrayCases
from segcal.errors import InputError
from segcal.report.evaluated import (
    BEFORE,
    MOST_IMAGES,
    TASK,
    evaluation_document,
    section_of,
    trust_section,
    write_trust_page,
)
from segcal.report.figures import page_figures
from segcal.report.images import decode_map
from segcal.report.page import BENCHMARK_PAGE, EVALUATION_PAGE, TRUST_PAGE, render_page
from segcal.trust.guarantees import MASK, bounds_of, nested_masks

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VOLUME = (5, 21, 17)


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(3)
    labels = [np.kron(rng.integers(3, size=(3, 2)), np.ones((4, 7), int)) for _ in range(7)]
    logits = [3 * (np.eye(3)[y].transpose(2, 0, 1) + 0.8 * rng.normal(size=(3, *y.shape))) for y in labels]
    return ArrayCases([z.astype(np.float32) for z in logits], labels, ids=[f"c{k}" for k in range(7)])


@pytest.fixture(scope="module")
def fitted(cases):
    return segcal.fit("ts", cases.subset(["c0", "c1"]))


@pytest.fixture(scope="module")
def held_out(cases):
    return cases.subset([f"c{k}" for k in range(2, 7)])


def document_of(cases, fitted, **options):
    result = segcal.evaluate(cases, None if fitted is None else fitted.calibrator, replicates=50, **options)
    return evaluation_document(result, cases, fitted)


@pytest.fixture(scope="module")
def document(held_out, fitted):
    return document_of(held_out, fitted)


def test_both_stages_have_rows_curves_and_cases(document, held_out):
    json.dumps(to_builtins(document), allow_nan=False)
    assert "<!doctype html>" in render_page(document)
    (section,) = document.sections
    assert [row.pipeline for row in section.rows] == [BEFORE, "calibrated with ts"]
    assert sum(section.curves[BEFORE].all.count) == sum(case.labels.numel() for case in held_out)
    assert section.curves[BEFORE].all.low[-1] < section.curves[BEFORE].all.accuracy[-1]
    assert section.cases.names == [f"c{k}" for k in range(2, 7)]
    assert "The mask did not change: 0 of" in section.verdict.mask
    assert section.verdict.done.count("2 cases") == 1


def test_the_worst_cases_come_first_with_their_maps(document):
    found = document.examples[TASK]
    losses = [each.nll[1] for each in found.cases]
    assert losses == sorted(losses, reverse=True)
    assert {"truth", "prediction", "before", "after"} <= set(to_builtins(found.cases[0].slices[0]))


def test_promises_certificate_and_evidence_are_part_of_it(document, cases, held_out, fitted):
    own = document.provenance.calibrators[TASK]
    assert own.audit.passed
    assert own.certificate["converged"] is True
    assert own.certificate["active_bounds"] == []
    labels = [np.asarray(case.labels) for case in cases.subset(["c0", "c1"])]
    expected = [
        {"name": str(c), "groups": sum((y == c).any() for y in labels), "voxels": sum((y == c).sum() for y in labels)}
        for c in range(3)
    ]
    assert (list(to_builtins(own)["evidence"]), own.groups) == (expected, 2)
    older = replace(fitted, certificate=replace(fitted.certificate, evidence=None, active_bounds=("slope of car",)))
    own = to_builtins(document_of(held_out, older).provenance.calibrators[TASK])
    assert "evidence" not in own
    assert own["certificate"]["active_bounds"] == ["slope of car"]


def test_flips_are_counted(held_out):
    matrix = segcal.make_calibrator("vs", 3)
    with torch.no_grad():
        matrix.bias[1] = 1.5
    biased = replace(segcal.fit("vs", held_out), calibrator=matrix)
    flips = sum(int((matrix(case.logits[None])[0].argmax(0) != case.logits.argmax(0)).sum()) for case in held_out)
    assert flips > 0
    assert f"The mask changed in {flips:,} of" in document_of(held_out, biased).sections[0].verdict.mask


def test_without_a_calibrator_it_is_measured_only_and_without_tables_there_is_no_verdict(held_out):
    document = document_of(held_out, None)
    (section,) = document.sections
    assert section.verdict.tone == "measured"
    assert len(section.rows) == 1
    assert document.examples[TASK].cases
    (section,) = document_of(held_out, None, metrics=["nll"]).sections
    assert (section.verdict, section.curves) == (None, {})


def test_cases_of_the_fit_give_no_verdict(cases, fitted):
    (found,) = document_of(cases, fitted).sections
    assert found.division.seen == 2
    assert found.verdict.tone == "measured"
    assert found.verdict.headline.startswith("Measured on cases that the calibrator was fitted to")
    assert "7 cases, of which 2 had a part in the fit" in found.verdict.done


def test_cases_that_are_ignored_as_a_whole_give_no_page(fitted):
    void = ArrayCases([np.zeros((3, 4, 5), np.float32)], [np.full((4, 5), 255)], ignore=255)
    with pytest.raises(InputError, match="the cases have no voxel that counts"):
        document_of(void, fitted)


def test_one_call_measures_the_cases_that_were_held_out_and_writes_the_page(cases, held_out, fitted, tmp_path):
    segcal.save(fitted, tmp_path / "ts")
    result = segcal.report(tmp_path / "ts", cases, tmp_path / "page.html", replicates=50)
    assert [row["case"] for row in result.rows if row["stage"] == "after"] == list(held_out.ids)
    assert result.change["nll"] == segcal.evaluate(held_out, fitted.calibrator, replicates=50).change["nll"]
    text = (tmp_path / "page.html").read_text("utf-8")
    segcal.report(fitted, cases, tmp_path / "again.html", replicates=50)
    assert (tmp_path / "again.html").read_text("utf-8") == text
    segcal.report(fitted, cases.subset(["c0", "c1"]), tmp_path / "page.html", replicates=50)
    assert "No case was held out" in (tmp_path / "page.html").read_text("utf-8")


def test_a_page_of_this_command_is_replaced_and_nothing_else(held_out, fitted, tmp_path):
    page = tmp_path / "report.html"
    segcal.report(fitted, held_out, page, replicates=10)
    own = page.read_text()
    for other in ("mine", own.replace("<title>segcal report: evaluation of 5 cases", "<title>segcal report: roads")):
        page.write_text(other)
        with pytest.raises(InputError, match=r"report\.html exists and was not written by this command"):
            segcal.report(fitted, held_out, page, replicates=10)
        assert page.read_text() == other
    segcal.report(fitted, held_out, page, replicates=10, overwrite=True)
    segcal.report(fitted, held_out, page, replicates=10)
    assert page.read_text() == own


def test_a_calibrator_that_is_not_in_the_registry_has_its_own_name(held_out):
    class Mine(segcal.Calibrator):
        """Mine."""

        translation_invariant, preserves, fitted_by = True, "order", "nothing"

        def scores(self, logits, image=None):
            return logits

        def num_identifiable(self):
            return 0

    mine = replace(segcal.fit("ts", held_out), calibrator=Mine(3))
    assert document_of(held_out, mine).sections[0].verdict.done.startswith("A calibrator, Mine (Mine), was fitted on")


def test_a_report_of_arrays_and_what_is_no_fit(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 2, 6, 5)).astype("float32")
    labels = logits.argmax(1)
    fitted = segcal.fit("ts", logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))
    result = segcal.report(fitted, logits, tmp_path / "page.html", labels=labels, kind="logits", replicates=50)
    assert result.before["nll"].cases == 3
    assert (tmp_path / "page.html").is_file()
    needed = r"fitted is TemperatureScaling, but the result of segcal.fit or text or a path"
    with pytest.raises(InputError, match=needed):
        segcal.report(fitted.calibrator, logits, tmp_path / "other.html", labels=labels)


def test_regions_are_called_by_their_names(tmp_path, randomise):
    rng = np.random.default_rng(3)
    regions = {"whole": [1, 2], "core": [2]}
    scores, labels = rng.normal(size=(6, 2, 12, 9)) * 2, rng.integers(0, 3, size=(6, 12, 9))
    held = ArrayCases(list(scores), list(labels), kind="logits", regions=regions, ids=[f"c{n}" for n in range(6)])
    found = segcal.fit("ts", ArrayCases(list(scores), list(labels), kind="logits", regions=regions))
    segcal.report(found, held, tmp_path / "page.html")
    result = segcal.evaluate(held, found)
    document = evaluation_document(result, held, found)
    (section,) = document.sections
    assert section.classes == ["no region", "whole", "core"]
    assert document.metrics["dice (core)"].title == "Dice: core"
    assert section.rows[1].metrics["nll (core)"].value == result.after["nll (core)"].value
    assert section.rows[1].calibrator == "ts"
    assert document.calibrators["ts"].title == "Temperature scaling, per region"
    assert section.verdict is not None
    seen = document.examples[TASK].cases[0]
    assert seen.shape == [12, 9]
    assert seen.slices[0].prediction_after is None  # the masks are those of before
    assert "whole: keeps where it is on" in document.provenance.calibrators[TASK].audit.text
    assert [row.calibrator for row in document_of(held, None).sections[0].rows] == ["identity"]
    inner = [randomise(segcal.make_calibrator("conic", 2), seed=number) for number in range(2)]
    figures = page_figures(PerRegion(held.regions, inner))
    assert [figure.title for figure in figures] == ["What was learned: whole", "What was learned: core"]


@pytest.fixture(scope="module")
def balls():
    rng = np.random.default_rng(0)
    place = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in VOLUME), indexing="ij"))
    logits, labels = [], []
    for _ in range(30):
        inside = 6 * (rng.uniform(0.4, 0.9) - np.sqrt((place**2).sum(0))) + rng.normal(size=VOLUME)
        logits.append(np.stack([-inside, inside]).astype("float32") / 2)
        labels.append((logits[-1] + rng.gumbel(size=(2, *VOLUME))).argmax(0))
    images = [rng.random((1, *VOLUME)).astype("float32") for _ in labels]
    return ArrayCases(logits, labels, images=images, class_names=["rest", "<b>ball</b>"], kind="logits")


@pytest.fixture(scope="module")
def trusted(balls):
    return segcal.learn_trust(segcal.fit("ts", balls.subset(balls.ids[:2])), balls.subset(balls.ids[:22]))


@pytest.fixture(scope="module")
def new(balls):
    return balls.subset(balls.ids[22:])


def test_rows_of_trust_are_sorted_and_the_first_cases_have_pictures(trusted, new):
    found = trust_section(trusted, new)
    assert found.of == len(found.rows) == 8
    assert found.flagged == sum(row["review"] for row in found.rows)
    chances = [(not row["review"], -row["dice_below_tau"]) for row in found.rows]
    assert chances == sorted(chances)
    assert [one.case for one in found.images] == [row["case"] for row in found.rows[:MOST_IMAGES]]
    assert found.alarms == []
    told = replace(segcal.trust(trusted, new), alarms=["ball was in 1 of 2 groups."])
    assert section_of(told, trusted, new).alarms == told.alarms
    one = found.images[0]  # of the slice on which the mask is largest
    levels = nested_masks(trusted.calibrator, new.checked(one.case), bounds_of(trusted.reference, 0.1))[1]
    assert (one.index, one.slices) == (int((levels >= MASK).sum((1, 2)).argmax()), 5)
    np.testing.assert_array_equal(decode_map(one.levels), levels[one.index])
    assert decode_map(one.image).shape == VOLUME[1:]


def test_the_page_has_trust_alone_and_names_stay_text(trusted, new, tmp_path):
    result = segcal.trust(trusted, new, biomarkers={"twice": "2 * {<b>ball</b>}"})
    text = write_trust_page(tmp_path / "r.html", result, trusted, new).read_text("utf-8")
    assert [bool(page.match(text.encode())) for page in (TRUST_PAGE, EVALUATION_PAGE, BENCHMARK_PAGE)] == [1, 0, 0]
    assert "<b>ball</b>" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert (data["kind"], data["places"]) == ("trust", [])
    assert len(data["trust"]["biomarkers"]) == 8
    assert "8 cases to review. " in text
    assert "8 structures to review" in text


def test_a_browser_draws_rows_and_three_masks(trusted, new, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    path = write_trust_page(tmp_path / "r.html", segcal.trust(trusted, new), trusted, new)
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
        assert page.locator("#trust-cases tbody th:not(.part)").count() == 8
        assert page.locator("#trust tbody tr").count() == 16  # every case has its structure below it
        assert page.locator("#about").inner_text().startswith("Made on 2")
        boxes = [each.bounding_box() for each in page.locator("#trust-maps .map").all()]
        assert len({(round(box["width"]), round(box["height"])) for box in boxes}) == 1
        assert page.locator("#trust tbody th").last.inner_text().endswith("<b>ball</b>")
        painted = """canvas => {
          const seen = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const found = new Set(); for (let k = 0; k < seen.length; k += 4) found.add(seen[k + 1] > seen[k] + 30);
          return found.size; }"""
        assert page.locator("#trust-maps canvas").count() == MOST_IMAGES
        assert page.locator("#trust-maps canvas").first.evaluate(painted) == 2  # green or blue over grey, and grey
        assert said == []
        browser.close()


def test_trust_is_shown_where_the_calibrator_can(trusted, balls, new):
    result = segcal.evaluate(new, trusted, metrics=["nll", "dice", "ece"], replicates=20)
    plain = to_builtins(evaluation_document(result, new, trusted))
    assert plain["trust"]["of"] == 8
    assert {row["rule"] for row in plain["decided"]["bounded"]} <= {"recall=0.9", "precision=0.9"}
    without = replace(trusted, reference=None)
    assert evaluation_document(result, new, without).trust is UNSET
    small = segcal.learn_trust(without, balls.subset(balls.ids[2:9]))
    assert trust_section(small, new) is UNSET  # too few for the level
    lines = [case.logits.reshape(2, -1).numpy() for case in new]
    flat = ArrayCases(lines, ids=new.ids, class_names=new.class_names, kind="logits")
    assert section_of(segcal.trust(trusted, new), trusted, flat).images == []
