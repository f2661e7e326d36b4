import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal import make_calibrator
from segcal.calibrators.base import Calibrator
from segcal.calibrators.matrix import MatrixScaling
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import ArrayCases, CaseError
from segcal.errors import InputError, SuspicionWarning
from segcal.evaluation.evaluate import DEFAULT_METRICS, evaluate, evaluate_by_part
from segcal.evaluation.result import labelled_rows, plain_by_part
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig
from segcal.metrics import METRICS
from segcal.statistics import BandCache, count_logits
from segcal.summary import Difference, Estimate


def make_cases(count=5, num_classes=3, ids=None, dtype="float32", ignore=True):
    rng = np.random.default_rng(0)
    logits, labels = [], []
    for i in range(count):
        space = (8 + i, 15)
        y = np.zeros(space, int)
        y[2:6, 3 : 8 + i] = 1
        y[5:, 9:] = 2
        z = rng.normal(size=(num_classes, *space)) + 3 * (y == np.arange(num_classes)[:, None, None])
        if ignore:
            y[0] = 255
        logits.append((z * 2).astype(dtype))
        labels.append(y)
    return ArrayCases(logits, labels, ignore=255 if ignore else None, ids=ids)


def matrix_scaling(num_classes=3, seed=0):
    calibrator = MatrixScaling(num_classes)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.6 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)).double()
    return calibrator


def test_without_a_calibrator_there_is_only_before():
    result = evaluate(make_cases())
    assert result.after is None
    assert result.change is None
    assert {row["stage"] for row in result.rows} == {"before"}
    assert set(result.before) == {name for name in DEFAULT_METRICS if "reference" not in METRICS[name].needs}


def test_rows_and_means_are_those_of_the_cases():
    cases = make_cases()
    result = evaluate(cases, metrics=["nll", "dice"])
    for case, row in zip(cases, result.rows, strict=True):
        tables = count_logits(case.logits, case.labels).tables
        assert row["nll"] == pytest.approx(METRICS["nll"](tables))
        assert row["dice"] == pytest.approx(METRICS["dice"](tables))
        assert row["ignored"] == 15
    assert result.before["nll"].value == pytest.approx(np.mean([row["nll"] for row in result.rows]))
    assert result.before["nll"].low < result.before["nll"].value < result.before["nll"].high


def test_after_is_what_the_calibrators_log_probabilities_give():
    cases, calibrator = make_cases(), matrix_scaling()
    result = evaluate(cases, calibrator, metrics=[name for name in METRICS if METRICS[name].needs == ()])
    for case, row in zip(cases, [row for row in result.rows if row["stage"] == "after"], strict=True):
        with torch.no_grad():
            log_probs = calibrator(case.logits[None])[0]
        tables = count_logits(log_probs, case.labels, normalised=True).tables
        for name in ("nll", "brier", "ece", "entropy", "dice"):
            assert row[name] == pytest.approx(METRICS[name](tables), rel=1e-5), name
        assert row["free_energy_std"] is None


def test_a_calibrator_that_keeps_the_decision_flips_nothing_even_when_it_makes_ties():
    class Flatten(Calibrator):
        """Makes every voxel an exact tie of all classes, which is still nobody above the old winner."""

        translation_invariant, preserves, fitted_by = True, "argmax", "nothing"

        def scores(self, logits, context=None):
            return torch.zeros_like(logits)

        def num_identifiable(self):
            return 0

    result = evaluate(make_cases(), Flatten(3))
    assert result.after["flip_rate"].value == 0
    assert result.after["dice"].value == result.before["dice"].value
    assert result.change["dice"].equal == 5
    assert result.after["harmful_flips"].value is None


def test_flips_agree_with_comparing_decisions():
    cases, calibrator = make_cases(ignore=False), matrix_scaling()
    result = evaluate(cases, calibrator, metrics=["flip_rate"])
    for case, row in zip(cases, [row for row in result.rows if row["stage"] == "after"], strict=True):
        with torch.no_grad():
            changed = calibrator(case.logits[None])[0].argmax(0) != case.logits.argmax(0)
        assert row["flip_rate"] == pytest.approx(float(changed.float().mean())) != 0


