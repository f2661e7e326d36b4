"""What is written, and that it works in a real browser: no error, no request, and everything can be operated."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace as with_other

from segcal.calibrators import make_calibrator
from segcal.errors import InputError, SegcalError
from segcal.studies import STUDIES
from segcal.studies import page as module
from segcal.studies.binning import ReliabilityData
from segcal.studies.page import (
    ORDER,
    read_document,
    result_figures,
    shift_figure,
    write_page_of,
    write_report,
)
from segcal.studies.run import Finished, read_outcomes

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 90_000  # milliseconds; a machine may be busy


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_api.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        except sync_api.Error as error:
            pytest.skip(f"the browser does not start here: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def opened(browser, page_file):
    """The page in a wide window, with everything that it complained about or asked for."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    said = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(request.url[:200]) if request.url.startswith("http") else None)
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_selector("#maps[data-ready]")
    return page, said


@pytest.fixture
def page(opened):
    return opened[0]


def first_rows(page):
    return page.eval_on_selector_all("#results tbody tr", "rows => rows.map(row => row.dataset.row)")


def test_the_page_is_one_file_that_asks_for_nothing(page_file):
    text = page_file.read_text("utf-8")
    assert len(text) < 5_000_000
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assert "default-src &#x27;none&#x27;" in text


def test_figures_are_written_as_files(page_file):
    names = {path.stem for path in (page_file.parent / "figures").iterdir()}
    assert {"inputs_heart", "reliability_heart", "flips_heart", "binning_heart", "energy_heart"} <= names
    assert any(name.startswith("shift_heart_") for name in names)
    parts = ("all", "foreground", "band0", "class2")
    assert {"reliability_panel", "scatter_heart", *(f"before_after_heart_{part}" for part in parts)} <= names


def test_without_a_path_the_page_lies_in_the_folder(page_folder, tmp_path, monkeypatch):
    copy = shutil.copytree(page_folder, tmp_path / "copy")

    def missing(*_):
        raise InputError("matplotlib is not installed, but figures need it.")

    monkeypatch.setattr(module, "result_figures", missing)
    assert write_report(copy) == copy / "report.html"
    assert "Figures of the studies are left out" in (copy / "report.html").read_text("utf-8")
    with pytest.raises(InputError, match="matplotlib is not installed"):
        write_report(copy, figures=tmp_path / "figures")


def test_what_has_just_run_has_the_bytes_of_the_page_that_is_read_from_its_folder(
    page_setting, page_folder, page_file, tmp_path
):
    copy = shutil.copytree(page_folder, tmp_path / "copy")
    setting = replace(page_setting, results=with_other(page_setting.results, folder=copy))
    path = write_page_of(Finished(setting, read_outcomes(page_folder), {}))
    assert path == copy / "report.html"
    assert path.read_bytes() == page_file.read_bytes()


def test_it_loads_without_an_error_and_without_a_request_and_every_number_can_be_downloaded(opened, tmp_path):
    page, said = opened
    assert said == []
    assert page.locator("h1").inner_text()
    with page.expect_download() as waiting:
        page.click("#download")
    waiting.value.save_as(tmp_path / "numbers.json")
    document = json.loads((tmp_path / "numbers.json").read_text("utf-8"))
    assert document["places"][0]["curves"]["ts(mean_logits)"]["all"]["count"]


def test_hostile_names_are_text(page):
    assert page.evaluate("window.harm") is None
    assert page.locator("main img:not(.paper img), main b:text-is('back')").count() == 0
    listed = page.locator("#case option").all_inner_texts()
    assert any("</script>" in text for text in listed)
    assert max(len(text) for text in listed) <= 44
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_table_sorts_by_any_column_and_back(page):
    page.click("[data-sort=nll]")
    rising = first_rows(page)
    values = [float(text.split()[0]) for text in page.locator("#results tbody td:nth-of-type(4)").all_inner_texts()]
    assert values == sorted(values)
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.click("[data-sort=nll]")
    assert page.locator("th[aria-sort=descending]").count() == 1
    assert first_rows(page)[-1] in rising[:2]


def test_the_table_is_filtered_by_promises_marks_the_best_and_shows_intervals_on_demand(page):
    before = set(first_rows(page))
    page.check("[data-promise=mask]")
    assert "ms(mean_logits)" in before - set(first_rows(page))
    page.check("[data-promise=order]")
    assert "cms_ap(mean_logits)" not in first_rows(page)
    page.uncheck("[data-promise=mask]")
    page.uncheck("[data-promise=order]")
    assert page.locator("td.best").count() >= 3
    assert page.locator("td .sub").count() == 0
    page.check("#intervals")
    assert " to " in page.locator("td .sub").first.inner_text()
    page.uncheck("#intervals")


