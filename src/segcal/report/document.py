"""The document that tables, figures and the report page are made from: ``summary.json`` in a folder of results."""

from pathlib import Path
from typing import Any

from segcal.documents import parse_json
from segcal.errors import ArtifactError

SCHEMA = 1
SUMMARY = "summary.json"


def read_summary(folder: str | Path) -> dict[str, Any]:
    """Read the summary of a folder of results."""
    path = Path(folder) / SUMMARY
    try:
        summary = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path} is not readable ({error}), but it must be as segcal wrote it. Run the benchmark again."
        ) from None
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA:
        raise ArtifactError(f"{path} is not a summary of schema {SCHEMA}, but one is needed. Run the benchmark again.")
    return summary
