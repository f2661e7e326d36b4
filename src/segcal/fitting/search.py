"""Placeholder while the paper's procedure is being written."""

from segcal.fitting.certificate import Certificate
from segcal.fitting.request import Request


def fit_as_in_paper(request: Request) -> Certificate:
    """Fit by Adam with a search, as in Appendix B."""
    raise AssertionError