def test_a_bin_is_read_by_pointing_and_by_arrow_keys(page):
    page.hover("[data-bin='13']")
    told = page.locator(".readout").inner_text()
    assert "87 % to 93 %" in told.replace("\u00a0", " ")
    assert "voxels, says" in told
    page.focus("[data-bin='14']")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.bin") == "12"
    assert "80 % to 87 %" in page.locator(".readout").inner_text().replace("\u00a0", " ")


def test_the_diagram_switches_class_band_foreground_and_pipelines(page):
    lines = page.locator("#reliability polyline").count()
    page.check("[data-pipeline='ms(mean_logits)']")
    assert page.locator("#reliability polyline").count() == lines + 1
    options = page.eval_on_selector_all("#where option", "all => all.map(each => each.value)")
    assert {"all", "foreground", "bands 0", "classes 2"} <= set(options)
    shapes = {page.select_option("#where", value)[0]: page.inner_html("#reliability .split svg") for value in options}
    assert len(set(shapes.values())) >= len(options) - 2  # bands far from any boundary may be empty alike
    page.select_option("#where", "all")


def test_cases_and_slices_are_picked_and_maps_are_painted(page):
    assert {"image", "truth", "prediction", "error", "before", "after", "energy", "contours"} <= set(
        page.eval_on_selector_all("#maps figure", "all => all.map(each => each.dataset.view)")
    )
    first = page.get_attribute("#maps", "data-ready")
    page.focus("#slice")
    page.keyboard.press("Home")
    page.wait_for_function("first => document.querySelector('#maps').dataset.ready !== first", arg=first)
    page.click("#next-case")
    page.wait_for_selector("#maps[data-ready]")
    page.hover("[data-view=after] canvas", position={"x": 5, "y": 5})
    assert re.search(r"Confidence \d+ % before, \d+ % after", page.inner_text("#voxel").replace("\u00a0", " "))
    page.focus("#maps")
    page.keyboard.press("ArrowRight")
    assert "Predicted" in page.inner_text("#voxel")
    painted = page.evaluate(
        """() => { const canvas = document.querySelector('[data-view=before] canvas');
        const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(Array.from(bytes)).size; }"""
    )
    assert painted > 4


def test_the_theme_changes_and_comes_back(page):
    colours = []
    for _ in range(3):
        colours.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        page.click("#theme")
    assert len(set(colours)) == 2
    assert page.inner_text("#theme") == "Theme: auto"


def test_another_place_is_picked_by_keyboard(page):
    page.focus("#places button:nth-child(2)")
    page.keyboard.press("Enter")
    assert "tested on heart_strong" in page.inner_text("#verdict .eyebrow")
    page.click("#places button:nth-child(1)")


def test_narrow_windows_and_paper_fit(browser, page_file):
    narrow = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    narrow.set_default_timeout(PATIENCE)
    narrow.goto(page_file.as_uri())
    narrow.wait_for_selector("html[data-ready=yes]")
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
    assert narrow.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 23, 28)"
    assert narrow.pdf(format="A4").startswith(b"%PDF")
    narrow.close()


@pytest.fixture
def copy(page_folder, tmp_path):
    return shutil.copytree(page_folder, tmp_path / "copy")


def test_a_partial_folder_has_a_page_that_says_so(copy):
    next(copy.glob("units/heart/repeat_1/ms-mean_logits.jsonl")).unlink()
    document = read_document(copy)[0]
    assert any("1 of 10 pipelines are not finished" in note for note in document.notes)
    assert "ms(mean_logits)" not in [row.pipeline for row in document.sections[0].rows]