def test_a_plain_function_may_stand_for_a_calibrator():
    cases = make_cases()
    calibrator = TemperatureScaling(3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.5)

    def divide(logits, context):
        return torch.log_softmax(logits / 2, 1)

    mine, its = (evaluate(cases, one, metrics=["nll", "ece"]) for one in (calibrator, divide))
    assert mine.after["nll"].value == pytest.approx(its.after["nll"].value, rel=1e-6)
    with pytest.raises(InputError, match="log_probs has a voxel whose logsumexp over classes is off zero"):
        evaluate(cases, lambda logits, image: logits)


def test_pooled_metrics_pool_the_voxels():
    cases = make_cases()
    result = evaluate(cases, metrics=["ace", "miou"])
    z = torch.cat([case.logits.reshape(3, -1) for case in cases], 1)
    y = torch.cat([case.labels.reshape(-1) for case in cases])
    tables = count_logits(z, y).tables
    assert result.before["ace"].value == pytest.approx(METRICS["ace"](tables))
    assert result.before["miou"].value == pytest.approx(METRICS["miou"](tables))
    assert result.before["ace"].low <= result.before["ace"].high


def test_the_order_of_the_cases_does_not_change_a_bit():
    ids = ["d", "a", "c", "e", "b"]
    cases = make_cases(ids=ids)
    back = ArrayCases(
        [case.logits for case in cases][::-1], [case.labels for case in cases][::-1], ignore=-1, ids=ids[::-1]
    )
    first, second = (evaluate(one, matrix_scaling()) for one in (cases, back))
    assert first.before == second.before
    assert first.after == second.after
    assert first.change == second.change


def test_surface_distances_know_the_spacing():
    y = np.zeros((6, 9), int)
    y[2:4, 2:5] = 1
    z = np.stack([np.zeros((6, 9)), np.where(np.roll(y, 2, axis=1), 1.0, -1.0)])
    result = evaluate(ArrayCases([z], [y], spacing=[(1.0, 0.25)]), metrics=["hd", "hd95"])
    assert result.before["hd"].value == pytest.approx(0.5)


def test_what_is_undefined_is_none_counted_and_said():
    z = [np.zeros((2, 4, 5)), np.random.default_rng(0).normal(size=(2, 4, 5))]
    y = [np.zeros((4, 5), int), np.tile([0, 0, 1, 1, 1], (4, 1))]
    result = evaluate(ArrayCases(z, y))
    assert result.before["ba_ece"].undefined == 1
    assert result.rows[0]["ba_ece"] is None
    assert "ba_ece: not defined for 1 of 2 cases" in str(result)


def test_the_printed_table_shows_names_values_and_intervals():
    text = str(evaluate(make_cases(), matrix_scaling()))
    assert text.startswith("5 cases: mean [95 % interval")
    assert "better/equal/worse" in text
    assert "% of the voxels are ignored" in text
    assert max(map(len, text.splitlines()[:-1])) <= 140  # the last is the sentence
    line = next(line for line in text.splitlines() if line.strip().startswith("nll"))
    assert line.count("[") == 3


