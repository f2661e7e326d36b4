"""The contract, the registry, and options that mean nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal import CALIBRATORS, Calibrator, make_calibrator
from segcal.calibrators import registry_entry
from segcal.calibrators.tie_break import with_lead
from segcal.errors import InputError
from segcal.types import Context


class Doubling(Calibrator):
    """A calibrator of a user's own, without registration."""

    translation_invariant = True
    preserves = "order"
    fitted_by = "nothing"

    def scores(self, logits, context=None):
        self.seen = logits.dtype
        return 2 * logits + (0 if context is None else context.image)

    def num_identifiable(self):
        return 0


def test_a_subclass_writes_scores_and_the_base_class_normalises():
    logits = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(Doubling(3)(logits), torch.log_softmax(2 * logits, 1))
    calibrator = Doubling(3)
    calibrator(torch.zeros(1, 3, dtype=torch.float16))
    assert calibrator.seen == torch.float32  # no half types
    with pytest.raises(TypeError, match="abstract"):
        Calibrator(3)


def test_a_context_reaches_the_scores():
    image = torch.tensor([[1.0], [-1.0]])
    found = Doubling(2)(torch.zeros(2, 2), Context(image=torch.cat([image, 0 * image], 1)))
    assert found.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["ts", "lts_ti"])
def test_a_bare_image_in_place_of_a_context_is_refused(name):
    text = r"context is Tensor, but a Context is needed. Pass an image as segcal.Context"
    with pytest.raises(InputError, match=text):
        make_calibrator(name, 3)(torch.zeros(1, 3, 9, 9), torch.zeros(1, 1, 9, 9))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_knows_its_name_and_says_what_it_promises(name):
    calibrator = make_calibrator(name, 5)
    assert calibrator.name == name
    kept = {"order": "keeps the order of all", "argmax": "keeps the argmax", None: "may change"}[calibrator.preserves]
    assert repr(calibrator).startswith(f"{name} for 5 classes")
    assert kept in repr(calibrator)
    assert ("does not see the offset" in repr(calibrator)) is calibrator.translation_invariant


def test_a_calibrator_knows_its_entry_in_the_registry():
    assert registry_entry(make_calibrator("dc", 3)) == ("dc", {})
    assert registry_entry(make_calibrator("ms", 3, canonical=True)) == ("dc", {})
    assert registry_entry(make_calibrator("pts", 5)) == ("pts", {})
    entry = registry_entry(make_calibrator("pts", 5, hidden=[7], largest=2))
    assert entry == ("pts", {"hidden": (7,), "largest": 2})
    assert registry_entry(Doubling(3)) is None


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("cms", {}, "no calibrator is named 'cms'. Choose one of: identity, ts, ets, vs, vs_ti, ms"),
        ("ms", {"canonica": True}, "ms has no option 'canonica'. Its options are: canonical"),
        ("dc", {"canonical": False}, "dc has no option 'canonical'. It has none"),
        ("conic", {"contexts": ["colour"]}, "contexts has 'colour', but there is no such context. Choose from: disagr"),
        ("conic", {"ramps": 0}, "ramps is 0, but a count of at least 1 is needed. Leave it out."),
        ("conic", {"hats": 1}, "hats is 1, but a count of at least 2 is needed. Leave it out."),
        *(
            ("histogram", {"bins": bins}, "but a count of at least 1 is needed. The default is 15.")
            for bins in (0, 2.0)
        ),
        *(("isotonic", {"knots": n}, f"knots is {n}, but a count of at least 4 is needed") for n in (3, 2.5, True)),
        *(("pts", {"largest": n}, "but a count of at least 1 is needed. Leave it out to use 10.") for n in (0, True)),
        *(
            (name, {"hidden": hidden}, "but a list of layer sizes of at least 1 is needed. Use [32, 32], for example.")
            for name in ("pts", "iop")
            for hidden in ((0,), (3, -1), (2.5,), (True,))
        ),
        ("meta_cal", {"alpha": 0.0}, "alpha is 0.0, but a share between 0 and 1 is needed"),
        ("meta_cal", {"target_accuracy": 1.2}, "target_accuracy is 1.2, but a share between 0 and 1 is needed"),
        ("meta_cal", {"n1_max": 0}, "n1_max is 0, but a count of at least 1 is needed. The original code has 500."),
        (
            "meta_cal_large_t",
            {"large_temperature": 0.5},
            "large_temperature is 0.5, but a number from 1 to 1e10 is",
        ),
        ("lts", {"gate_init": "ones"}, "gate_init is 'ones', but it must be 'random' or 'zeros'"),
        *(
            ("lts", {"image_channels": n}, f"image_channels is {n}, but a whole number of at least 0 is needed. Use 3")
            for n in (-1, 1.5, True)
        ),
        ("selective", {"temperatures": "best"}, "temperatures is 'best', but it must be one of nll, ece, paper"),
        ("selective", {"place": "after"}, "place is 'after', but it must be one of unflagged, before"),
        ("selective", {"repeats": -1}, "repeats is -1, but a number of at least 0 is needed"),
        ("selective", {"inner": 3}, "inner is int, but a calibrator is needed"),
        ("selective", {"inner": "tss"}, "no calibrator is named 'tss'"),
        ("selective", {"inner": {"nam": "ts"}}, "inner is {'nam': 'ts'}, but a name, or a name and options, is needed"),
        ("selective", {"inner": make_calibrator("ts", 5)}, "inner is ts for 5 classes, but a calibrator that"),
    ],
)
def test_options_that_mean_nothing_are_refused(name, options, text):
    with pytest.raises(InputError) as raised:
        make_calibrator(name, 3, **options)
    assert text in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 20, 150, 1000])
def test_the_winner_of_equal_scores_is_seen_after_normalising(dtype, classes):
    for first in (0, classes - 1):
        scores = with_lead(torch.zeros(1, classes, 4, dtype=dtype), torch.full((1, 4), first))
        log_probs = torch.log_softmax(scores, dim=1)
        assert (log_probs.argmax(1) == first).all()
        assert (log_probs.exp().argmax(1) == first).all()
        assert float((log_probs.exp() - 1 / classes).abs().max()) < 2e-6 / classes


def test_scores_that_lead_already_stay_as_they_are():
    scores = torch.tensor([[1.0, 3.0, -2.0], [0.0, -1.0, -1.0]])
    assert torch.equal(with_lead(scores, torch.tensor([1, 0])), scores)


@given(st.lists(st.floats(-50, 0, width=32), min_size=2, max_size=6), st.integers(0, 5))
def test_no_two_classes_change_places(values, number):
    first = number % len(values)
    values[first] = 0.0
    before = torch.tensor([values])
    after = with_lead(before, torch.tensor([first]))[0].tolist()
    for a, x in zip(values, after, strict=True):
        for b, y in zip(values, after, strict=True):
            assert not (a > b and x < y)
    assert after.index(max(after)) == first
