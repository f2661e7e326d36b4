import pytest
import torch

from segcal import CALIBRATORS, Calibrator, make_calibrator
from segcal.calibrators import registry_entry
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


def test_a_context_reaches_the_scores():
    image = torch.tensor([[1.0], [-1.0]])
    found = Doubling(2)(torch.zeros(2, 2), Context(image=torch.cat([image, 0 * image], 1)))
    assert found.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["ts", "lts_ti"])
def test_a_bare_image_in_place_of_a_context_is_refused(name):
    with pytest.raises(
        InputError, match=r"context is Tensor, but a Context is needed. Pass an image as segcal.Context"
    ):
        make_calibrator(name, 3)(torch.zeros(1, 3, 9, 9), torch.zeros(1, 1, 9, 9))


def test_scores_see_no_half_types():
    calibrator = Doubling(3)
    calibrator(torch.zeros(1, 3, dtype=torch.float16))
    assert calibrator.seen == torch.float32


def test_the_contract_cannot_be_made_without_scores():
    with pytest.raises(TypeError, match="abstract"):
        Calibrator(3)


def test_parameters_are_kept_in_float64():
    for name in ("ts", "ets", "vs", "dc", "cms_ap"):
        assert {p.dtype for p in make_calibrator(name, 3).parameters()} == {torch.float64}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        InputError, match=r"no calibrator is named 'cms'. Choose one of: identity, ts, ets, vs, vs_ti, ms"
    ):
        make_calibrator("cms", 3)


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(InputError, match=r"ms has no option 'canonica'. Its options are: canonical"):
        make_calibrator("ms", 3, canonica=True)
    with pytest.raises(InputError, match=r"dc has no option 'canonical'. It has none"):
        make_calibrator("dc", 3, canonical=False)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_knows_its_name_and_says_what_it_promises(name):
    calibrator = make_calibrator(name, 5)
    assert calibrator.name == name
    kept = {"order": "keeps the order of all", "argmax": "keeps the argmax", None: "may change"}[calibrator.preserves]
    assert repr(calibrator).startswith(f"{name} for 5 classes")
    assert kept in repr(calibrator)
    assert ("does not see the offset" in repr(calibrator)) is calibrator.translation_invariant


def test_a_temperature_is_shown_where_there_is_one():
    calibrator = make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.4)
    assert calibrator.temperature == pytest.approx(2.5)
    assert repr(calibrator).startswith("ts for 3 classes, T = 2.5: keeps the order")
    assert make_calibrator("dc", 3).temperature is None
    assert Doubling(3).name == "Doubling"


def test_a_calibrator_knows_its_entry_in_the_registry():
    assert registry_entry(make_calibrator("dc", 3)) == ("dc", {})
    assert registry_entry(make_calibrator("ms", 3, canonical=True)) == ("dc", {})
    assert registry_entry(Doubling(3)) is None
