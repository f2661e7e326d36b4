"""The document of a benchmark has the numbers of its summary, its cases and its studies."""

import json
import shutil

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from msgspec.structs import replace

from segcal.benchmark.protocol import Pipeline
from segcal.studies import document as module
from segcal.studies.document import choose, find_facts, make_document, provenance, task_section
from segcal.studies.page import read_document

TS, MS = Pipeline("mean_logits", "ts"), Pipeline("mean_logits", "ms")


def made(setting, test_on="", chosen=TS):
    return task_section(setting.results, setting.summary, "heart", test_on, chosen, "by hand")


@pytest.fixture(scope="module")
def section(page_setting):
    return made(page_setting)


def calibrator(results, pipeline=TS):
    return provenance(results, {"heart": pipeline}).calibrators["heart"]


def test_the_document_is_json_and_has_every_section(page_folder):
    document = read_document(page_folder)[0]
    plain = to_builtins(document)
    json.dumps(plain, allow_nan=False)
    assert [section["id"] for section in plain["places"]] == ["heart", "heart→heart_strong"]
    assert document.examples["heart"].cases
    assert set(document.metrics) >= {"ece", "nll", "dice", "ba_ece", "ace", "flip_rate"}
    words = document.calibrators["ts"]
    assert (words.title, words.about) == ("Temperature scaling", "Divide all logits by one temperature.")
    study = json.loads((page_folder / "studies" / "worst_cases.json").read_text())
    assert document.sections[0].chosen == study["tasks"]["heart"]["chosen"]["title"]


def test_without_the_study_the_lowest_validation_loss_is_taken(page_setting):
    pipeline, why = choose(page_setting.results, page_setting.summary, None, "heart")
    units = [page_setting.results.repeats("heart", f"{name}(mean_logits)")[0] for name in ("ts", "cms_ap")]
    losses = {unit.unit.pipeline.title: unit.header.certificate["validation_nll"] for unit in units}
    assert losses[pipeline.title] == min(losses.values())
    assert "lowest loss" in why
    assert make_document(page_setting.results, page_setting.summary, {}).examples["heart"].cases == []


def test_rows_are_those_of_the_summary_curves_and_bands_of_all_repeats_cases_of_the_first(
    page_setting, section, monkeypatch
):
    row = next(row for row in section.rows if row.pipeline == "ts(mean_logits)")
    expected = page_setting.summary.numbers("heart", "ts(mean_logits)")
    assert row.metrics["ece"].value == pytest.approx(expected["ece"].value, rel=1e-5)
    assert row.metrics["ace"].low == pytest.approx(expected["ace"].low, rel=1e-5)
    assert (row.preserves, row.translation_invariant, row.converged) == ("order", True, True)
    units = page_setting.results.repeats("heart", title := "ms(mean_logits)")
    voxels = sum(row.voxels for unit in units for row in unit.rows)
    assert sum(section.curves[title].all.count) == sum(row.voxels for row in section.per_class[title]) == voxels
    rates = [row.metrics["flip_rate"] * row.voxels for unit in units for row in unit.rows]
    assert sum(band.flips for band in section.bands[title]) == pytest.approx(sum(rates))
    assert sum(band.flips for band in section.bands["ts(mean_logits)"]) == 0
    first = units[0].rows
    assert section.cases.names == [row.case for row in first]
    assert section.cases.nll[title] == pytest.approx([row.metrics["nll"] for row in first], abs=1e-6)
    monkeypatch.setattr(module, "MOST_CASES", 2)
    assert (len((few := made(page_setting).cases).names), few.of) == (2, len(first))


