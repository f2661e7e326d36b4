"""The board: its page and its script, made of docs/board. The site has the standard library alone.

``make listings`` writes docs/board.md. The rows, which a browser reads as a script so that the board works from a
folder too, are made while the site is built and are no file of the repository.
"""

import csv
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROWS = "board/rows.js"
HEAD = """# The board

Every measured number: {rows:,} rows of {studies} studies, as they were printed. Choose a study, filter and sort;
verdicts are in [results](results.md). Below is each study with its command and its CSV file, which needs no scripts;
[studies.json](board/studies.json) has the version that ran. Unless a study names others, its intervals are
{usual}. They are narrower than intervals over [whole groups](metrics.md#intervals).

<div id="board" class="board"></div>
<script src="{script}"></script>
<script src="board/board.js"></script>

To add a study, write `docs/board/NAME.csv` and its entry in `docs/board/studies.json`, check both with
`python -m paper.board`, and run `make listings`.

## Studies
"""
USUAL = "95 % bootstrap over repeats and single cases; ACE: min and max over repeats"
STUDY = """### {name}

**{title}.** {about} {interval}[{count:,} rows](board/{name}.csv): {made}.
"""


def read(folder: Path) -> tuple[list[dict[str, str]], dict[str, list[list[str]]], list[str]]:
    """Return the studies of a folder, the rows of each, and the names of their columns."""
    studies = json.loads((folder / "studies.json").read_text("utf-8"))
    rows, columns = {}, []
    for study in studies:
        with (folder / f"{study['name']}.csv").open(encoding="utf-8", newline="") as lines:
            columns, *rows[study["name"]] = csv.reader(lines)
    return studies, rows, columns


def page(folder: Path = DOCS / "board") -> str:
    """Return the page."""
    studies, rows, _ = read(folder)
    first = {study["command"]: study["name"] for study in reversed(studies)}
    head = HEAD.format(rows=sum(map(len, rows.values())), studies=len(studies), usual=USUAL, script=ROWS)
    return "\n".join([head, *(_section(study, len(rows[study["name"]]), first[study["command"]]) for study in studies)])


def _section(study: dict[str, str], count: int, first: str) -> str:
    interval = "" if study["interval"] in ("none", USUAL) else f"Intervals: {study['interval']}. "
    made = f"`{study['command']}`" if first == study["name"] else f"as [{first}](#{first})"
    return STUDY.format(**study | {"interval": interval}, count=count, made=made)


def script(folder: Path = DOCS / "board") -> str:
    """Return the rows as a script."""
    studies, rows, columns = read(folder)
    every = [[number, *row] for number, study in enumerate(studies) for row in rows[study["name"]]]
    content = json.dumps({"studies": studies, "columns": columns, "rows": every}, separators=(",", ":"))
    return f"window.segcalBoard = {content.replace('</', '<' + chr(92) + '/')};\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the rows to the site."""
    from properdocs.structure.files import File

    files.append(File.generated(config, ROWS, content=script(Path(config.docs_dir) / "board")))
    return files


def write_page() -> None:
    """Write the page of the board."""
    (DOCS / "board.md").write_text(page(), "utf-8")


if __name__ == "__main__":
    write_page()
