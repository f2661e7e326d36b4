"""From calibrated probabilities to masks: rules, and :func:`segcal.decide`, which follows one."""

from dataclasses import replace

from segcal.checks import check_choice
from segcal.decisions.base import Rule, as_large_as_expected
from segcal.decisions.dice import best_dice
from segcal.errors import InputError

RULES = {
    rule.name: rule
    for rule in (
        Rule("argmax", "the preserved mask (the default everywhere)"),
        Rule("dice", "the mask with the highest expected Dice", best_dice),
        Rule(
            "recall",
            "the smallest mask that misses at most 1 - R of its structure, on average over cases",
            promise="a mask holds at least {:g} % of its structure, where that is there",
        ),
        Rule(
            "precision",
            "the largest mask of which at most 1 - P is wrong, on average over cases",
            promise="at least {:g} % of a mask is its structure; an empty mask counts as right",
            losses="wrong",
        ),
        Rule("volume", "the mask as large as its structure is expected to be", as_large_as_expected),
    )
}


def make_rule(text: str) -> Rule:
    """Return the rule of a text: a name, with ``=`` and a number where labelled cases must support it.

    >>> str(make_rule("recall=0.950")), str(make_rule("dice"))
    ('recall=0.95', 'dice')
    """
    name, given, number = text.partition("=")
    check_choice(name, "rule", RULES)
    rule = RULES[name]
    try:
        value = float(number) if given else None
    except ValueError:
        raise InputError(
            f"rule is {text!r}, but a number is needed after '='. Write for example recall=0.95."
        ) from None
    if (value is not None) != bool(rule.promise) or not (value is None or 0 < value < 1):
        needed = f"a number between 0 and 1, as in {name}=0.9," if rule.promise else f"{name!r} alone"
        raise InputError(f"rule is '{replace(rule, value=value)}', but {needed} is needed. Correct the rule.")
    return replace(rule, value=value)
