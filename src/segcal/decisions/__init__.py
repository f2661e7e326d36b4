"""From calibrated probabilities to masks: rules, and :func:`segcal.decide`, which follows one."""

from segcal.checks import check_choice
from segcal.decisions.base import Argmax, Precision, Recall, Rule, Volume
from segcal.decisions.dice import BestDice
from segcal.errors import InputError

RULES: dict[str, type[Rule]] = {
    "argmax": Argmax,
    "dice": BestDice,
    "recall": Recall,
    "precision": Precision,
    "volume": Volume,
}


def make_rule(text: str) -> Rule:
    """Return the rule of a text: a name, with ``=`` and a number where labelled cases must support it.

    >>> str(make_rule("recall=0.950")), str(make_rule("dice"))
    ('recall=0.95', 'dice')
    """
    name, given, number = text.partition("=")
    check_choice(name, "rule", RULES)
    try:
        value = float(number) if given else None
    except ValueError:
        raise InputError(
            f"rule is {text!r}, but a number is needed after '='. Write for example recall=0.95."
        ) from None
    return RULES[name](value)
