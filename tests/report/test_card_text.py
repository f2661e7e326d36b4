import json

import numpy as np

import segcal
from segcal.report.card_text import as_html, as_json, as_markdown, blocks


def test_every_form_has_every_block():
    logits = np.random.default_rng(0).normal(size=(5, 3, 7, 9))
    cases = segcal.ArrayCases(logits=list(logits), labels=list(logits.argmax(1)), class_names=("a|b", "c", "<d>"))
    card = segcal.card(segcal.fit("ts", cases))
    for block in blocks(card):
        assert f"## {block.title}" in as_markdown(card)
        assert f"<h2>{block.title}</h2>" in as_html(card)
    assert "a\\|b" in as_markdown(card)
    assert "&lt;d&gt;" in as_html(card)
    assert as_markdown(card).startswith("---\n# segcal card\n")


def test_every_form_lists_the_evidence_per_class():
    labels = np.zeros((4, 5, 6), int)
    labels[1:, 0, :2], labels[3, 4] = 1, 2
    logits = np.eye(3)[labels].transpose(0, 3, 1, 2) + np.random.default_rng(0).normal(size=(4, 3, 5, 6))
    names = ("rest", "organ", "lesion")
    groups = ["p1", "p1", "p2", "p3"]
    cases = segcal.ArrayCases(logits=list(logits), labels=list(labels), class_names=names, groups=groups)
    card = segcal.card(segcal.fit("ts", cases))
    expected = [("rest", 3, 108), ("organ", 3, 6), ("lesion", 1, 6)]
    for name, count, voxels in expected:
        assert f"| {name} | {count} of 3 | {voxels} |" in as_markdown(card)
        assert f"<tr><td>{name}<td>{count} of 3<td>{voxels}" in as_html(card)
    found = json.loads(as_json(card))["description"]
    assert [(one["name"], one["groups"], one["voxels"]) for one in found["classes"]] == expected
    assert found["groups"] == 3
