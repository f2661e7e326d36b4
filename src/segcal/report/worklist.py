"""The worklist of :func:`segcal.objects`: one HTML file without a script, what to look at first on top.

Names come from anywhere, so every cell is escaped, and the content security policy allows the page's own style alone.
"""

import html
import re
from pathlib import Path

from segcal.atomic import write_text
from segcal.report.page import asset, content_policy
from segcal.trust.object_rows import ObjectRow, Objects, yes_no
from segcal.trust.result import number_cell, span_cell

WORKLIST = re.compile(rb"<!doctype html>.{1,2000}<title>segcal objects", re.DOTALL)
MOST_ROWS = 1000
HEADINGS = ("Case and structure", "Object", "Real", "Listed", "Size", "Expected Dice", "Centre (voxels)", "Centre (mm)")


def write_worklist(path: Path, result: Objects) -> Path:
    """Write the page; the CSV file beside it has all rows."""
    style, rows = asset("page.css"), result.first()
    shown = "".join(_row(row) for row in rows[:MOST_ROWS])
    more = f"<p class=small>The first {MOST_ROWS} of {len(rows)}; objects.csv has all.</p>" * (len(rows) > MOST_ROWS)
    heads = "".join(f"<th scope=col>{html.escape(each)}</th>" for each in HEADINGS)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(content_policy(style))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>segcal objects of {len({row.case for row in result.cases})} cases</title>
<style>{style}</style>
</head>
<body>
<header><p class="brand"><b>segcal</b> objects</p></header>
<main><section id="verdict">
<h1>Objects to look at</h1>
<p>{html.escape(result.summary())} Objects of which it is least sure whether they are real stand first.</p>
<p class="small soft">{html.escape(result.promise)}</p>
<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>
{shown}</tbody></table></div>{more}
</section></main>
<footer>Made by segcal. This file needs no network and sends nothing.</footer>
</body>
</html>
"""
    return write_text(path, text)


def _row(row: ObjectRow) -> str:
    name = f"<bdi>{html.escape(row.case)}</bdi><span class=sub><bdi>{html.escape(row.structure)}</bdi></span>"
    size = f"{row.size:.4g} {row.unit}<span class=sub>{span_cell(row.size_low, row.size_high, '.4g')}</span>"
    places = ("–" if each is None else " ".join(f"{x:.0f}" for x in each) for each in (row.centroid, row.world))
    cells = (
        row.object,
        number_cell(row.p_real, ".2f"),
        yes_no(row.listed),
        size,
        number_cell(row.expected_dice, ".2f"),
    )
    return f"<tr><th scope=row>{name}</th>{''.join(f'<td>{each}</td>' for each in (*cells, *places))}</tr>\n"
