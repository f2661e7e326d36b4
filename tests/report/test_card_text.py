import numpy as np

import segcal
from segcal.report.card_text import as_html, as_markdown, blocks


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