def test_the_verdict_says_what_calibration_did_to_ece_labels_and_confidence():
    cases = make_cases()
    soft = make_calibrator("ts", 3)
    with torch.no_grad():
        soft.inverse_temperature.fill_(0.3)
    result = evaluate(cases, soft)
    change = result.change["ece"]
    assert change.low > 0
    assert f"ECE by {change.value:.4f} [{change.low:.4f}, {change.high:.4f}]" in result.verdict
    assert result.verdict.startswith("Calibration raised NLL by ")
    assert " (worse); " in result.verdict
    gap = []  # softmax of 0.3 times the logits, by hand
    for case in cases:
        scores = 0.3 * case.logits.numpy().astype(float)
        probs = (np.exp(scores) / np.exp(scores).sum(0)).max(0)
        right = case.logits.numpy().argmax(0) == case.labels.numpy()
        gap += [(probs - right)[case.labels.numpy() >= 0]]
    points = 100 * -np.concatenate([each.ravel() for each in gap]).mean()
    assert result.verdict.endswith(f"; no label changed; now underconfident by {points:.1f} points on average.")
    assert str(result).endswith(result.verdict)
    back = evaluate(cases, lambda logits, context: torch.log_softmax(logits, 1), ["ece"])
    assert back.verdict == "Calibration changed ECE by no measurable amount."
    assert "-0.0000" not in str(back)
    assert (evaluate(cases).verdict, evaluate(cases, soft, ["dice"]).verdict) == ("", "")
    flips = evaluate(cases, matrix_scaling(), ["nll", "flip_rate"])
    after = [row for row in flips.rows if row["stage"] == "after"]
    share = sum(row["flip_rate"] * row["voxels"] for row in after) / sum(row["voxels"] for row in after)
    assert f"; labels changed in {100 * share:.2g} % of voxels." in flips.verdict


def test_the_verdict_names_all_that_is_better_worse_and_the_same():
    result = evaluate(make_cases(), matrix_scaling(), ["nll", "ece", "ba_ece", "dice"])
    given = {"nll": (-0.02, -0.03, -0.01), "ece": (-0.004, -0.008, 0.001), "ba_ece": (0.03, 0.02, 0.04)}
    change = {name: Difference(*ends, 5, 0, 0, 0, 0) for name, ends in given.items()}
    before = dict.fromkeys(result.before, Estimate(0.2, 0.1, 0.3))
    said = replace(result, before=before, change=change).verdict
    assert said.startswith(
        "Calibration lowered NLL by 0.020 [0.010, 0.030]; raised BA-ECE by 0.030 [0.020, 0.040] (worse); "
        "ECE: no measurable difference"
    )
    few = {"nll": Difference(-0.02, None, None, 2, 0, 0, 0, 0)}
    said = replace(result, before=before, change=few).verdict
    assert said.startswith("Calibration changed NLL by -0.020 (too few for an interval)")


def test_kinds_of_flips_are_not_defined_where_no_label_changed():
    soft = make_calibrator("ts", 3)
    assert "no label changed, so these are not defined: harmful_flips" in str(
        evaluate(make_cases(), soft, ["nll", "flip_rate", "harmful_flips"])
    )


def test_files_hold_the_same_numbers(tmp_path):
    result = evaluate(make_cases(), matrix_scaling())
    result.to_csv(tmp_path / "rows.csv")
    result.to_json(tmp_path / "result.json")
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert float(rows[1]["nll"]) == result.rows[1]["nll"]
    assert rows[0]["flip_rate"] == ""
    plain = json.loads((tmp_path / "result.json").read_text())
    assert plain["after"]["nll"]["low"] == result.after["nll"].low
    assert plain["rows"][0]["flip_rate"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "rows.csv"]


def test_progress_and_a_shared_cache_of_bands():
    cases, cache, seen = make_cases(), BandCache(), []
    first = evaluate(cases, metrics=["ba_ece"], bands=cache, progress=seen.append)
    assert seen == list(cases.ids)
    assert evaluate(cases, metrics=["ba_ece"], bands=cache).before == first.before


def test_metrics_with_options_of_ones_own():
    own = {"dice_with_background": METRICS["dice"].with_options(include_background=True), "dice": METRICS["dice"]}
    result = evaluate(make_cases(), metrics=own)
    assert result.before["dice_with_background"].value > result.before["dice"].value


def test_bad_input_is_refused_in_full_sentences():
    cases = make_cases(2)
    with pytest.raises(InputError, match=r"no metric is named 'eec'. Choose one of: nll"):
        evaluate(cases, metrics=["eec"])
    with pytest.raises(InputError, match="metrics is 'ece', but a list, each entry text, or a dictionary"):
        evaluate(cases, metrics="ece")
    with pytest.raises(InputError, match=r"cases is empty, but at least one case is needed"):
        evaluate(cases.subset([]))
    with pytest.raises(InputError, match=r"labels of case '0' is missing, but every case needs labels to be measured"):
        evaluate(ArrayCases([np.zeros((2, 3))]))
    with pytest.raises(InputError, match=r"this calibrator has 4 classes and needs \(batch, 4, \*space\)"):
        evaluate(cases, TemperatureScaling(4))
    with pytest.raises(
        InputError, match=r"calibrator is {}, but a Calibrator or a function or the result of segcal.fit is needed"
    ):
        evaluate(cases, {})


