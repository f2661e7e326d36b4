"""One job: its numbers are those of fit and evaluate, and what is kept of a case is what is counted by hand."""

import numpy as np
import torch

from segcal import evaluate, fit
from segcal.benchmark.job import CaseCounter, benchmark_metrics, run_job
from segcal.benchmark.protocol import parse_protocol
from segcal.benchmark.results import read_unit
from segcal.benchmark.units import divide, plan
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.kernels.threads import one_thread

METRICS = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate"]


def test_a_unit_has_the_numbers_of_fit_and_evaluate(data, tmp_path):
    root, blobs, _ = data
    document = {"tasks": [blobs], "repeats": 1, "split": {"cal": 4, "val": 2}, "metrics": METRICS}
    document["pipelines"] = [{"pooling": "mean_logits", "calibrator": "dc"}]
    protocol = parse_protocol(document | {"fit": {"lam": 1e-3, "mu": 1e-3}}, root)
    (job,) = plan(protocol, {"blobs": protocol.pipelines}, {("blobs", "mean_logits"): "fingerprint"})
    assert run_job(job, protocol, tmp_path) == 1
    ((unit, digest),) = job.units.items()
    found = read_unit(tmp_path / unit.path)
    assert found.header.digest == digest
    split = divide(protocol, job.task, protocol.open(job.task, "mean_logits").cases, 0)
    with one_thread():
        fitted = fit("dc", split.cal, split.val, protocol.fit)
    result = evaluate(split.test, fitted.calibrator, metrics=METRICS, replicates=1)
    assert found.header.certificate["objective"] == fitted.certificate.objective
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


def swapped():
    """Return a calibrator that prefers class 1 wherever it is not far behind."""
    calibrator = make_calibrator("vs", 2)
    calibrator.bias.data[1] = 1.0
    return calibrator


def counted(metrics=("nll", "dice", "ace", "flip_rate", "free_energy_std"), background=True):
    # One row of pixels: the first four are class 0, the others class 1; the last is ignored.
    labels = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 1, 9]])
    z1 = np.array([-3, -0.5, -3, -0.5, -0.5, 2, -3, 2, 2, -0.5])
    logits = np.stack([np.zeros((1, 10)), z1[None]]).astype(np.float32)
    cases = ArrayCases([logits], [labels], ignore=9, ids=["a"])
    calibrators = {"swapped": swapped(), "same": make_calibrator("identity", 2)}
    counter = CaseCounter(benchmark_metrics(metrics, background), calibrators)
    counter.add(cases.read("a"))
    return counter


def test_flips_are_counted_in_the_band_and_kind_where_they_lie():
    row = counted().rows["swapped"][0]
    # Pixels 1, 3, 4 flip to class 1 (z1 = -0.5 + 1 > 0): 1 and 3 harmfully, 4 rightly; the ignored one does not count.
    # The boundary is pixels 3 | 4; bands begin at distance 0 and 3.
    flips = np.zeros((5, 3), int)
    flips[0] = [2, 1, 0]
    cells, values = row.flip_bands["flips"]["cells"], row.flip_bands["flips"]["values"]
    assert dict(zip(cells, values, strict=True)) == {i: n for i, n in enumerate(flips.reshape(-1)) if n}
    assert row.flip_bands["voxels"]["values"] == [6, 3]  # distances 3 2 1 0 | 0 1 2 3 4
    assert row.metrics["flip_rate"] == 3 / 9
    assert (row.voxels, row.ignored) == (9, 1)


def test_a_calibrator_that_changes_nothing_flips_nothing_and_keeps_the_input_s_free_energy():
    kept = counted()
    same = kept.rows["same"][0].metrics
    assert same["flip_rate"] == 0
    energy = np.log(1 + np.exp(np.array([-3, -0.5, -3, -0.5, -0.5, 2, -3, 2, 2])))
    assert np.isclose(same["free_energy_std"], energy.std())
    assert same["free_energy_std"] == kept.rows["swapped"][0].metrics["free_energy_std"]


def test_dice_counts_class_0_where_it_is_no_background():
    # Truth 0 x 4, 1 x 5; predicted as class 1: pixels 5, 7, 8.
    assert np.isclose(counted().rows["same"][0].metrics["dice"], 2 * 3 / (5 + 3))
    both = counted(background=False).rows["same"][0].metrics["dice"]
    assert np.isclose(both, (2 * 4 / (4 + 6) + 2 * 3 / (5 + 3)) / 2)


def test_totals_have_the_tables_of_figures_whatever_was_asked_for():
    total = counted(metrics=("nll",)).totals["same"].tables
    assert {15, 20, 30, 40, 50} == set(total.reliability)
    assert set(total.reliability[15]) == {"all", "foreground"}
    assert set(total.reliability[50]) == {"all"}
    assert total.classwise is not None
    assert total.bands is not None
    assert total.flips is not None


def test_the_spread_between_cases_is_summed_for_every_curve_of_a_diagram():
    kept = counted().totals["same"]
    assert set(kept.spread) == {"all", "foreground", "classes", "bands"}
    count = kept.tables.reliability[15]["all"].count
    assert (kept.spread["all"].counts == count**2).all()
    assert kept.spread["classes"].cases.shape == (2, 15)
