"""The site is whole: every public name has a page and an example, every link leads somewhere, every notebook runs."""

import ast
import importlib
import importlib.util
import json
import re
import unicodedata
from pathlib import Path

import pytest

import segcal

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = {path.name: path.read_text("utf-8") for path in sorted((DOCS / "reference").glob("*.md"))}
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
LISTS = ("glossary.md", "decisions.md")  # of the internals: longer than a screen
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *NOTEBOOKS]


def load(path):
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def uses(code, name):
    """Return whether code says segcal.NAME."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and getattr(node.value, "id", "") == "segcal"
        for node in ast.walk(ast.parse(code))
    )


@pytest.mark.parametrize("name", segcal.__all__)
def test_every_public_name_has_a_place_in_the_reference_and_an_example_that_uses_it(name):
    pages = [text for text in REFERENCE.values() if re.search(rf"^::: segcal\.{name}$", text, flags=re.MULTILINE)]
    assert len(pages) == 1, f"write '::: segcal.{name}' and an example into a page of docs/reference"
    section = re.split(rf"^::: segcal\.{name}$", pages[0], flags=re.MULTILINE)[1].split("\n::: ")[0]
    code = re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    assert any(uses(block, name) for block in code), f"write an example of segcal.{name} below its line"
    assert f"`{name}`" in REFERENCE["index.md"]


def test_the_reference_has_no_name_that_is_not_public():
    listed = [name for text in REFERENCE.values() for name in re.findall(r"^::: segcal\.(\S+)$", text, re.MULTILINE)]
    assert sorted(listed) == sorted(segcal.__all__)


@pytest.mark.parametrize("page", sorted((DOCS / "internals").glob("*.md")), ids=lambda path: path.name)
def test_names_and_paths_of_a_page_on_internals_are_there(page):
    """A page for contributors is one screen, and whatever it names is found."""
    text = page.read_text("utf-8")
    assert len(text.splitlines()) <= 40 or page.name in LISTS
    for dotted in re.findall(r"`(segcal(?:\.[a-zA-Z_]+)+)`", text):
        module, _, name = dotted.rpartition(".")
        if name != "NAME" and importlib.util.find_spec(module) is not None:
            found = importlib.import_module(module)
            assert hasattr(found, name) or importlib.util.find_spec(dotted) is not None, dotted
    for path in re.findall(r"`((?:src|tests|docs|benchmarks)/[a-zA-Z_/.]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_every_decision_that_is_cited_is_there():
    text = (DOCS / "internals" / "decisions.md").read_text("utf-8")
    numbers = [int(number) for number in re.findall(r"^- \*\*(\d+)\*\* \S", text, flags=re.MULTILINE)]
    assert numbers == sorted(set(numbers))
    code = [path for folder in ("src", "tests", "benchmarks", "paper") for path in (ROOT / folder).rglob("*.py")]
    cited = [number for path in code for number in re.findall(r"\bdecision (\d+)", path.read_text("utf-8"))]
    cited += re.findall(r"\((?:see )?(\d+)\)", text)
    assert "480" in cited
    assert set(map(int, cited)) <= set(numbers)


def text_of(path):
    """Return the Markdown of a document without its code."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path):
    """Return the anchors of a page, as the site makes them of its headings."""
    found, seen = set(), {}
    for title in re.findall(r"^#+ (.+)$", text_of(path), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)|[`*]", lambda match: match[1] or "", title)
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}_{seen[slug]}" if seen[slug] else slug)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(document)):
        if "://" in target:
            continue
        path = (document.parent / target) if target else document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{document} links to {target}#{anchor}"


def test_the_link_checker_finds_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n\n## Again\n\n## Again\n\n[a](missing.md) [b](page.md#nowhere)\n")
    assert anchors(page) == {"one-two-three", "again", "again_1"}
    with pytest.raises(AssertionError, match=r"links to missing\.md"):
        test_links_lead_somewhere(page)
    page.write_text("# One\n\n[b](page.md#nowhere)\n")
    with pytest.raises(AssertionError, match=r"links to page\.md#nowhere"):
        test_links_lead_somewhere(page)


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text("utf-8"))
    done = load(DOCS / "notebooks.py").run_notebook(notebook, path.name)
    for old, new in zip(notebook["cells"], done["cells"], strict=True):
        kinds = [[output["output_type"] for output in cell.get("outputs", [])] for cell in (old, new)]
        assert kinds[0] == kinds[1], "run: make pages"


def test_the_figures_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures = load(DOCS / "figures.py")
    assert set(figures.worth_rows()) == set(figures.TASKS) == set(figures.conic_rows())
    assert [row[0] for row in figures.worth_rows()["camvid"]] == [3, 6, 10, 25, 50]
    drawn = []
    monkeypatch.setattr(figures, "_save", lambda figure, name: drawn.append(name))
    figures.draw_which()
    figures.draw_how_many()
    assert all((DOCS / "images" / f"{name}.svg").exists() for name in drawn)


def test_the_site_builds_strictly(tmp_path):
    missing = "properdocs is not installed; `make docs` builds the site"
    build = pytest.importorskip("properdocs.commands.build", reason=missing)
    config = pytest.importorskip("properdocs.config").load_config(str(ROOT / "properdocs.yml"), site_dir=str(tmp_path))
    build.build(config)
    assert "segcal" in (tmp_path / "index.html").read_text("utf-8")
