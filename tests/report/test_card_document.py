import msgspec
import numpy as np

import segcal
from segcal.report.card_document import Card


def test_a_card_is_read_back_as_it_was_written():
    logits = np.random.default_rng(0).normal(size=(5, 3, 7, 9))
    card = segcal.card(segcal.fit("ts", segcal.ArrayCases(logits=list(logits), labels=list(logits.argmax(1)))))
    assert msgspec.json.decode(msgspec.json.encode(card), type=Card) == card
