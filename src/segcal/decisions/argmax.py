"""The preserved mask: what the network decided, and what every other command of segcal keeps."""

from segcal.decisions.base import Rule


class Argmax(Rule):
    """Of classes, the one with the highest score; of a region, whether its logit is above 0. Nothing changes."""

    name = "argmax"
    about = "the preserved mask (the default everywhere)"