def test_the_verdict_is_about_the_chosen_pipeline_and_its_shifts(page_setting, section):
    assert (section.baseline, section.chosen) == ("identity(mean_logits)", "ts(mean_logits)")
    assert any("heart_strong" in text for text in section.verdict.limits)
    assert "by hand" in section.verdict.done
    there = made(page_setting, "heart_strong")
    assert (there.id, bool(there.verdict.headline)) == ("heart→heart_strong", True)
    other = made(page_setting, chosen=Pipeline("mean_probs", "ts"))  # without an uncalibrated row
    assert other.verdict is other.baseline is other.chosen is None


def test_protocol_and_calibrator_are_told_with_what_made_them(page_setting, monkeypatch, tmp_path):
    facts = provenance(page_setting.results, {})
    assert (facts.protocol_hash, facts.seed, facts.repeats) == (page_setting.protocol.hash(), 0, 2)
    assert set(facts.fingerprints) == {
        f"{task}, {pooling}" for task in ("heart", "heart_strong") for pooling in ("single", "mean_logits")
    }
    facts = calibrator(page_setting.results)
    assert facts.certificate["converged"] is facts.audit.passed is True
    assert "every promise holds" in facts.audit.text
    assert [facts.cases[part].count for part in ("cal", "val", "test")] == [3, 2, 7]
    assert "ms: makes no promise" in calibrator(page_setting.results, MS).audit.text
    monkeypatch.setattr(module, "MOST_NAMES", 1)
    assert len(calibrator(page_setting.results).cases["test"].names) == 1
    moved = replace(page_setting.results, folder=tmp_path)
    assert calibrator(moved).audit is None  # it is gone
    shutil.copytree(page_setting.results.folder / "calibrators", tmp_path / "calibrators")
    next((tmp_path / "calibrators").rglob("ts-mean_logits/calibrator.json")).write_text("{")
    assert calibrator(moved).audit is None


def test_facts_are_those_of_all_voxels_and_changes_are_paired_over_cases(setting):
    facts, task = find_facts(setting.results, setting.summary, "toy", TS), setting.tasks[0]
    confidence, right, after, flips = [], [], [], np.zeros(3, int)
    for repeat in range(2):
        scaled, matrix = (setting.calibrator(task, pipeline, repeat) for pipeline in (TS, MS))
        for case in setting.split(task, "mean_logits", repeat).test:
            labels = case.labels
            counts, before = labels >= 0, case.logits.argmax(0)
            confidence.append(torch.softmax(case.logits.double(), 0).amax(0)[counts])
            right.append((before == labels)[counts])
            with torch.no_grad():
                after.append(scaled(case.logits[None])[0].exp().amax(0)[counts])
                moved = matrix.scores(case.logits[None])[0].argmax(0)
            kinds = (before == labels, moved == labels, (before != labels) & (moved != labels))
            flips += [int(((moved != before) & counts & kind).sum()) for kind in kinds]
    assert facts.everywhere.confidence == pytest.approx(torch.cat(confidence).mean().item(), rel=1e-6)
    assert facts.everywhere.accuracy == pytest.approx(torch.cat(right).double().mean().item(), rel=1e-12)
    assert facts.everywhere_after.confidence == pytest.approx(torch.cat(after).double().mean().item(), rel=1e-5)
    assert facts.everywhere_after.accuracy == facts.everywhere.accuracy
    assert facts.boundary.accuracy != facts.everywhere.accuracy
    assert facts.boundary_after.confidence != facts.boundary.confidence
    assert facts.matrix_flips.flips == tuple(flips)
    assert flips.sum() > 0
    assert (facts.flips.total, facts.flips.voxels) == (0, 8 * 12 * 13)
    old, new = (
        np.mean([number for unit in setting.results.repeats("toy", title) for number in unit.numbers("nll")])
        for title in ("identity(mean_logits)", "ts(mean_logits)")
    )
    change = facts.change["nll"]
    assert (change.before, change.after, change.difference.value) == pytest.approx((old, new, new - old))
    shifted = find_facts(setting.results, setting.summary, "toy", TS, "toy_strong")
    assert shifted.task == "toy_strong"
    assert shifted.change["nll"].before != change.before
