"""The document of a benchmark has the numbers of its summary, its cases and its studies."""

import json
import shutil

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from msgspec.structs import replace

from segcal.benchmark.pipelines import Pipeline
from segcal.studies import document as module
from segcal.studies.document import case_columns, choose, find_facts, make_document, provenance, task_section
from segcal.studies.page import read_document

TS, MS = Pipeline("mean_logits", "ts"), Pipeline("mean_logits", "ms")


@pytest.fixture(scope="module")
def document(page_folder):
    return read_document(page_folder)[0]


def made(setting, test_on="", chosen=TS):
    return task_section(setting.results, setting.summary, "heart", test_on, chosen, "by hand")


def calibrator(results, pipeline=TS):
    return provenance(results, {"heart": pipeline}).calibrators["heart"]


def test_the_document_is_json_and_has_every_section(document, page_folder):
    plain = to_builtins(document)
    json.dumps(plain, allow_nan=False)
    assert [section["id"] for section in plain["places"]] == ["heart", "heart→heart_strong"]
    assert document.examples["heart"].cases
    assert set(document.metrics) >= {"ece", "nll", "dice", "ba_ece", "ace", "flip_rate"}
    assert document.calibrators["ts"].title == "Temperature scaling"
    assert document.calibrators["ts"].about == "Divide all logits by one temperature."
    study = json.loads((page_folder / "studies" / "worst_cases.json").read_text())
    assert document.sections[0].chosen == study["tasks"]["heart"]["chosen"]["title"]


def test_without_the_study_the_lowest_validation_loss_is_taken(page_setting):
    pipeline, why = choose(page_setting.results, page_setting.summary, None, "heart")
    units = [page_setting.results.repeats("heart", f"{name}(mean_logits)")[0] for name in ("ts", "cms_ap")]
    losses = {unit.unit.pipeline.title: unit.header.certificate["validation_nll"] for unit in units}
    assert losses[pipeline.title] == min(losses.values())
    assert "lowest loss" in why
    assert make_document(page_setting.results, page_setting.summary, {}).examples["heart"].cases == []


def test_rows_are_those_of_the_summary(page_setting):
    section = made(page_setting)
    assert section.rows[1].pipeline == "identity(mean_logits)"
    row = next(row for row in section.rows if row.pipeline == "ts(mean_logits)")
    expected = page_setting.summary.numbers("heart", "ts(mean_logits)")
    assert row.metrics["ece"].value == pytest.approx(expected["ece"].value, rel=1e-5)
    assert row.metrics["ace"].low == pytest.approx(expected["ace"].low, rel=1e-5)
    assert (row.preserves, row.translation_invariant, row.converged) == ("order", True, True)


def test_curves_and_bands_are_those_of_all_repeats(page_setting):
    section, title = made(page_setting), "ms(mean_logits)"
    units = page_setting.results.repeats("heart", title)
    voxels = sum(row.voxels for unit in units for row in unit.rows)
    assert sum(section.curves[title].all.count) == voxels
    assert sum(row.voxels for row in section.per_class[title]) == voxels
    rates = [row.metrics["flip_rate"] * row.voxels for unit in units for row in unit.rows]
    assert sum(band.flips for band in section.bands[title]) == pytest.approx(sum(rates))
    assert sum(band.flips for band in section.bands["ts(mean_logits)"]) == 0


def test_the_verdict_is_about_the_chosen_pipeline_and_its_shifts(page_setting):
    section = made(page_setting)
    assert (section.baseline, section.chosen) == ("identity(mean_logits)", "ts(mean_logits)")
    assert any("heart_strong" in text for text in section.verdict.limits)
    assert "by hand" in section.verdict.done
    there = made(page_setting, "heart_strong")
    assert there.id == "heart→heart_strong"
    assert there.verdict.headline
    other = made(page_setting, chosen=Pipeline("mean_probs", "ts"))  # without an uncalibrated row
    assert other.verdict is other.baseline is other.chosen is None


def test_every_test_case_of_the_first_repeat_has_its_numbers(page_setting, monkeypatch):
    unit = page_setting.results.repeats("heart", "ts(mean_logits)")[0]
    found = case_columns({"ts": unit})
    assert found.names == [row.case for row in unit.rows]
    assert found.nll["ts"] == pytest.approx([row.metrics["nll"] for row in unit.rows], abs=1e-6)
    monkeypatch.setattr(module, "MOST_CASES", 2)
    assert (len(case_columns({"ts": unit}).names), case_columns({"ts": unit}).of) == (2, len(unit.rows))


