"""What the site adds to the files of docs/: pages of the notebooks, pages that `nav` forgot, links that leave docs/.

- A notebook ``tutorials/x.ipynb`` is shown as the page ``tutorials/x.md``: its text, its code, and the outputs in it.
- A page of docs/ that `nav` does not list stands at the end of the Guide, so that no page is lost.
- A link to a file outside docs/ becomes its name: the site is complete without the repository.
- An address that moved leads to the new one.
- A public function with the name of a module is looked up where it is defined.
"""

import json
import re
from pathlib import Path

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
FUNCTIONS = {
    "segcal.fit": "segcal.fitting.fit.fit",
    "segcal.report": "segcal.report.evaluated.report",
    "segcal.trust": "segcal.trust.structures.trust",
}
MOVED = {"decisions.html": "conventions.html"}
FENCE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Add to `nav` the pages that it does not list."""
    docs = Path(config.docs_dir)
    listed = set(re.findall(r"[\w/-]+\.md", json.dumps(config.nav)))
    found = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    guide = next(entry["Guide"] for entry in config.nav if "Guide" in entry)
    guide += [page for page in found if page not in listed]
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Replace every notebook by its page."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            text = notebook_page(Path(str(file.abs_src_path)).read_text("utf-8"))
            files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_post_build(config: ProperDocsConfig) -> None:
    """Write a page at every address that moved."""
    for old, new in MOVED.items():
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={new}"><a href="{new}">{new}</a>\n'
        (Path(config.site_dir) / old).write_text(page, "utf-8")


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """Write links that leave docs/ as names, and find functions behind names of modules."""
    docs, folder = Path(config.docs_dir).resolve(), Path(page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        target = found[2].replace(".ipynb", ".md")
        if "://" in target or (docs / folder / target).resolve().is_relative_to(docs):
            return f"[{found[1]}]({target}{found[3] or ''})"
        return found[1] if found[1].startswith("`") else f"{found[1]} (`{target.lstrip('./')}`)"

    kept: list[str] = []  # code is left as it is

    def aside(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(replaced, FENCE.sub(aside, markdown))
    text = re.sub(r"^::: (\S+)$", lambda found: f"::: {FUNCTIONS.get(found[1], found[1])}", text, flags=re.MULTILINE)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)


def notebook_page(text: str) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">')
            printed = "".join(output.get("text", data.get("text/plain", [])))
            if printed and "image/png" not in data:
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