def change(path, old, new, count=1):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), "utf-8")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda place: shutil.rmtree(place / "units"), "has no pipeline with all its repeats"),
        (lambda place: (place / "protocol.json").unlink(), "has no protocol.json"),
        (lambda place: (place / "protocol.json").write_text("{"), "is not readable"),
        (lambda place: (place / "protocol.json").write_text('{"units": []}'), "has no pipeline with all its repeats"),
        (lambda place: next(place.rglob("ts-mean_logits.jsonl")).write_text("{}"), "is not readable as results"),
        (lambda place: (place / "studies" / "flips.json").write_text("[]"), "is not readable"),
        (
            lambda place: change(next(place.rglob("ts-mean_logits.jsonl")), '"schema":1', '"schema":99'),
            "schema 99, but this segcal reads",
        ),
        (
            lambda place: change(place / "protocol.json", '"cases": {', '"others": {', 2),
            r"cannot read \(KeyError: 'heart'\), but they must be as it writes them",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_gives_one_sentence(copy, harm, words):
    harm(copy)
    with pytest.raises(SegcalError, match=words) as caught:
        read_document(copy)[0]
    assert "\n" not in str(caught.value)


def test_a_demonstration_says_what_was_reduced(copy):
    (copy / "verdict.json").write_text(json.dumps({"reduced": ["one", "two"]}))
    assert any("reduced to take minutes: one; two" in note for note in read_document(copy)[0].notes)
    (copy / "verdict.json").write_text("{")
    assert not any("reduced" in note for note in read_document(copy)[0].notes)


CURVE = {"count": [10, 90], "confidence": [0.4, 0.9], "accuracy": [0.5, 0.8], "low": [0.4, 0.7], "high": [0.6, 0.9]}
PARTS = SimpleNamespace(all=CURVE, foreground=CURVE, bands=[CURVE, CURVE], classes=[CURVE])


def section(**other):
    known = {
        "task": "heart",
        "baseline": "b",
        "chosen": "c",
        "background": True,
        "classes": ["x", "<y>$"],
        "shown_classes": [1],
        "curves": {"b": PARTS, "c": PARTS},
        "bands": {"b": [SimpleNamespace(start=0.0), SimpleNamespace(start=3.0)]},
        "cases": SimpleNamespace(dice={"b": [0.5], "c": [0.5]}, ece={"b": [0.1], "c": [None]}),
        "rows": [],
    }
    return SimpleNamespace(**(known | other))


def test_every_part_has_its_diagram_before_and_after_and_is_a_file_only(texts, tmp_path):
    found = {each.name: each for each in result_figures({}, {"heart": section()}, tmp_path)}
    parts = ("all", "foreground", "band0", "band1", "class0")
    assert set(found) == {*(f"before_after_heart_{part}" for part in parts), "scatter_heart"}
    assert not any(each.on_page for each in found.values())
    dots = found["scatter_heart"].draw().axes[0]
    assert [each.get_offsets().tolist() for each in dots.collections] == [[[0.5, 10.0]], []]  # one without a value
    assert (dots.get_xlim(), dots.get_ylim()[0]) == ((0, 1), 0)
    shown = texts(found["before_after_heart_class0"].draw())
    assert {"before", "after", "probability of class <y>$", "share that is this class"} <= set(shown)
    flat = {each.name for each in result_figures({}, {"heart": section(background=False)}, tmp_path)}
    assert set(found) - flat == {"before_after_heart_foreground"}
    assert result_figures({}, {"heart": section(baseline=None)}, tmp_path) == []


def test_the_order_of_the_page_is_of_studies_that_are_there_and_the_panel_is_a_file(tmp_path):
    assert set(ORDER) <= set(STUDIES)
    (panel,) = result_figures({"reliability": ReliabilityData(15, "", {})}, {}, tmp_path)
    assert (panel.name, panel.on_page) == ("reliability_panel", False)


def test_a_shift_is_drawn_for_calibrators_that_were_fitted(setting):
    rows = [
        SimpleNamespace(pipeline=f"{name}({pooling})", pooling=pooling, calibrator=name)
        for name, pooling in (("identity", "single"), ("ms", "mean_logits"), ("dc", "mean_logits"))
    ]
    for chosen, expected in (("dc(mean_logits)", ["shift_toy_ms"]), ("ms(mean_logits)", ["shift_toy_ms"])):
        toy = section(task="toy", rows=rows, baseline=None, chosen=chosen, classes=["a", "b", "c"])
        assert [each.name for each in result_figures({}, {"toy": toy}, setting.results.folder)] == expected


@pytest.mark.parametrize("name", ["ts", "ms"])
def test_a_calibrator_gives_one_answer_unless_it_sees_the_shift(name, texts):
    calibrator = make_calibrator(name, 30)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            if parameter.ndim > 1:
                parameter[..., 0, :] += 0.3
    figure = shift_figure(calibrator, name, [f"c{number}" for number in range(30)])
    own, answers = ([bar.get_height() for bar in axis.patches] for axis in figure.axes[1:])
    assert len(answers) == 16  # of many classes the likeliest
    assert own[:8] == own[8:]
    apart = max(abs(a - b) for a, b in zip(answers[:8], answers[8:], strict=True))
    assert apart > 0.1 if name == "ms" else apart < 1e-9
    assert ("not the same" in " ".join(texts(figure))) == (name == "ms")