def test_the_protocol_is_told_with_seeds_versions_and_fingerprints(page_setting):
    facts = provenance(page_setting.results, {})
    assert facts.protocol_hash == page_setting.protocol.hash()
    assert (facts.seed, facts.repeats) == (0, 2)
    assert set(facts.fingerprints) == {
        f"{task}, {pooling}" for task in ("heart", "heart_strong") for pooling in ("single", "mean_logits")
    }


def test_the_calibrator_has_its_certificate_its_audit_and_its_cases(page_setting, monkeypatch):
    facts = calibrator(page_setting.results)
    assert facts.certificate["converged"] is True
    assert facts.audit.passed
    assert "every promise holds" in facts.audit.text
    assert [facts.cases[part].count for part in ("cal", "val", "test")] == [3, 2, 7]
    assert "ms: makes no promise" in calibrator(page_setting.results, MS).audit.text
    monkeypatch.setattr(module, "MOST_NAMES", 1)
    assert len(calibrator(page_setting.results).cases["test"].names) == 1


def test_a_calibrator_that_is_gone_has_no_audit(page_setting, tmp_path):
    moved = replace(page_setting.results, folder=tmp_path)
    assert calibrator(moved).audit is None
    source = page_setting.results.folder / "calibrators"
    shutil.copytree(source, tmp_path / "calibrators")
    next((tmp_path / "calibrators").rglob("ts-mean_logits/calibrator.json")).write_text("{")
    assert calibrator(moved).audit is None


@pytest.fixture(scope="module")
def facts(setting):
    return find_facts(setting.results, setting.summary, "toy", TS)


def cases_of_tests(setting):
    """Every test case of every repeat, with the number of its repeat."""
    task = setting.tasks[0]
    for repeat in range(2):
        for case in setting.split(task, "mean_logits", repeat).test:
            yield repeat, case


def test_confidence_and_accuracy_are_those_of_all_voxels_before_and_after(setting, facts):
    confidence, right, after = [], [], []
    for repeat, case in cases_of_tests(setting):
        counts = (case.labels >= 0).numpy()
        probs = torch.softmax(case.logits.double(), 0).numpy()
        confidence.append(probs.max(0)[counts])
        right.append((probs.argmax(0) == case.labels.numpy())[counts])
        with torch.no_grad():
            calibrated = setting.calibrator(setting.tasks[0], TS, repeat)(case.logits[None])[0].exp().numpy()
        after.append(calibrated.max(0)[counts])
    assert facts.everywhere.confidence == pytest.approx(np.concatenate(confidence).mean(), rel=1e-6)
    assert facts.everywhere.accuracy == pytest.approx(np.concatenate(right).mean(), rel=1e-12)
    assert facts.everywhere_after.confidence == pytest.approx(np.concatenate(after).mean(), rel=1e-5)
    assert facts.everywhere_after.accuracy == facts.everywhere.accuracy
    assert facts.boundary.accuracy != facts.everywhere.accuracy
    assert facts.boundary_after.confidence != facts.boundary.confidence


def test_changes_are_paired_over_cases(setting, facts):
    before, after = (
        [number for unit in setting.results.repeats("toy", title) for number in unit.numbers("nll")]
        for title in ("identity(mean_logits)", "ts(mean_logits)")
    )
    change = facts.change["nll"]
    assert change.before == pytest.approx(np.mean(before))
    assert change.after == pytest.approx(np.mean(after))
    assert change.difference.value == pytest.approx(np.mean(after) - np.mean(before))


def test_flips_are_counted_voxel_by_voxel(setting, facts):
    counted = np.zeros(3, int)
    for repeat, case in cases_of_tests(setting):
        with torch.no_grad():
            matrix = setting.calibrator(setting.tasks[0], Pipeline("mean_logits", "ms"), repeat)
            after = matrix.scores(case.logits[None])[0].argmax(0)
        before, labels = case.logits.argmax(0), case.labels
        flipped = (after != before) & (labels >= 0)
        kinds = (before == labels, after == labels, (before != labels) & (after != labels))
        counted += [int((flipped & kind).sum()) for kind in kinds]
    assert facts.matrix_flips.flips == tuple(counted)
    assert counted.sum() > 0
    assert 0 < facts.matrix_flips.near <= 1
    assert (facts.flips.total, facts.flips.near) == (0, None)
    assert facts.flips.voxels == 8 * 12 * 13


def test_facts_of_a_corrupted_copy_are_named_after_it(setting, facts):
    shifted = find_facts(setting.results, setting.summary, "toy", TS, "toy_strong")
    assert shifted.task == "toy_strong"
    assert shifted.change["nll"].before != facts.change["nll"].before
