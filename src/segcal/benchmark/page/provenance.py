"""Where the numbers come from: data, divisions, seeds, versions, and what is known about the calibrator."""

from collections.abc import Mapping
from typing import Any

from segcal.benchmark.job import CALIBRATORS
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import Results
from segcal.benchmark.units import Unit
from segcal.errors import SegcalError
from segcal.evaluation.audit import audit
from segcal.fitting.artifact import load

# Of a fit's certificate, what a reader of the page can make something of.
CERTIFIED = (
    "method", "converged", "kkt_residual", "nll", "validation_nll", "voxels", "voxels_available", "lam", "mu",
    "active_bounds",
)  # fmt: skip
# So many case names are listed of each part; the units have all.
MOST_NAMES = 200


def protocol_facts(results: Results) -> dict[str, Any]:
    """Return what holds for the whole benchmark."""
    protocol = results.protocol
    versions = sorted({unit.header["segcal"] for unit in results.units})
    return {
        "protocol_hash": protocol["hash"],
        "segcal": ", ".join(versions),
        "seed": protocol["seed"],
        "repeats": protocol["repeats"],
        "bootstrap": protocol["bootstrap"],
        "fit": protocol["fit"],
        "metrics": list(protocol["metrics"]),
        "fingerprints": dict(protocol.get("fingerprints", {})),
    }


def calibrator_facts(results: Results, task: str, chosen: Pipeline) -> dict[str, Any]:
    """Return the certificate and the audit of a task's chosen calibrator, and which cases had which part."""
    unit = results.repeats(task, chosen.title)[0]
    certificate = unit.header["certificate"]
    return {
        "pipeline": chosen.title,
        "pooling": chosen.pooling,
        "certificate": {name: certificate.get(name) for name in CERTIFIED},
        "audit": audit_facts(results, task, chosen),
        "cases": {part: _names(unit.header[part]) for part in ("cal", "val", "test")},
    }


def audit_facts(results: Results, task: str, pipeline: Pipeline) -> dict[str, Any] | None:
    """Return the audit of a calibrator as the benchmark fitted it in its first repeat; None if it is not there."""
    stem = Unit(task, 0, pipeline).path.with_suffix("").name
    try:
        fitted = load(results.folder / CALIBRATORS / task / "repeat_0" / stem)
    except (SegcalError, OSError):
        return None
    found = audit(fitted.calibrator)
    return {
        "passed": found.passed,
        "text": str(found),
        "findings": [
            {"promise": each.promise, "promised": each.promised, "holds": each.holds, "statement": each.statement}
            for each in found.findings
        ],
    }


def _names(names: list[str]) -> Mapping[str, Any]:
    return {"count": len(names), "names": names[:MOST_NAMES]}
