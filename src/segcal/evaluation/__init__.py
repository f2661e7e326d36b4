"""The parts of :func:`segcal.evaluate`: counting cases, keeping their numbers, and the result."""

from segcal.evaluation.result import Evaluation

__all__ = ["Evaluation"]
