import numpy as np
import pytest

from segcal.cases import ArrayCases, require_offset
from segcal.errors import InputError

HALF = np.full((2, 3), 0.5, np.float32)


def test_logits_may_be_given_to_any_calibrator():
    require_offset(ArrayCases([HALF]), "ms", translation_invariant=False)


def test_probabilities_may_be_given_to_an_invariant_calibrator():
    require_offset(ArrayCases([HALF], kind="probs"), "ts", translation_invariant=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"kind": "probs"}, "kind is 'probs'"), ({"pooling": "mean_probs"}, "pooling is 'mean_probs'")],
)
def test_a_calibrator_that_needs_the_offset_is_refused_with_the_reason(options, reason):
    with pytest.raises(
        InputError, match=f"calibrator 'vs' depends on the offset .* but {reason}, so the offset is gone"
    ):
        require_offset(ArrayCases([HALF], **options), "vs", translation_invariant=False)
