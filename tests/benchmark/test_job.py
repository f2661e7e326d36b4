"""One job: its numbers are those of fit and evaluate."""

import numpy as np
import torch

from segcal import evaluate, fit
from segcal.benchmark.job import Context, run_job
from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.results import read_unit
from segcal.benchmark.units import plan
from segcal.kernels.threads import one_thread

METRICS = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate"]


def test_a_unit_has_the_numbers_of_fit_and_evaluate(data, tmp_path):
    root, blobs, _ = data
    document = {"tasks": [blobs], "repeats": 1, "split": {"cal": 4, "val": 2}, "metrics": METRICS}
    document["pipelines"] = [{"pooling": "mean_logits", "calibrator": "dc"}]
    protocol = parse_protocol(document | {"fit": {"lam": 1e-3, "mu": 1e-3}}, root)
    (job,) = plan(protocol, {"blobs": protocol.pipelines})
    context = Context(protocol, tmp_path, {job.units[0]: "digest"}, None)
    assert run_job(job, context) == 1
    found = read_unit(tmp_path / job.units[0].path)
    cases = context.open("blobs", "mean_logits").cases
    split = context.divide("blobs", cases, 0)
    with one_thread():
        fitted = fit("dc", split.cal, split.val, protocol.fit)
    result = evaluate(split.test, fitted.calibrator, metrics=METRICS, replicates=1)
    assert found.header["certificate"]["objective"] == fitted.certificate.objective
    for name in METRICS:
        wanted = [row[name] for row in sorted(result.rows, key=lambda row: row["case"]) if row["stage"] == "after"]
        assert found.numbers(name) == wanted
    pooled = result.after["ace"].value
    curve = found.tables.reliability[15]["all"]
    full = curve.count > 0
    gaps = np.abs(curve.right - curve.confidence)[full] / curve.count[full]
    assert np.isclose(gaps.mean(), pooled, rtol=1e-12)


def test_threads_are_as_before_after_a_job():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
