import shutil
from dataclasses import replace

from segcal.benchmark.page import provenance
from segcal.benchmark.page.provenance import audit_facts, calibrator_facts, protocol_facts
from segcal.benchmark.pipelines import Pipeline

TS, MS = Pipeline("mean_logits", "ts"), Pipeline("mean_logits", "ms")


def test_the_protocol_is_told_with_seeds_versions_and_fingerprints(page_setting):
    facts = protocol_facts(page_setting.results)
    assert facts["protocol_hash"] == page_setting.protocol.hash()
    assert (facts["seed"], facts["repeats"]) == (0, 2)
    assert set(facts["fingerprints"]) == {
        f"{task}, {pooling}" for task in ("heart", "heart_strong") for pooling in ("single", "mean_logits")
    }


def test_the_calibrator_has_its_certificate_its_audit_and_its_cases(page_setting, monkeypatch):
    facts = calibrator_facts(page_setting.results, "heart", TS)
    assert facts["certificate"]["converged"] is True
    assert facts["audit"]["passed"]
    assert "every promise holds" in facts["audit"]["text"]
    assert [facts["cases"][part]["count"] for part in ("cal", "val", "test")] == [3, 2, 7]
    monkeypatch.setattr(provenance, "MOST_NAMES", 1)
    assert len(calibrator_facts(page_setting.results, "heart", TS)["cases"]["test"]["names"]) == 1


def test_a_calibrator_that_promises_nothing_is_audited_all_the_same(page_setting):
    found = audit_facts(page_setting.results, "heart", MS)
    assert [each["promised"] for each in found["findings"]] == [False, False]


def test_a_calibrator_that_is_gone_has_no_audit(page_setting, tmp_path):
    moved = replace(page_setting.results, folder=tmp_path)
    assert audit_facts(moved, "heart", TS) is None
    source = page_setting.results.folder / "calibrators"
    shutil.copytree(source, tmp_path / "calibrators")
    next((tmp_path / "calibrators").rglob("ts-mean_logits/calibrator.json")).write_text("{")
    assert audit_facts(moved, "heart", TS) is None
