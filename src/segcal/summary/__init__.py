"""Numbers of many cases as means with intervals, and the document that holds those of a benchmark."""

from segcal.summary.bootstrap import (
    Draws,
    difference,
    estimate,
    estimate_all,
    over_repeats,
    percentile_interval,
    pooled_replicates,
)
from segcal.summary.contents import (
    LEVEL,
    REPLICATES,
    SCHEMA,
    SUMMARY,
    Bootstrap,
    Compared,
    Comparison,
    Difference,
    Estimate,
    Interval,
    MetricFacts,
    PipelineFacts,
    ResultRow,
    RowGroup,
    Summary,
    TaskFacts,
    Verdict,
    read_summary,
)

__all__ = [
    "LEVEL", "REPLICATES", "SCHEMA", "SUMMARY", "Bootstrap", "Compared", "Comparison", "Difference", "Draws",
    "Estimate", "Interval", "MetricFacts", "PipelineFacts", "ResultRow", "RowGroup", "Summary", "TaskFacts", "Verdict",
    "difference", "estimate", "estimate_all", "over_repeats", "percentile_interval", "pooled_replicates",
    "read_summary",
]  # fmt: skip
