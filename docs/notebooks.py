"""Run the notebooks of the tutorials and keep what they print: ``python docs/notebooks.py`` writes their outputs anew.

A code cell is executed as it stands, in a folder of its own; what it prints, and a figure that it leaves open, is its
output. Nothing but the standard library and matplotlib is needed.
"""

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"


def run_notebook(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the notebook with the outputs of its code cells; whatever a cell raises is raised."""
    known: dict[str, Any] = {"__name__": "__main__"}
    _figures()  # what was open before is not theirs
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{name} cell {number}", "exec"), known)
            text = {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
            cell = {**cell, "outputs": ([text] if printed.getvalue() else []) + _figures(), "execution_count": None}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _figures() -> list[dict[str, Any]]:
    """Return the figures that are open, and close them."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    plt = sys.modules["matplotlib.pyplot"]
    found = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    plt.close("all")
    return found


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("agg")
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            done = run_notebook(json.loads(path.read_text("utf-8")), path.name)
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + os.linesep, "utf-8")
