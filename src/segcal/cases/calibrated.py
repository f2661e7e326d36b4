"""How a folder says that its predictions are calibrated: ``calibration.json``, which says what was done to them."""

from pathlib import Path
from typing import Any

from segcal.documents import read_json

MARKER = "calibration.json"
FORMAT = "segcal-applied"


def read_marker(folder: Path) -> dict[str, Any] | None:
    """Return what a folder of predictions says about their calibration; None if it does not say that there was one."""
    if not (folder / MARKER).is_file():
        return None
    content = read_json(folder / MARKER)
    return content if content.get("format") == FORMAT else None