MEMORY = """
from pathlib import Path
import torch
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases.base import Case, Cases
from segcal.evaluation.evaluate import evaluate

class Made(Cases):
    def read(self, case_id):
        generator = torch.Generator().manual_seed(int(case_id))
        z = torch.randn(6, 400, 500, generator=generator)
        y = torch.randint(0, 6, (400, 500), generator=generator)
        return Case(case_id, z, y)

def peak(count):
    evaluate(Made([str(i) for i in range(count)], 6, "logits"), TemperatureScaling(6))
    # getrusage would answer with the peak of the parent process, if that is larger.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

few = peak(3)
print(peak(9) - few)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_cases():
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    one_case = 6 * 400 * 500 * 4
    # Six more cases are read. A pass that kept them would grow by six; an allocator may keep the odd block.
    assert int(run.stdout) < 3 * one_case


def test_probabilities_declared_as_logits_bring_one_warning_with_their_cases():
    rng = np.random.default_rng(0)
    probs = [rng.dirichlet(np.ones(3), 50).T for _ in range(3)]
    labels = [rng.integers(0, 3, 50) for _ in range(3)]
    with pytest.warns(SuspicionWarning) as said:
        evaluate(ArrayCases([*probs[:2], 5 * probs[2]], labels, kind="logits"), metrics=["nll"])
    assert [str(one.message) for one in said] == [
        "0, 1: scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
    ]
    assert said[0].filename == __file__


def test_arrays_tensors_and_loaders_are_measured_as_the_cases_they_are():
    rng = np.random.default_rng(5)
    logits, labels = rng.normal(size=(4, 3, 6, 7)), rng.integers(3, size=(4, 6, 7))
    labels[:, 0] = 255
    calibrator = TemperatureScaling(3)
    cases = ArrayCases(list(logits), list(labels), ignore=255)
    expected = evaluate(cases, calibrator, metrics=["nll", "ece"], replicates=20).to_plain()
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    loader = [(tensors[0][part], tensors[1][part]) for part in (slice(0, 2), slice(2, 4))]
    for data, truth in ((logits, labels), tensors, (loader, None)):
        found = evaluate(data, calibrator, ["nll", "ece"], replicates=20, labels=truth, ignore=255)
        assert found.to_plain() == expected


@pytest.fixture
def cases():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(3, 5, 6)) for _ in range(4)]
    labels = [rng.integers(3, size=(5, 6)) for _ in range(4)]
    return ArrayCases(logits, labels, ids=["a", "b", "c", "d"], groups=["x", "x", "y", "z"])


def fitted(calibration, validation=()):
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 1, 1)
    return Fitted(
        make_calibrator("ts", 3), certificate, FitConfig(), calibration_ids=calibration, validation_ids=validation
    )


def test_the_document_has_the_first_part_at_the_top_and_rows_name_their_part(cases):
    results = evaluate_by_part(cases, fitted(("c",), ("elsewhere",)), metrics=["nll"], replicates=20)
    made = plain_by_part(results)
    assert made["part"] == "held out"
    assert made["cases"] == 3
    assert made["before"]["nll"]["value"] == results["held out"].before["nll"].value
    assert made["fitted_on"]["cases"] == 1
    assert made["fitted_on"]["after"]["nll"]["value"] == results["fitted on"].after["nll"].value
    rows = labelled_rows(results)
    assert [(row["case"], row["part"]) for row in rows if row["stage"] == "before"] == [
        ("a", "held out"), ("b", "held out"), ("d", "held out"), ("c", "fitted on"),
    ]  # fmt: skip
    assert list(rows[0])[:2] == ["case", "part"]
    alone = plain_by_part({"all": evaluate(cases, metrics=["nll"])})
    assert alone["fitted_on"] is None
    assert alone["after"] is None


def test_parts_are_measured_apart_and_held_out_relatives_are_named(cases):
    own = fitted(("a", "c"))
    with pytest.warns(SuspicionWarning, match="1 held-out cases belong to groups of which other cases were fitted on"):
        found = evaluate_by_part(cases, own, metrics=["nll"], replicates=20)
    for name, ids in (("held out", ["b", "d"]), ("fitted on", ["a", "c"])):
        expected = evaluate(cases.subset(ids), own.calibrator, metrics=["nll"], replicates=20)
        assert found[name].after == expected.after


def test_where_nothing_was_held_out_a_warning_says_so(cases):
    with pytest.warns(SuspicionWarning, match="no case was held out; what the calibrator is worth"):
        assert list(evaluate_by_part(cases, fitted(cases.ids), metrics=["nll"], replicates=20)) == ["fitted on"]


class Broken(ArrayCases):
    """Cases of which some cannot be read."""

    broken = ("b", "d")

    def read(self, case_id):
        if case_id in self.broken:
            raise CaseError(case_id, "is broken")
        return super().read(case_id)


def test_a_part_of_which_all_cases_fail_is_left_out_and_all_parts_are_an_error(cases):
    rng = np.random.default_rng(0)
    broken = Broken([rng.normal(size=(3, 5, 6)) for _ in range(4)], [np.zeros((5, 6), int)] * 4, ids=list("abcd"))
    failed = []
    own = fitted(("a", "c"))
    with pytest.warns(SuspicionWarning, match="no case was held out"):
        found = evaluate_by_part(broken, own, failed.append, metrics=["nll"], replicates=20)
    assert list(found) == ["fitted on"]
    assert [error.case_id for error in failed] == ["b", "d"]
    with pytest.raises(CaseError, match="case 'b': is broken"):
        evaluate_by_part(broken, own, metrics=["nll"], replicates=20)
    broken.broken = tuple("abcd")
    with pytest.raises(InputError, match=r"all 4 cases failed, but at least one is needed. First: case 'b': is broken"):
        evaluate_by_part(broken, own, failed.append, metrics=["nll"], replicates=20)


def test_two_cases_have_means_without_intervals():
    result = segcal.evaluate(make_cases(2), segcal.make_calibrator("ts", 3), metrics=["nll", "ace"])
    for part in (result.before, result.after, result.change):
        assert all(one.value is not None and one.low is one.high is None for one in part.values())
    assert "2 cases: mean (too few for an interval)" in str(result)
    assert "[" not in str(result)


def test_numbers_say_which_calibrator_made_them(tmp_path):
    cases, first, other = make_cases(3), segcal.make_calibrator("ts", 3), segcal.make_calibrator("vs", 3)
    results = [segcal.evaluate(cases, one, metrics=["nll"]) for one in (first, segcal.make_calibrator("ts", 3), other)]
    assert results[0].calibrator == results[1].calibrator != results[2].calibrator
    assert segcal.evaluate(cases, lambda logits, context: logits.log_softmax(1), metrics=["nll"]).calibrator is None
    results[0].to_csv(tmp_path / "a.csv")
    lines = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    assert [line[-1] for line in lines] == ["calibrator", *["", results[0].calibrator] * 3]
    results[0].to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["calibrator"] == results[0].calibrator


def test_cases_of_the_fit_are_counted_and_said_unless_they_have_no_names(cases):
    own = segcal.fit("ts", cases.subset(cases.ids[:3]))
    result = segcal.evaluate(cases, own, metrics=["nll"])
    assert result.fitted_on == 3
    assert f"3 of {len(cases)} cases were used in the fit: their numbers are too favourable" in str(result)
    assert segcal.evaluate(cases, own.calibrator, metrics=["nll"]).fitted_on == 0
    numbered = make_cases(4)  # "0", "1", ...: other arrays are numbered alike
    assert segcal.evaluate(make_cases(4), segcal.fit("ts", numbered), metrics=["nll"]).fitted_on == 0
